"""Passages by title: what a row's titles bring, and mistakes in one line."""

from __future__ import annotations

import sqlite3

import pytest

from vlrl.beside.knowledge import SEPARATOR, Knowledge
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Select
from vlrl.types import Row


@pytest.fixture
def base(tmp_path):
    file = tmp_path / "base.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE documents (title PRIMARY KEY, text)")
        rows = [("Ada", f"<s>She wrote.</s>{SEPARATOR}She counted."), ("Ada; Bob", "Both."), ("Empty", "")]
        database.executemany("INSERT INTO documents VALUES (?, ?)", rows)
    database.close()
    return str(file)


def test_passages_by_title(base):
    known = Knowledge.of(base)
    assert known.passages("Ada") == ["She wrote.", "She counted."]
    assert known.passages("Empty") == known.passages("Bob'; DROP TABLE documents") == []
    assert Knowledge.of(base) is known


def test_a_rows_titles_bring_their_passages(base):
    select = build(Select, {"name": "knowrl.passages", "knowledge": base})
    rows = [
        Row("a", "Who?", "Ada", meta={"title": "Ada;Nobody; Ada "}),
        Row("b", "?", "x", meta={"title": ""}),
    ]
    first, second = select(rows)
    assert first.meta["knowledge"] == ["Ada: She wrote.", "Ada: She counted."] * 2 and first.answer == "Ada"
    assert second.meta["knowledge"] == [] and "knowledge" not in rows[0].meta
    with pytest.raises(ValueError, match=r"row 'c': meta.title is None"):
        list(select([Row("c", "?", "x")]))


def test_mistakes(tmp_path):
    with pytest.raises(ConfigError, match="knowledge is not set"):
        build(Select, {"name": "knowrl.passages"})([])
    with pytest.raises(ConfigError, match="no file"):
        Knowledge.of(str(tmp_path / "none.db"))
    (tmp_path / "text.db").write_text("not a database, but some text that is longer than a header of one")
    with pytest.raises(ConfigError, match="no knowledge base .*documents"):
        Knowledge.of(str(tmp_path / "text.db"))
    sqlite3.connect(tmp_path / "empty.db").close()
    with pytest.raises(ConfigError, match="no such table"):
        (tmp_path / "empty.db").touch()
        Knowledge.of(str(tmp_path / "empty.db"))
    with pytest.raises(ConfigError, match="separator is empty"):
        build(Select, {"name": "knowrl.passages", "separator": ""})
