"""Some 600 hostile data files: encodings, line ends, JSON, options, CSV, ids; `hostile_containers` has those
that are no text.

`python tests/data/hostile_files.py` reads them all and prints a line for each that is read wrongly."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hostile_containers import arrow_types, broken_containers, pictures
from hostile_kit import REFUSED, Case, lines, outcome, same, table, texts


def encodings() -> Iterator[Case]:
    records, rows = texts()
    written = {
        ".jsonl": lines(records), ".json": json.dumps(records, ensure_ascii=False), ".csv": table(records),
        ".tsv": table(records, "\t"), ".ndjson": lines(records, "\r\n"),
    }  # fmt: skip
    plain = [{**record, "problem": f"Say {i}", "answer": "café"} for i, record in enumerate(records)]
    narrow = {".jsonl": lines(plain), ".csv": table(plain), ".tsv": table(plain, "\t")}
    for suffix, text in written.items():
        for coding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"):
            yield Case(f"{coding} {suffix}", suffix, text.encode(coding), rows)
    for suffix, text in narrow.items():
        for coding in ("latin-1", "cp1252", "cp437", "cp1250", "mac-roman"):
            yield Case(f"{coding} {suffix}", suffix, text.encode(coding), [REFUSED] * len(plain))
    for coding in ("gbk", "shift-jis", "euc-kr", "big5"):
        text = lines([{"problem": "漢字?" if coding != "euc-kr" else "한글?", "answer": "1"}])
        yield Case(f"{coding} .jsonl", ".jsonl", text.encode(coding), [REFUSED])


def line_ends() -> Iterator[Case]:
    made = {
        "line separator": "\u2028", "next line": "\x85", "vertical tab": "\x0b", "form feed": "\x0c",
        "null": "\0", "no-break space": "\xa0", "zero width": "\u200b", "carriage return": "\r",
        "newline": "\n", "escape": "\x1b", "delete": "\x7f", "byte order mark": "\ufeff",
    }  # fmt: skip
    for name, mark in made.items():
        said = {"question": f"a{mark}b?", "answer": f"x{mark}y"}
        record = {"problem": said["question"], "answer": said["answer"]}
        for suffix in (".jsonl", ".json", ".csv", ".tsv"):
            text = (
                lines([record, record]) if suffix == ".jsonl"
                else json.dumps([record, record], ensure_ascii=False) if suffix == ".json"
                else table([record, record], "\t" if suffix == ".tsv" else ",")
            )  # fmt: skip
            yield Case(f"{name} in {suffix}", suffix, text.encode(), [said, said])
    records, rows = texts()
    made = {
        "blank lines": "\n\n" + lines(records, "\n\n \n"), "no last line end": lines(records).rstrip("\n"),
        "carriage returns": lines(records, "\r\n"), "spaces": lines(records).replace("\n", "  \n  "),
    }  # fmt: skip
    for name, text in made.items():
        yield Case(name, ".jsonl", text.encode(), rows)
    yield Case("old Mac line ends", ".csv", table(records, end="\r").encode(), rows)
    yield Case("old Mac line ends of JSON", ".jsonl", lines(records, "\r").encode(), rows)


def json_values() -> Iterator[Case]:
    made = {
        "7": 7, "-0": 0, "0.1": 0.1, "1e3": 1000.0, "1234567890123456789012": 1234567890123456789012,
        "3.141592653589793238462643": 3.141592653589793, "1e400": REFUSED, "-1e400": REFUSED, "NaN": REFUSED,
        "Infinity": REFUSED, "1" * 5000: REFUSED, "0.1000000000000000055511151231257827": 0.1,
        "0x1F": REFUSED, "+7": REFUSED, "02139": REFUSED,
        "true": True, "null": REFUSED, '""': REFUSED, '" "': REFUSED, "{}": REFUSED,
        '"02139"': "02139", '"1.50"': "1.50", '"1e10"': "1e10", '"true"': "true", '"null"': "null",
        '"\\ud83d\\ude00"': "😀", '"\\ud800"': REFUSED, '"\\u0041"': "A", '"a few"': "a few",
        "[1, 2, 3]": [1, 2, 3], "[[1], [2, 3]]": [[1], [2, 3]], '{"a": {"b": [1]}}': {"a": {"b": [1]}},
        '{"a": 1, "a": 2}': REFUSED, '[{"a": 1, "a": 2}]': REFUSED, "'single'": REFUSED, "undefined": REFUSED,
        "[1, 2,]": REFUSED, "1_000": REFUSED, ".5": REFUSED, "5.": REFUSED, "True": REFUSED,
        '"a" // note': REFUSED, '"a" "b"': REFUSED, "[" * 5000 + "]" * 5000: REFUSED,
    }  # fmt: skip
    for text, answer in made.items():
        said = REFUSED if same(answer, REFUSED) else {"question": "?", "answer": answer}
        record = f'{{"problem": "?", "answer": {text}}}'
        good = {"question": "1?", "answer": "1"}
        content = f'{{"problem": "1?", "answer": "1"}}\n{record}\n'
        yield Case(f"JSON {text[:40]}", ".jsonl", content.encode(), [good, said])
    twice = '{"problem": "a?", "answer": "1", "answer": "2"}\n'
    yield Case("a field twice", ".jsonl", twice.encode() * 2, [REFUSED] * 2)
    yield Case("a field twice in a list", ".json", f"[{twice}]".encode(), [REFUSED])
    yield Case("two objects in a line", ".jsonl", (twice.strip() + twice).encode(), [REFUSED])
    one = {"question": "?", "answer": "B", "choices": ["a", "b"]}
    said = {"question": "?", "answer": "B", "choices": ("a", "b")}
    yield Case("one object", ".json", json.dumps(one).encode(), [said])
    yield Case("a list under a name", ".json", json.dumps({"version": 2, "data": [one]}).encode(), [said])
    yield Case("two lists", ".json", json.dumps({"a": [one], "b": [one]}).encode(), [REFUSED])
    yield Case("lists by split", ".json", json.dumps({"train": [one], "test": [one]}).encode(), [REFUSED])
    yield Case("JSON lines as .json", ".json", lines([one, one]).encode(), [said, said])
    yield Case("objects by id", ".json", json.dumps({"x1": one, "x2": one}).encode(), [REFUSED])


def options() -> Iterator[Case]:
    forms: dict[str, Any] = {
        "list": ["red", "blue", "tan"], "mapping": {"A": "red", "B": "blue", "C": "tan"},
        "hub": {"label": ["A", "B", "C"], "text": ["red", "blue", "tan"]},
        "hub by number": {"label": ["1", "2", "3"], "text": ["red", "blue", "tan"]},
        "pairs": [dict(label="A", text="red"), dict(label="B", text="blue"), dict(label="C", text="tan")],
        "JSON": '["red", "blue", "tan"]', "JSON mapping": '{"A": "red", "B": "blue", "C": "tan"}',
        "Python": "['red', 'blue', 'tan']", "tuple": "('red', 'blue', 'tan')", "lines": "red\nblue\ntan",
        "marks": "A. red B. blue C. tan", "brackets": "(A) red (B) blue (C) tan",
        "marked lines": "A. red\nB. blue\nC. tan", "marked list": ["A. red", "B. blue", "C. tan"],
        "small letters": {"a": "red", "b": "blue", "c": "tan"}, "words": "red blue tan",
        "commas": "red, blue, tan", "semicolons": "red; blue; tan", "slashes": "red / blue / tan",
        "one": ["red"], "a number": 3, "true": True, "nested": [["red"], ["blue"]], "a gap": ["red", None],
        "empty texts": ["", ""], "twice": ["red", "red", "blue"], "numbers": [1, 2, 3], "out of order":
        {"B": "blue", "A": "red", "C": "tan"}, "mapping by number": {"0": "red", "1": "blue", "2": "tan"},
        "mapping by place": {"1": "red", "2": "blue", "3": "tan"},
    }  # fmt: skip
    read = ("red", "blue", "tan")
    marked = ("A. red", "B. blue", "C. tan")
    texts = {"numbers": ("1", "2", "3"), "twice": ("red", "red", "blue"), "marked lines": marked,
        "marked list": marked,
    }  # fmt: skip
    refused = {"one", "words", "commas", "semicolons", "slashes", "a number", "true", "nested", "a gap",
        "empty texts",
    }  # fmt: skip
    for name, value in forms.items():
        record = {"question": "Which?", "answer": "B", "choices": value}
        said: Any = {"question": "Which?", "answer": "B", "choices": texts.get(name, read)}
        if name == "out of order":
            said = {"question": "Which?", "answer": "A", "choices": ("blue", "red", "tan")}
        if name in refused:
            said = REFUSED
        yield Case(f"options {name}", ".jsonl", lines([record, record]).encode(), [said, said])
        flat = {**record, "choices": value if isinstance(value, str) else json.dumps(value)}
        if name not in texts and name != "out of order":
            yield Case(f"options {name} in CSV", ".csv", table([flat, flat]).encode(), [said, said])
    for answer, letter in (
        ("C", "C"),
        ("tan", "tan"),
        ("Q", REFUSED),
        (7, REFUSED),
        ("", REFUSED),
        ("D", REFUSED),
    ):
        record = {"question": "Which?", "answer": answer, "choices": ["red", "blue", "tan"]}
        said = REFUSED if letter == REFUSED else {"question": "Which?", "answer": letter, "choices": read}
        yield Case(f"option {answer!r}", ".jsonl", lines([record]).encode(), [said])
    for name in ("choices", "options"):  # a family that reads none: they stay in `meta`, and that is said
        record = {"problem": "Which?", "answer": "B", name: ["red", "blue"]}
        said = {"question": "Which?", "answer": "B", "choices": ("red", "blue")}
        yield Case(f"{name} of another family", ".jsonl", lines([record]).encode(), [said])
    for key in ("b", "2"):
        mapping = dict(zip("abc" if key == "b" else "123", read, strict=True))
        record = {"question": "Which?", "answer": key, "choices": mapping}
        said = {"question": "Which?", "answer": "B", "choices": read}
        yield Case(f"the key {key} of an option", ".jsonl", lines([record]).encode(), [said])


def tables() -> Iterator[Case]:
    head, row = "problem,answer\n", {"question": "Which?", "answer": "red"}
    written = (
                 "02139", "1.50", "1e10", "12345678901234567890123", "2024-05-01", "12:30", "TRUE", "NA",
                 "N/A", "null", "None", "nan", "inf", "0x1F", "1_000", "1/2", "-0", "+7", " red", "red ",
                 "=SUM(A1)", "#REF!", "$5", "50%", "(3)", "'quoted'", "a;b", "a\tb", "\\n", "[1", "{x}",
                 "U.S.",
    )  # fmt: skip
    for text in written:
        said = {"question": "Which?", "answer": text.strip()}
        record = {"problem": "Which?", "answer": text, "note": text}
        for suffix, mark in ((".csv", ","), (".tsv", "\t")):
            yield Case(f"{suffix} {text}", suffix, table([record, record], mark).encode(), [said, said])
    two = {"question": "Which?", "answer": "1,234"}
    made = (
        ("a short line", head + "Which?,red\nShort\nWhich?,red\n", [row, REFUSED, row]),
        ("a long line", head + "Which?,red\nWhich?,red,more\n", [row, REFUSED]),
        ("a comma too many", "problem,answer,\nWhich?,red,\n", [row]),
        ("every line ends in a comma", head + "Which?,red,\nWhich?,red,\n", [REFUSED, REFUSED]),
        ("semicolons", "problem;answer\nWhich?;red\n", [REFUSED]),
        ("semicolons with a comma", "problem;answer\nWhich, or what?;red\n", [REFUSED]),
        ("tabs", "problem\tanswer\nWhich?\tred\n", [REFUSED]),
        ("bars", "problem|answer\nWhich?|red\n", [REFUSED]),
        ("spaces behind commas", 'problem, answer\nWhich?, "red"\n', [REFUSED]),
        ("quotes", head + '"Which?","1,234"\n', [two]),
        ("a quote in a field", head + 'Which?,re"d\n', [{**row, "answer": 're"d'}]),
        ("text behind a quote", head + 'Which?,"re"d\n', [REFUSED]),
        ("backslash quotes", head + '"Say \\"x\\"?",red\n', [REFUSED]),
        ("an open quote", head + 'Which?,red\nWhich?,"red\nWhich?,red\n', [row, REFUSED]),
        ("a line break in quotes", head + '"Two\nlines?",red\n', [{**row, "question": "Two\nlines?"}]),
        ("no header", "Which?,red\nWhat?,blue\n", [REFUSED]),
        ("a header alone", head, []),
        ("a header twice", head + head + "Which?,red\n", [{"question": "problem", "answer": "answer"}, row]),
        ("a column twice", "problem,answer,answer\nWhich?,red,blue\n", [REFUSED]),
        ("an index", ",problem,answer\n0,Which?,red\n", [row]),
        ("a capital header", "Problem,Answer\nWhich?,red\n", [REFUSED]),
        ("a header with spaces", "problem , answer\nWhich?,red\n", [REFUSED]),
        ("Excel's first line", "sep=;\nproblem;answer\nWhich?;red\n", [REFUSED]),
        ("a comment", "# made by hand\nproblem,answer\nWhich?,red\n", [REFUSED]),
        ("an empty answer", head + "Which?,\nWhich?,red\n", [REFUSED, row]),
        ("an Excel formula", head + 'Which?,"=""02139"""\n', [{**row, "answer": '="02139"'}]),
        ("ids", "id,problem,answer\n007,Which?,red\n7,Which?,red\n", [row | {"id": "rows-007"}, row]),
        ("ids twice", "id,problem,answer\n7,Which?,red\n7,What?,blue\n", [row, REFUSED]),
        ("a null byte", head + "Which?,r\0ed\n", [{**row, "answer": "r\0ed"}]),
        ("a smart quote", head + "“Which?”,red\n", [{**row, "question": "“Which?”"}]),
    )  # fmt: skip
    for name, content, rows in made:
        yield Case(name, ".csv", content.encode(), list(rows))


def identities() -> Iterator[Case]:
    made = (
        ("equal", "a", "a", REFUSED), ("a number and its text", 7, "7", REFUSED),
        ("a mapping", "a", {"x": 1}, REFUSED),
        ("a list", "a", [1], REFUSED), ("true", "a", True, REFUSED), ("a float", "a", 1.0, {"answer": "2"}),
        ("null", "a", None, {"answer": "2"}), ("an empty text", "a", "", {"answer": "2"}),
        ("accents of two spellings", "é", "e\u0301", {"answer": "2"}), 
        ("a space", "a", "a ", {"answer": "2"}),
        ("a path", "a", "../b", {"answer": "2"}), ("a line break", "a", "b\nc", {"answer": "2"}),
    )  # fmt: skip
    for name, first, second, said in made:
        records = [
            {"id": first, "problem": "1?", "answer": "1"},
            {"id": second, "problem": "2?", "answer": "2"},
        ]
        yield Case(f"id {name}", ".jsonl", lines(records).encode(), [{"answer": "1"}, said])
    for extra in ("rewards", "weight", "system", "target", "images", "videos", "meta", "task"):
        for value in ({"x": [1]}, [[1]], 3.5, True):
            record = {"problem": "?", "answer": "1", extra: value}
            said = {"question": "?", "answer": "1", "meta": {extra: value}}
            yield Case(f"{extra} as {value!r}", ".jsonl", lines([record]).encode(), [said])


MAKERS = (
    encodings, line_ends, json_values, options, tables, arrow_types, broken_containers, identities, pictures,
)  # fmt: skip


def cases() -> list[Case]:
    """All files."""
    return [case for make in MAKERS for case in make()]


if __name__ == "__main__":
    found, every = 0, cases()
    with tempfile.TemporaryDirectory() as root:
        for number, each in enumerate(every):
            faults = outcome(each, Path(root, str(number)))
            found += bool(faults)
            sys.stdout.writelines(f"{each.name}: {fault}\n" for fault in faults[:2])
    sys.stdout.write(f"{len(every)} files, {found} read wrongly\n")
