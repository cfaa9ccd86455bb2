"""Answers written by hand before the code was looked at: `data/fresh_*.jsonl`, a class of answers each."""

import json
from pathlib import Path

import pytest
from vlrl_rewards import verify
from vlrl_rewards.math import pool as math_pool

FILES = sorted((Path(__file__).parent / "data").glob("fresh_*.jsonl"))


def rows(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module", autouse=True)
def pool():
    math_pool.warm(wait=True)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_answer_of_a_class_is_judged_right(file):
    wrong = []
    for row in rows(file):
        verdict = verify(row["gold"], row["pred"], row["kind"], row.get("choices"), **row.get("options", {}))
        if verdict.correct is not row["correct"]:
            wrong.append((row["kind"], row["gold"], row["pred"], verdict.reason))
    assert not wrong


def test_the_held_out_set_stays_judged():
    """Written after the code; judged right 303 of 320 at first. Two answers are still refused: "3h20", which
    is also 3h times 20."""
    held_out = rows(FILES[0].parent / "held_out.jsonl")
    judged = [verify(row["gold"], row["pred"], row["kind"], row.get("choices")).correct for row in held_out]
    wrong = [
        (row["gold"], row["pred"])
        for row, correct in zip(held_out, judged, strict=True)
        if correct is not row["correct"]
    ]
    assert len(held_out) == 320 and set(wrong) <= {("3 h 20 min", "3h20")}


def test_a_class_has_right_and_wrong_answers():
    for file in FILES:
        judged = rows(file)
        assert len(judged) >= 40 and {row["correct"] for row in judged} == {True, False}, file
        assert len({json.dumps(row, sort_keys=True) for row in judged}) == len(judged), file
