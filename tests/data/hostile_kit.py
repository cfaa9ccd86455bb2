"""A hostile data file with what it says, and what is wrong with how it is read."""

from __future__ import annotations

import csv
import io
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Source

REFUSED = "refused"  # a row that must not be used, whatever the reason
WORDS = ("é ü ñ", "漢字", "naïve café €5", "😀 ok", "Ω≈ç√", "مرحبا", "plain")


@dataclass(frozen=True)
class Case:
    """A file, and for each of its records the fields of the row that it says, or REFUSED.

    `whole`: the file may as well be refused as a whole. `media`: files beside it."""

    name: str
    suffix: str
    content: bytes
    rows: list[Any]
    whole: bool = True
    media: dict[str, bytes] = field(default_factory=dict)


def outcome(case: Case, folder: Path) -> list[str]:
    """What is wrong with how a file is read: rows with other values than the file's that no notice tells."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in case.media.items():
        (folder / name).write_bytes(content)
    path = folder / f"rows{case.suffix}"
    path.write_bytes(case.content)
    heard = _Heard()
    logger = logging.getLogger("vlrl.data")
    logger.addHandler(heard)
    try:
        made = {"name": "files", "path": str(path), "max_bad": 1.0, "check_level": "decode", "workers": 1}
        rows = build(Source, made).read()
        found = {row.id: row for row in (rows[i] for i in range(len(rows)))}
        reasons = {bad.index: bad.reason for bad in rows.quarantine.rows}
    except ConfigError as error:
        told = str(error)
        return [] if case.whole and told and "\n" not in told else [f"refused as a whole: {told}"]
    finally:
        logger.removeHandler(heard)
    if len(found) + len(reasons) != len(case.rows):  # a damaged file: other records, each right or refused
        wrong = [] if reasons else [f"{len(found)} rows of {len(case.rows)} records, and no reason"]
        return wrong + [
            f"row {row.id} is in no record" for row in found.values() if not said_by(row, case.rows)
        ]
    wrong, used = [], iter(found.values())
    for index, said in enumerate(case.rows):
        if index in reasons:
            wrong += [] if reasons[index].strip() else [f"record {index} is refused without a reason"]
            continue
        row = next(used)
        if said == REFUSED:
            wrong.append(f"record {index} is used: {row.question!r} -> {row.answer!r}")
        elif not heard.guesses:
            wrong += differences(row, said)
    return wrong


def differences(row: Any, said: dict[str, Any]) -> list[str]:
    """The fields of a row that are not what the file says."""
    got = {name: pixel(row) if name == "pixel" else getattr(row, name) for name in said}
    if "pixel" in said and max(abs(a - b) for a, b in zip(got["pixel"], said["pixel"], strict=True)) < 16:
        got["pixel"] = said["pixel"]
    return [
        f"{row.id}: {name} is {got[name]!r}, the file says {value!r}"
        for name, value in said.items()
        if not same(got[name], value)
    ]


def pixel(row: Any) -> Any:
    """The pixel near the upper left corner of a row's picture, as the policy sees it."""
    return row.images[0].load().convert("RGB").getpixel((5, 5))


def said_by(row: Any, rows: list[Any]) -> bool:
    """Whether a row is one of those that a file says."""
    return any(said != REFUSED and not differences(row, said) for said in rows)


def same(got: Any, said: Any) -> bool:
    """Whether two values are equal and of one type, at any depth; lists and tuples are alike."""
    if isinstance(got, (list, tuple)) and isinstance(said, (list, tuple)):
        return len(got) == len(said) and all(map(same, got, said))
    if isinstance(got, dict) and isinstance(said, dict):
        return got.keys() == said.keys() and all(same(got[key], said[key]) for key in got)
    return type(got) is type(said) and got == said


class _Heard(logging.Handler):
    """Keeps the notices that say what is assumed of a file."""

    def __init__(self) -> None:
        super().__init__()
        self.guesses: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "assumed" in record.getMessage():
            self.guesses.append(record.getMessage())


# --- how files are written ----------------------------------------------------------------------------------


def lines(records: list[Any], end: str = "\n") -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + end for record in records)


def table(records: list[dict[str, Any]], delimiter: str = ",", end: str = "\r\n") -> str:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(records[0]), delimiter=delimiter, lineterminator=end)
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def texts() -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    records = [{"problem": f"Say {word}", "answer": word} for word in WORDS]
    return records, [{"question": f"Say {word}", "answer": word} for word in WORDS]
