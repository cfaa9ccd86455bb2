"""Rows and files with a fault, beside a good row."""

import json

import pytest
from PIL import Image

from vlrl.plugins.registry import build
from vlrl.plugins.stages import Source

GOOD = {"id": "good", "question": "How many?", "answer": "3"}
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VLRL_CACHE", str(tmp_path / "cache"))


def read(path, **options):
    return build(Source, {"name": "files", "path": str(path), "max_bad": 1.0, **options})()


def reason_of(tmp_path, record, **options):
    """The reason for a record beside a good one, which must be used."""
    text = record if isinstance(record, str) else json.dumps(record)
    (tmp_path / "rows.jsonl").write_text(json.dumps(GOOD) + "\n" + text + "\n")
    rows = read(tmp_path / "rows.jsonl", **options)
    assert [row.id for row in rows] == ["good"]
    assert rows.quarantine.rows[0].location.endswith("rows.jsonl:2")
    return rows.quarantine.rows[0].reason


def png(tmp_path, name="a.png"):
    tmp_path.mkdir(parents=True, exist_ok=True)
    Image.effect_noise((40, 40), 60).convert("RGB").save(tmp_path / name)
    return (tmp_path / name).read_bytes()
