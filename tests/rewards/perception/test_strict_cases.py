"""Cases judged by hand: `cases_*.jsonl` beside this file hold {"kind", "gold", "pred", "options"?} and the
"score" (or only whether "correct").

Units: `options.spaces` is a list of [original size, seen size, units]. A score of 1 must also be a right
verdict, one of 0 a wrong one.
"""

import json
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("row", [row for _, _, row in ROWS], ids=[f"{stem}-{i}" for stem, i, _ in ROWS])
def test_case(row):
    verdict = judge(row)
    if "score" not in row:
        assert verdict.correct is row["correct"], verdict
        return
    assert verdict.score == pytest.approx(row["score"], abs=1e-6), verdict
    assert row["score"] not in (0, 1) or verdict.correct is (row["score"] == 1), verdict


def test_there_are_many():
    assert len(ROWS) > 900 and len({row["kind"] for _, _, row in ROWS}) > 30
