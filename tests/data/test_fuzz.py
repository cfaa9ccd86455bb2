"""Any record becomes a row or a RowError, any file rows or a ConfigError: no other error is raised."""

import random
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from vlrl_data.media.parse import MediaSettings, Web, parse_image, parse_video
from vlrl_data.record_families import FAMILIES, by_name, recognise
from vlrl_data.record_families.answers import parse_answer
from vlrl_data.row_builder import RowBuilder, RowOptions
from vlrl_data.tools.duplicates import ngrams
from vlrl_data.tools.preview import marks_of
from vlrl_data.validation import validate_row

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Source
from vlrl.types import MediaError, Row, RowError

PLACE = MediaSettings(("/no/such/folder",), web=Web(enabled=False))
FIELDS = sorted(set().union(*(family.known for family in FAMILIES.values())))
TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "<image>",
            "<answer>1</answer>",
            "[1,2,3,4]",
            "<img>a</img>",
            "data:image/png;base64,xx",
            "\x80",
            "http://x/y",
        ]
    ),
)
KEYS = ["role", "content", "type", "text", "image", "from", "value", "bytes", "path", "url", "bbox"]
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(), TEXT, st.binary(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "image", "from", "value", "bytes", "path", "url", "bbox"]
            ),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(FAMILIES))
@settings(max_examples=60, deadline=None)
@given(record=st.dictionaries(st.sampled_from(FIELDS), PLAIN, max_size=7))
def test_any_record(name, record):
    builder = RowBuilder(by_name(name), PLACE, RowOptions(answers="optional"), "s")
    try:
        row = builder(record, 0)
    except RowError as error:
        assert str(error)
    else:
        assert isinstance(row, Row) and isinstance(row.question, str) and row.id


@settings(max_examples=100, deadline=None)
@given(record=st.dictionaries(st.sampled_from(FIELDS), PLAIN, max_size=5))
def test_recognition(record):
    try:
        family, why = recognise(record)
    except ConfigError as error:
        assert "no record family" in str(error)
    else:
        assert why and family.name


@settings(max_examples=100, deadline=None)
@given(value=PLAIN)
def test_media_columns(value):
    for read in (parse_image, parse_video):
        try:
            assert read(value, PLACE).kind in ("image", "video")
        except MediaError as error:
            assert str(error)


@settings(max_examples=100, deadline=None)
@given(value=PLAIN)
def test_answers_marks_and_words(value):
    answer = parse_answer(value)
    assert isinstance(marks_of(answer), list)
    assert all(ngrams(str(value), n) is not None for n in (1, 3))


FIXTURES = Path(__file__).parents[2] / "data" / "fixtures"
FILES = sorted(
    file for file in FIXTURES.iterdir() if file.suffix in (".jsonl", ".json", ".csv", ".parquet", ".tar")
)
INSERTED = [
    *(
        b'"',
        b"[",
        b"{",
        b"}",
        b"]",
        b"null",
        b"5",
        b"[]",
        b"{}",
        b"true",
        b"1e999",
        b"NaN",
        b'""',
        b"-1",
        b"[[1,2,3,4]]",
    ),
    *(
        b"\xff",
        b"\xed\xa0\x80",
        b"\\ud800",
        b"\x00",
        b"9" * 4400,
        b"../../../../etc/passwd",
        b"http://[",
        b"data:",
        b"<image>",
        b'"' + b"A" * 300 + b'"',
    ),
]


def mutated(content, rng):
    data = bytearray(content)
    for _ in range(rng.randint(1, 5)):
        place, kind = rng.randrange(len(data) + 1), rng.random()
        if kind < 0.6:
            data[place : place + rng.choice([0, rng.randint(1, 12)])] = rng.choice(INSERTED)
        elif kind < 0.8:
            data[place : place + 1] = bytes([rng.randrange(256)])
        elif kind < 0.9:
            del data[place : place + rng.randint(1, 40)]
        else:
            del data[max(1, place) :]
    return bytes(data)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_mutated_files(file, tmp_path, monkeypatch):
    monkeypatch.setenv("VLRL_CACHE", str(tmp_path / "cache"))
    rng = random.Random(file.name)
    copy = tmp_path / file.name
    for _ in range(40):
        copy.write_bytes(mutated(file.read_bytes(), rng))
        spec = {
            "name": "webdataset" if file.suffix == ".tar" else "files",
            "path": str(copy),
            "max_bad": 1.0,
            "web": {"enabled": False},
        }
        try:
            rows = build(Source, spec)()
        except ConfigError as error:
            assert (
                file.name in str(error)
                or "no record family" in str(error)
                or "a record must be" in str(error)
            )
        else:
            assert all(row.reason for row in rows.quarantine.rows)
            for row in rows:
                validate_row(row)
