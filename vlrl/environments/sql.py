"""A database that the policy queries: SQLite, read only, within limits of time, rows and memory."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl.environments.tools import Tool, ToolEnvironment, ToolEpisode
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.episodes import Observation
from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row, RowError

ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
FORBIDDEN_FUNCTIONS = (
    "load_extension",
    "readfile",
    "writefile",
    "edit",
    "fts3_tokenizer",
    "printf",
    "format",
)  # the last two fill any width, which no clock interrupts
STEPS = 1000  # virtual machine steps between two looks at the clock
SCHEMA_SECONDS = 5.0  # for the script of a row
MAX_VALUE = 100_000  # bytes of one value


@register("sql")
@dataclass(frozen=True, kw_only=True)
class Sql(ToolEnvironment):
    """A read-only SQLite database: answers {"name": "sql", "arguments": {"query": "SELECT ..."}} with the
    rows as lines, values between bars.

    vlrl original (the setting of text-to-SQL agents such as SkyRL-SQL). The first observation has the tables
    (`show_schema`). Only SELECT is allowed: an authorizer refuses everything else, and the file is opened
    read only. Edge: a wrong query, one beyond `seconds`, and a value or statement that is too large are told
    to the policy; a row without a database, or with a script that takes 5 seconds or touches a file, is a
    RowError.

    Attributes:
        database: The file; a row can bring its own: `row.meta["database"]` is a path, `row.meta["schema"]` a
            script of statements (CREATE, INSERT) that fills a database in memory and touches no file.
        seconds: Limit per query.
        rows: Rows shown of a result.
        chars: Characters of an answer.
    """

    database: str = ""
    show_schema: bool = True
    seconds: float = 2.0
    rows: int = 20
    chars: int = 4000

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.rows < 1 or self.chars < 1:
            raise ValueError(
                f"seconds={self.seconds} must be positive, rows={self.rows} and chars={self.chars} at least 1"
            )

    def check(self, phase: PhaseContext) -> None:
        if self.database and not Path(self.database).expanduser().is_file():
            raise ConfigError(
                f"environment.database: no file {self.database!r}; name a SQLite database, or give rows "
                "meta.schema or meta.database"
            )

    def episode(self) -> ToolEpisode:
        return SqlEpisode(self)

    def toolbox(self) -> Sequence[Tool]:
        return [Tool.of(SqlEpisode(self).sql)]


class SqlEpisode(ToolEpisode):
    """Queries of one conversation, over a connection of its own."""

    def __init__(self, settings: Sql) -> None:
        self.settings = settings
        self.connection: sqlite3.Connection | None = None
        super().__init__([Tool.of(self.sql)])

    def reset(self, row: Row, seed: int) -> Observation:
        self.connection = connection = opened(self.settings.database, row.meta, row.id)
        shown = self.settings.show_schema
        lines = (
            connection.execute(
                "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
            ).fetchall()
            if shown
            else []
        )
        connection.set_authorizer(authorize)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        return Observation(
            "\n".join(["Tables:", *(line for (line,) in lines)])[: self.settings.chars] if lines else ""
        )

    @property
    def stateless(self) -> bool:
        return True  # the database is read only

    def sql(self, query: str) -> str:
        """Runs one SELECT statement of SQLite and shows its rows. query: the statement."""
        connection, settings = self.connection, self.settings
        assert connection is not None, "reset opens the database"
        end = time.monotonic() + settings.seconds
        connection.set_progress_handler(lambda: time.monotonic() > end, STEPS)
        try:
            cursor = connection.execute(query)
            found = cursor.fetchmany(settings.rows + 1)
        except (sqlite3.Error, sqlite3.Warning, UnicodeError, MemoryError) as error:
            said = (
                f"the query took more than {settings.seconds:g} s"
                if "interrupted" in str(error)
                else str(error) or "the query needs too much memory"
            )
            raise ValueError(said) from error
        names = [column[0] for column in cursor.description or ()]
        more = [f"... (more than {settings.rows} rows)"] if len(found) > settings.rows else []
        lines = [
            " | ".join(names),
            *(" | ".join(map(shown_value, line)) for line in found[: settings.rows]),
            *more,
        ]
        text = "\n".join(lines) if found else "(no rows)"
        return text if len(text) <= settings.chars else f"{text[: settings.chars]} ..."

    def close(self) -> None:
        if self.connection is not None:
            self.connection.interrupt()
            self.connection.close()


def shown_value(value: Any) -> str:
    """A value of a row as text."""
    return f"({len(value)} bytes)" if isinstance(value, bytes) else "NULL" if value is None else str(value)


def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """SQLite's authorizer: reading is allowed, and functions that touch no file and end."""
    harmless = action in ALLOWED and not (
        action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in FORBIDDEN_FUNCTIONS
    )
    return sqlite3.SQLITE_OK if harmless else sqlite3.SQLITE_DENY


def authorize_schema(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """The authorizer of a row's script: it may fill its own database, and touches no file."""
    touches = action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA)
    named = action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in FORBIDDEN_FUNCTIONS
    return sqlite3.SQLITE_DENY if touches or named else sqlite3.SQLITE_OK


def opened(database: str, meta: Mapping[str, Any], row_id: str) -> sqlite3.Connection:
    """A connection to the row's database. Raises RowError for a row without one, or with one that cannot be
    opened."""
    path, schema = str(meta.get("database") or database), meta.get("schema")
    try:
        if schema:
            connection = sqlite3.connect(":memory:", check_same_thread=False)
            connection.set_authorizer(authorize_schema)
            end = time.monotonic() + SCHEMA_SECONDS
            connection.set_progress_handler(lambda: time.monotonic() > end, STEPS)
            connection.executescript(str(schema))
            return connection
        if not path:
            raise RowError(
                f"row {row_id!r}: environment 'sql' needs meta['schema'], meta['database'] or "
                "environment.database"
            )
        return sqlite3.connect(
            f"{Path(path).expanduser().resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise RowError(f"row {row_id!r}: its database cannot be opened: {error}") from error
