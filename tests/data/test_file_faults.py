"""Files that are cut short, of another encoding or of no reader: the fault is named, and good records are
used."""

import json
import os

import pytest
from PIL import Image
from row_faults_kit import (
    DEEP,
    GOOD,
    own_cache,  # noqa: F401 - every test has a cache of its own
    png,
    read,
    reason_of,
)
from typer.testing import CliRunner
from vlrl_data.cli import app

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Source


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (DEEP, "nested too deeply"),
        ('{"id": "b", "question": "?", "answer": ' + DEEP + "}", "nested too deeply"),
        (
            '{"id": "b", "question": "?", "answer": ' + "9" * 5000 + "}",
            "an integer of more digits than Python parses",
        ),
        ('{"id": "b", "question": "?", "answer": "x"', "column 43, where it ends: it is cut short"),
        ('{"id": "b", "question": "wh', "broken JSON: Unterminated string"),
    ],
    ids=["deep", "deep answer", "digits", "cut", "cut text"],
)
def test_records_that_cannot_be_parsed(tmp_path, line, reason):
    assert reason in reason_of(tmp_path, line)


def test_bytes_that_are_not_utf8(tmp_path):
    good = json.dumps(GOOD).encode()
    (tmp_path / "a.jsonl").write_bytes(good + b'\n{"id": "b", "question": "caf\xe9?", "answer": "x"}\n')
    rows = read(tmp_path / "a.jsonl")
    assert (
        len(rows) == 1
        and "not UTF-8: byte 0xE9 at byte 29 (Latin-1 reads it as 'é')" in rows.quarantine.rows[0].reason
    )
    (tmp_path / "a.csv").write_bytes(b"question,answer\nWhich?,red\nWhich caf\xe9?,blue\n")
    rows = read(tmp_path / "a.csv")
    assert [row.answer for row in rows] == ["red"] and "not UTF-8: byte 0xE9" in rows.quarantine.rows[
        0
    ].reason
    (tmp_path / "metadata.csv").write_bytes(
        b"file_name,question,answer\na.png,Which?,red\nb.png,Which caf\xe9?,blue\n"
    )
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    rows = build(Source, {"name": "folder", "path": str(tmp_path), "max_bad": 1.0})()
    assert [row.answer for row in rows] == [
        "red"
    ] and "metadata.csv:3: not UTF-8: byte 0xE9" in rows.quarantine.rows[0].reason


def test_parquet_with_broken_text(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    broken = pa.array([b"Which?", b"caf\xe9?"], pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"question": broken, "answer": ["red", "blue"]}), tmp_path / "a.parquet")
    rows = read(tmp_path / "a.parquet")
    assert [row.answer for row in rows] == ["red"] and "not UTF-8" in rows.quarantine.rows[0].reason


TEXT = "\n".join(
    json.dumps(GOOD | {"id": str(i), "question": "Où est le café?"}, ensure_ascii=False) for i in range(30)
)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", TEXT.encode("utf-16"), "UTF-16 text; convert it to UTF-8"),
        ("a.jsonl", TEXT.encode("utf-16-le"), "UTF-16 text; convert it to UTF-8"),
        ("a.jsonl", TEXT.encode("utf-32"), "UTF-32 text; convert it to UTF-8"),
        ("a.csv", "question,answer\n?,x\n".encode("utf-16"), "UTF-16 text; convert it to UTF-8"),
        (
            "a.jsonl",
            TEXT.encode("latin-1"),
            "none of 30 records can be read; the first: .*not UTF-8: byte 0xF9 .*Latin-1 reads it as 'ù'",
        ),
        (
            "a.csv",
            "question,answer\ncafé,x\n".encode("latin-1"),
            "none of 1 records can be read; the first: .*not UTF-8: byte 0xE9",
        ),
        ("a.json", ("[" + ",".join(TEXT.split("\n")) + "]").encode("latin-1"), "not UTF-8: byte 0xF9"),
        ("a.json", ("[" + ",".join(TEXT.split("\n")))[:-30].encode(), "cut short|Unterminated"),
        ("a.json", ("[" + ",".join(TEXT.split("\n"))).encode(), "where it ends: it is cut short"),
        ("a.json", DEEP.encode(), "nested too deeply"),
        ("a.parquet", b"PAR1" + b"\0" * 50, "cut short"),
        ("a.arrow", b"ARROW1" + b"\0" * 50, "cut short"),
        ("a.tar", b"\0" * 100, "cut short"),
        ("a.jsonl", b"\n \n", "none of 0 records can be read"),
    ],
    ids=range(14),
)
def test_whole_files_name_their_fault(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        build(Source, {"name": "webdataset" if name == "a.tar" else "files", "path": str(tmp_path / name)})()


def test_a_tar_that_is_cut_short(tmp_path):
    import io
    import tarfile

    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for stem in "ab":
            content = json.dumps({"question": "?" * 3000, "answer": "x"}).encode()
            info = tarfile.TarInfo(f"{stem}.json")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    whole = (tmp_path / "a.tar").read_bytes()
    for end in (200, 4000, 5000):
        (tmp_path / "b.tar").write_bytes(whole[:end])
        try:
            rows = build(Source, {"name": "webdataset", "path": str(tmp_path / "b.tar"), "max_bad": 1.0})()
        except ConfigError as error:
            assert "cut short" in str(error)
        else:
            assert all("cut short" in row.reason for row in rows.quarantine.rows)


def test_folders_that_cannot_be_read(tmp_path, monkeypatch):
    png(tmp_path / "media")
    (tmp_path / "rows.jsonl").write_text(
        json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"id": "b", "images": ["media/a.png"]})
    )

    def forbidden(path, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(path))

    real_stat = os.stat
    monkeypatch.setattr(
        os,
        "stat",
        lambda path, *args, **kwargs: (forbidden if "media" in str(path) else real_stat)(
            path, *args, **kwargs
        ),
    )
    rows = read(tmp_path / "rows.jsonl")
    assert len(rows) == 1 and "Permission denied" in rows.quarantine.rows[0].reason
    monkeypatch.setattr("os.listdir", forbidden)
    monkeypatch.setattr("os.scandir", forbidden)
    for name in ("files", "folder"):
        with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
            build(Source, {"name": name, "path": str(tmp_path)})()
    result = CliRunner().invoke(app, ["check", str(tmp_path)])
    assert isinstance(result.exception, ConfigError) and "cannot be read: Permission denied" in str(
        result.exception
    )
