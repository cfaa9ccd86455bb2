"""Rows that carry what data methods read: gold answers earn the full reward, wrong ones less; held-out rows
are apart."""

from __future__ import annotations

import pytest
from vlrl_data.generators.annotated import ASKS

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward, Source
from vlrl.types import Prompt, Rollout

REWARDS = {
    "context": "text", "rubric": "rubric", "files": "places", "functions": "places", "lines": "places",
    "edits": "patch_similarity", "rated": "math",
    "worked": "math",
    "taught": "numeric",
}  # fmt: skip


def rows(kind, n=20, **fields):
    return list(build(Source, {"name": "gen_annotated", "ask": [kind], "count": n, **fields})())


@pytest.mark.parametrize("kind", sorted(REWARDS))
def test_demonstrations_earn_more_than_wrong_answers(kind):
    reward = build(Reward, {"name": REWARDS[kind], **({"tag": "answer"} if kind == "edits" else {})})
    for row in rows(kind):
        right, wrong = (
            reward(Rollout(Prompt(row, ()), [1], text))
            for text in (row.target, "<answer>none, of these</answer>")
        )
        assert right == 1.0 and wrong < 1.0 and row.task == kind


def test_rubrics_have_points_for_and_against():
    reward = build(Reward, {"name": "rubric"})
    row = rows("rubric", 1)[0]
    wanted, *_, unwanted = row.meta["rubrics"]
    both = f"{wanted['answer'][0]['keywords'][0]} {unwanted['answer'][0]['keywords'][0]}"
    assert reward(Rollout(Prompt(row, ()), [1], both)) == pytest.approx((3 + 2 + 1 - 2) / 6)


def test_what_rows_carry():
    for row in rows("pair"):
        assert row.meta["chosen"] != row.meta["rejected"]
    for row in rows("taught"):
        direct, worked, wrong = row.meta["demonstrations"]
        assert (
            direct in worked and str(row.answer) not in wrong.removeprefix("<answer>").split("<")[0].split()
        )
    assert {row.meta["difficulty"] for row in rows("rated", 60)} == {1.0, 5.0, 9.0}
    for row in rows("context"):
        assert row.question.count("<context>") == 1 and row.answer in row.question


def test_held_out_rows_are_apart_and_rows_are_reproducible():
    for kind in ASKS:
        seen, held = rows(kind, 60), rows(kind, 60, split="heldout")
        assert not {row.question for row in seen} & {row.question for row in held} and seen == rows(kind, 60)
    with pytest.raises(ConfigError, match="Known: context"):
        rows("nothing")
