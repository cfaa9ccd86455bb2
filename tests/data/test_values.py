"""Every scalar and container through every file format and back: an answer is what the file says, and what
has to be assumed is said."""

import bz2
import csv
import datetime
import gzip
import io
import json
import logging
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from vlrl_data.record_families.answers import options_of, without_labels
from vlrl_data.text_table import as_number
from vlrl_rewards import verify

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Source

TEXTS = [
    *(
        "02139",
        "1.50",
        "1e10",
        "1234567890123456789012",
        "0x1F",
        "+7",
        "-0",
        "1_000",
        ".5",
        "5.",
        "NaN",
        "inf",
    ),
    *("true", "False", "null", "NA", "None", "N/A", "2024-05-01", "12:30", "2024-05-01T12:00:00Z", "1/2"),
    *(
        "U.S. Army",
        'say "hi"',
        "a,b;c",
        "two\nlines",
        "tab\there",
        "é ü 漢",
        "=SUM(A1)",
        "'quoted'",
        "{x}",
        "[1",
    ),
    *("a few", "7", "-3", "0.25", "100%"),
]


def zstd(data):
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    return out.getvalue().to_pybytes()


def lines(records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def table(records, delimiter=","):
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(records[0]), delimiter=delimiter)
    writer.writeheader()
    flat = [
        {k: v if isinstance(v, str) else "" if v is None else json.dumps(v) for k, v in record.items()}
        for record in records
    ]
    writer.writerows(flat)
    return out.getvalue().encode()


def arrow(records):
    sink = io.BytesIO()
    made = pa.Table.from_pylist(records)
    with pa.ipc.new_file(sink, made.schema) as writer:
        writer.write_table(made)
    return sink.getvalue()


def parquet(records):
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records), sink)
    return sink.getvalue()


WRITERS = {
    ".jsonl": lines,
    ".ndjson": lines,
    ".json": lambda records: json.dumps(records).encode(),
    ".csv": table,
    ".tsv": lambda records: table(records, "\t"),
    ".parquet": parquet,
    ".arrow": arrow,
    ".jsonl.gz": lambda records: gzip.compress(lines(records)),
    ".jsonl.bz2": lambda records: bz2.compress(lines(records)),
    ".jsonl.zst": lambda records: zstd(lines(records)),
    ".csv.gz": lambda records: gzip.compress(table(records)),
}


def read(tmp_path, suffix, records, **options):
    file = tmp_path / f"rows{suffix}"
    file.write_bytes(records if isinstance(records, bytes) else WRITERS[suffix](records))
    return build(Source, {"name": "files", "path": str(file), **options})()


@pytest.mark.parametrize("suffix", WRITERS)
def test_texts_are_what_the_file_says(tmp_path, suffix):
    """Question, answer, choices and meta, character by character; the gold's own text scores 1."""
    records = [
        {"id": f"r{i}", "problem": f"Say {text}", "answer": text, "note": text}
        for i, text in enumerate(TEXTS)
    ]
    rows = read(tmp_path, suffix, records)
    assert [row.question for row in rows] == [record["problem"] for record in records]
    assert [row.answer for row in rows] == TEXTS
    assert [str(row.meta["note"]) for row in rows] == TEXTS
    assert all(row.images == () and row.task == "default" for row in rows)
    for row in rows:
        assert verify(row.answer, f"<answer>{row.answer}</answer>", kind="exact").correct, row.answer


SCALARS = {"int": 7, "long": 12345678901234, "float": 0.1, "negative": -2.5, "bool": True, "text": "7"}
CONTAINERS = {
    "list": ["a", "b"],
    "numbers": [1, 2, 3],
    "nested": [[1, 2], [3]],
    "mapping": {"x": 1, "y": "z"},
    "list of mappings": [{"a": 1}, {"a": 2}],
}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("name", [*SCALARS, *CONTAINERS])
def test_values_keep_their_type_where_the_format_has_it(tmp_path, suffix, name):
    value = {**SCALARS, **CONTAINERS}[name]
    record = {"id": "a", "problem": "Which?", "answer": value, "note": value}
    (row,) = read(tmp_path, suffix, [record])
    if suffix.startswith((".csv", ".tsv")):  # text alone
        written = value if isinstance(value, str) else json.dumps(value)
        assert row.answer == written and row.meta["note"] == as_number(written)
    else:
        assert row.answer == value and type(row.answer) is type(value) and row.meta["note"] == value


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_types_of_tables(tmp_path, suffix):
    day = datetime.date(2024, 5, 1)
    made = pa.table(
        {
            "problem": ["?"],
            "answer": pa.array([0.1], pa.float32()),
            "half": pa.array([0.1], pa.float16()),
            "floats": pa.array([[0.1, None]], pa.list_(pa.float32())),
            "struct": pa.array([{"a": 0.3, "b": day}]).cast(
                pa.struct([("a", pa.float32()), ("b", pa.date32())])
            ),
            "decimal": pa.array([Decimal("1.50")]),
            "day": [day],
            "time": pa.array([datetime.datetime(2024, 5, 1, 12)], pa.timestamp("us")),
            "map": pa.array([[("a", 0.1)]], pa.map_(pa.string(), pa.float32())),
            "kind": pa.array(["x"]).dictionary_encode(),
            "large": pa.array([2**63], pa.uint64()),
        }
    )
    sink = io.BytesIO()
    if suffix == ".parquet":
        pq.write_table(made, sink)
    else:
        with pa.ipc.new_file(sink, made.schema) as writer:
            writer.write_table(made)
    (row,) = read(tmp_path, suffix, sink.getvalue())
    assert row.answer == 0.1
    assert row.meta == {
        "half": 0.1,
        "floats": [0.1, None],
        "struct": {"a": 0.3, "b": "2024-05-01"},
        "decimal": "1.50",
        "day": "2024-05-01",
        "time": "2024-05-01T12:00:00",
        "map": {"a": 0.1},
        "kind": "x",
        "large": 2**63,
    }


def test_hub_tables_have_the_same_values(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "problem": datasets.Value("string"),
            "answer": datasets.Value("float32"),
            "day": datasets.Value("date32"),
        }
    )
    made = datasets.Dataset.from_list(
        [{"problem": "?", "answer": 0.1, "day": datetime.date(2024, 5, 1)}], features=features
    )
    made.save_to_disk(str(tmp_path / "set"))
    (row,) = build(Source, {"name": "hub", "path": str(tmp_path / "set")})()
    assert row.answer == 0.1 and row.meta == {"day": "2024-05-01"}
    (row,) = build(Source, {"name": "records_in_memory", "records": made})()
    assert row.answer == 0.1 and row.meta["day"] == "2024-05-01"


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("-3", -3), ("0.25", 0.25), ("0", 0), ("1e+16", 1e16), *((t, t) for t in TEXTS[:12])],
)
def test_numbers_of_meta_read_back_as_their_text(text, value):
    assert as_number(text) == value and type(as_number(text)) is type(value) and str(as_number(text)) == text


# ---- broken tables and compressed files


def test_a_short_line_of_a_csv_is_a_bad_row(tmp_path):
    content = (
        b'problem,answer\nWhich?,red\nShort\nWhich?,blue,more\n\n"Two\nlines?",green\nOpen?,"never\nclosed\n'
    )
    rows = read(tmp_path, ".csv", content, max_bad=1.0)
    assert [(row.question, row.answer) for row in rows] == [("Which?", "red"), ("Two\nlines?", "green")]
    faults = [row.reason.removeprefix(str(tmp_path)) for row in rows.quarantine.rows]
    assert faults == [
        "/rows.csv:3: 1 fields, where the header has 2",
        "/rows.csv:4: 3 fields, where the header has 2",
        "/rows.csv:8: broken CSV: a quote that is never closed",
    ]
    assert rows[0].origin.endswith("rows.csv:2") and rows[1].origin.endswith("rows.csv:6")


def test_headers_of_csv(tmp_path):
    with pytest.raises(ConfigError, match="two columns are called 'answer'"):
        read(tmp_path, ".csv", b"problem,answer,answer\n?,a,b\n")
    (row,) = read(tmp_path, ".csv", b"\xef\xbb\xbfproblem,answer\r\n?,a\r\n")
    assert row.question == "?" and row.answer == "a"


def test_long_fields_and_many_rows(tmp_path):
    records = [{"problem": "x" * 200_000 + str(i), "answer": str(i)} for i in range(3)]
    assert [row.answer for row in read(tmp_path, ".csv", records)] == ["0", "1", "2"]
    many = "problem,answer\n" + "".join(f"q{i},{i:05}\n" for i in range(25_000))
    rows = read(tmp_path, ".csv", many.encode(), check_level="none")
    assert len(rows) == 25_000 and rows[24_999].answer == "24999" and rows[3].answer == "00003"


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.bz2", ".jsonl.zst"])
def test_broken_compressed_files(tmp_path, suffix):
    whole = WRITERS[suffix]([{"problem": f"Question {i}?", "answer": str(i)} for i in range(1000)])
    for content in (whole[: len(whole) // 2], b"hello"):
        with pytest.raises(ConfigError, match="rows.jsonl.*cannot be unpacked as"):
            read(tmp_path, suffix, content)


def test_a_compressed_bomb_is_refused(tmp_path, monkeypatch):
    from vlrl_data import records

    monkeypatch.setattr(records, "MAX_EXPANSION", 2)
    monkeypatch.setattr(records, "UNPACKED_ANYWAY", 1000)
    with pytest.raises(ConfigError, match="unpacks to more than"):
        read(tmp_path, ".jsonl.gz", gzip.compress(b" " * 1_000_000))


def test_rows_of_compressed_files_are_named_by_them(tmp_path):
    rows = read(tmp_path, ".jsonl.gz", [{"problem": "?", "answer": "1"}])
    assert rows[0].id == "rows-0" and rows[0].origin.endswith("rows.jsonl.gz:1")


# ---- options

OPTIONS = ("red", "blue", "U.S. green")
FORMS = {
    "list": ["red", "blue", "U.S. green"],
    "mapping": {"A": "red", "B": "blue", "C": "U.S. green"},
    "hub": {"label": ["A", "B", "C"], "text": ["red", "blue", "U.S. green"]},
    "hub without labels": {"text": ["red", "blue", "U.S. green"]},
    "mappings": [
        {"label": "A", "text": "red"},
        {"label": "B", "text": "blue"},
        {"label": "C", "text": "U.S. green"},
    ],
    "JSON list": '["red", "blue", "U.S. green"]',
    "JSON mapping": '{"A": "red", "B": "blue", "C": "U.S. green"}',
    "Python list": "['red', 'blue', 'U.S. green']",
    "lines": "red\nblue\n\nU.S. green\n",
    "one line": "(A) red (B) blue (C) U.S. green",
    "other marks": "A. red B. blue C. U.S. green",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("column", ["choices", "options"])
def test_options_in_every_form(tmp_path, form, column):
    record = {"question": "Which?", "answer": "B", column: FORMS[form], "extra": 1}
    (row,) = read(tmp_path, ".jsonl", [record])
    assert row.choices == OPTIONS and row.answer == "B" and row.meta == {"extra": 1}
    if column == "choices":
        (row,) = read(tmp_path, ".csv", [{"question": "Which?", "answer": "B", "choices": FORMS[form]}])
        assert row.choices == OPTIONS


def test_keys_of_options_stand_for_their_place(tmp_path):
    numbered = {"label": ["1", "2", "3"], "text": list(OPTIONS)}
    for answer in ("2", 2):
        (row,) = read(tmp_path, ".jsonl", [{"question": "Which?", "choices": numbered, "answer": answer}])
        assert row.answer == "B"
    (row,) = read(tmp_path, ".jsonl", [{"question": "Which?", "choices": numbered, "answerKey": "3"}])
    assert row.answer == "C"
    assert verify(row.answer, "<answer>U.S. green</answer>", kind="mcq", choices=row.choices).correct


def test_options_that_cannot_be_read(tmp_path):
    for options, reason in (
        ("red or blue", "its options are one text, 'red or blue'"),
        (5, "its options are int '5', not a list"),
        (["red", None], r"its options[1] is NoneType"),
        ([["red"], ["blue"]], r"its options[0] is list"),
    ):
        rows = read(tmp_path, ".jsonl", [{"question": "?", "answer": "x", "options": options}], max_bad=1.0)
        assert len(rows) == 0 and reason in rows.quarantine.rows[0].reason
    assert options_of(None) == options_of("") == ((), ())


def test_labels_of_options_are_taken_off_together():
    assert without_labels(["A. red", "B) blue", "(C) U.S. Army"]) == ("red", "blue", "U.S. Army")
    for kept in (["U.S. Army", "B. blue"], ["A. Smith"], ["B. x", "A. y"], []):
        assert without_labels(kept) == tuple(kept)


def test_video_r1_keeps_the_names_of_options(tmp_path):
    record = {
        "problem_id": 1,
        "problem": "Who?",
        "data_type": "image",
        "problem_type": "multiple choice",
        "path": "a.png",
        "solution": "<answer>A</answer>",
        "options": ["U.S. Army", "U.K. Navy"],
    }
    (row,) = read(tmp_path, ".jsonl", [record], check_level="rows")
    assert row.choices == ("U.S. Army", "U.K. Navy")


def test_an_answer_beyond_the_choices(tmp_path):
    good = {"id": "a", "question": "?", "answer": "B", "choices": ["red", "blue"]}
    rows = read(tmp_path, ".jsonl", [good, good | {"id": "b", "answer": "Q"}], max_bad=1.0)
    assert [row.id for row in rows] == ["a"]
    assert (
        "its answer 'Q' is none of its 2 choices (A to B, or their texts)" in rows.quarantine.rows[0].reason
    )
    named = good | {"id": "c", "answer": "x", "choices": ["X", "Y"]}
    assert len(read(tmp_path, ".jsonl", [named, good])) == 2


# ---- what is assumed, and what is not


def test_four_numbers_are_a_box_of_rows_with_media_alone(tmp_path, caplog):
    sums = [{"problem": "Sort 4, 2, 3, 1", "answer": answer} for answer in ("[1, 2, 3, 4]", [1, 2, 3, 4])]
    rows = read(tmp_path, ".jsonl", sums)
    assert [row.answer for row in rows] == ["[1, 2, 3, 4]", [1, 2, 3, 4]]
    assert {row.task for row in rows} == {"default"}
    seen = [
        {"problem": "Where?", "answer": answer, "images": ["a.png"]}
        for answer in ("[1, 2, 3, 4]", "[4, 2, 3, 1]")
    ]
    with caplog.at_level(logging.WARNING):
        rows = read(tmp_path, ".jsonl", seen, check_level="rows")
    assert [row.answer for row in rows] == [[1, 2, 3, 4], "[4, 2, 3, 1]"]
    assert [row.task for row in rows] == ["grounding", "default"]
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == [
        "rows: assumed for 1 rows: four numbers as the answer of a row with media are a box [x1, y1, x2, y2] "
        "in pixels"
    ]


def test_a_context_stands_before_its_question(tmp_path, caplog):
    record = {"question": "Who?", "answer": "Ann", "context": "Ann came."}
    with caplog.at_level(logging.WARNING):
        (row,) = read(tmp_path, ".jsonl", [record])
    assert row.question == "Ann came.\n\nWho?" and row.meta == {} and "`context` stands before" in caplog.text
    (row,) = read(tmp_path, ".jsonl", [record], fields={"context": "note"})
    assert row.question == "Who?" and row.meta == {"note": "Ann came."}
    (row,) = read(
        tmp_path, ".jsonl", [{"question": "Ann came. Who?", "answer": "Ann", "context": "Ann came."}]
    )
    assert row.question == "Ann came. Who?"
    (row,) = read(tmp_path, ".jsonl", [record | {"context": ["Ann came."]}])
    assert row.question == "Who?" and row.meta == {"context": ["Ann came."]}


def test_fields_name_columns_of_a_row(tmp_path):
    record = {
        "problem": "Which?",
        "answer": "B",
        "variants": {"A": "red", "B": "blue"},
        "setting": "Be brief.",
    }
    (row,) = read(tmp_path, ".jsonl", [record], fields={"variants": "choices", "setting": "system"})
    assert row.choices == ("red", "blue") and row.system == "Be brief." and row.meta == {}


def test_fields_name_nested_columns_by_their_path(tmp_path):
    record = {"pos": {"question": "Is it so?", "truth": "proved"}, "info": {"task": "theorem", "level": 3}}
    fields = {"pos.question": "question", "pos.truth": "answer", "info.task": "task"}
    (row,) = read(tmp_path, ".jsonl", [record], format="qa", fields=fields)
    assert (row.question, row.answer, row.task) == ("Is it so?", "proved", "theorem")
    assert row.meta == record, "the columns themselves stay"
    dotted = {"a.b": "Who?", "answer": "Ann"}
    (row,) = read(tmp_path, ".jsonl", [dotted], fields={"a.b": "question"})
    assert row.question == "Who?"
    with pytest.raises(ConfigError, match=r"no record of rows has the field 'pos\.gone'"):
        read(tmp_path, ".jsonl", [record], format="qa", fields=fields | {"pos.gone": "system"})


@pytest.mark.parametrize(
    ("units", "box", "pixels"),
    [
        ("auto", [10, 20, 30, 40], [10, 20, 30, 40]),
        ("original", [10, 20, 30, 40], [10, 20, 30, 40]),
        ("per_mille", [100, 200, 500, 800], [20, 10, 100, 40]),
        ("unit", [0.1, 0.2, 0.5, 0.8], [20, 10, 100, 40]),
    ],
)
def test_units_are_those_of_the_records_boxes(tmp_path, units, box, pixels):
    """A picture of 200 x 50."""
    Image.new("RGB", (200, 50)).save(tmp_path / "a.png")
    record = {"question": "Where?", "answer": box, "images": ["a.png"]}
    (row,) = read(tmp_path, ".jsonl", [record], task="grounding", units=units)
    assert row.answer == pytest.approx(pixels)


def test_an_id_is_a_text_or_a_number(tmp_path):
    records = [{"id": own, "problem": "?", "answer": "1"} for own in ("a", 7, None, {"x": 1}, ["b"], True)]
    rows = read(tmp_path, ".jsonl", records, max_bad=1.0)
    assert [row.id for row in rows] == ["a", "rows-7", "rows-2"]
    assert [row.reason for row in rows.quarantine.rows] == [
        "its id is dict \"{'x': 1}\", not text or a number",
        "its id is list \"['b']\", not text or a number",
        "its id is bool 'True', not text or a number",
    ]


def test_a_few_is_no_number(tmp_path):
    record = {"id": "a", "question": "How many?", "answer": "a few", "task": "numerical"}
    rows = read(tmp_path, ".jsonl", [record, record | {"id": "b", "answer": "seven"}], max_bad=1.0)
    assert [row.id for row in rows] == ["b"] and "needs one number" in rows.quarantine.rows[0].reason


def test_pages_of_parquet_are_verified(tmp_path):
    file = tmp_path / "a.parquet"
    made = pa.table({"problem": ["Which colour?"] * 50, "answer": [f"value {i}" for i in range(50)]})
    pq.write_table(made, file, write_page_checksum=True, compression="none", use_dictionary=False)
    data = file.read_bytes()
    file.write_bytes(data.replace(b"value 7", b"value 8", 1))
    with pytest.raises(ConfigError, match=r"CRC|checksum|cannot be read"):
        build(Source, {"name": "files", "path": str(file)})()
