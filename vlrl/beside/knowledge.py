"""A knowledge base by title, as FActScore builds it: an SQLite file with a table `documents` (title, text),
whose texts are passages between separators.

    knowledge = Knowledge.of("knowledge_base.db")
    knowledge.passages("Clive Anderson")      # [] for a title that it does not have
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vlrl.plugins.registry import ConfigError

SEPARATOR = "####SPECIAL####SEPARATOR####"  # FActScore's, between the passages of a document
READ = "SELECT text FROM documents WHERE title = ?"


@dataclass(frozen=True, eq=False)
class Knowledge:
    """An open knowledge base, read-only."""

    connection: sqlite3.Connection

    @staticmethod
    def of(path: str) -> Knowledge:
        """The knowledge base of a file, opened once. Raises ConfigError for a missing file, and for one that
        is no such database."""
        return _opened(str(Path(path).expanduser().resolve()))

    def passages(self, title: str) -> list[str]:
        """The passages about a title, without the marks of sentences; [] where there are none."""
        row = self.connection.execute(READ, (title,)).fetchone()
        parts = str(row[0]).split(SEPARATOR) if row else []
        cleaned = (part.replace("<s>", "").replace("</s>", "").strip() for part in parts)
        return [part for part in cleaned if part]


@cache
def _opened(path: str) -> Knowledge:
    if not Path(path).is_file():
        raise ConfigError(
            f"knowledge: no file {path!r}; name the SQLite file that FActScore's or KnowRL's scripts build "
            "(table documents: title, text)"
        )
    connection = sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True, check_same_thread=False)
    try:
        connection.execute(READ, ("",)).fetchone()
    except sqlite3.DatabaseError as error:
        connection.close()
        raise ConfigError(
            f"knowledge: {path!r} is no knowledge base ({error}); it needs a table documents (title, text)"
        ) from None
    return Knowledge(connection)
