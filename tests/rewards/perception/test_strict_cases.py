"""Cases judged by hand: `cases_*.jsonl` beside this file hold {"kind", "gold", "pred", "options"?} and the
"score" (or only whether "correct").

Units: `options.spaces` is a list of [original size, seen size, units]. A score of 1 must also be a right
verdict, one of 0 a wrong one.
"""

import json
from pathlib import Path

import pytest
from sweeps import batches
from vlrl_rewards import verify

from vlrl.types import CoordinateSpace

FILES = sorted(Path(__file__).parent.glob("cases_*.jsonl"))
ROWS = [
    (file.stem, i, json.loads(line))
    for file in FILES
    for i, line in enumerate(file.read_text().splitlines(), 1)
]


def judge(row):
    options = dict(row.get("options", {}))
    if "spaces" in options:
        options["spaces"] = tuple(
            CoordinateSpace(tuple(original), tuple(seen), units)
            for original, seen, units in options["spaces"]
        )
    return verify(row["gold"], row["pred"], row["kind"], **options)


def is_right(row, verdict):
    if "score" not in row:
        return verdict.correct is row["correct"]
    return verdict.score == pytest.approx(row["score"], abs=1e-6) and (
        row["score"] not in (0, 1) or verdict.correct is (row["score"] == 1)
    )


@pytest.mark.parametrize("batch", batches(ROWS), ids=lambda batch: f"{batch.start}-{batch.stop - 1}")
def test_cases(batch):
    wrong = {}
    for stem, i, row in (ROWS[n] for n in batch):
        if not is_right(row, verdict := judge(row)):
            wrong[f"{stem}, line {i}"] = (row, verdict)
    assert not wrong


def test_there_are_many():
    assert len(ROWS) > 900 and len({row["kind"] for _, _, row in ROWS}) > 30
