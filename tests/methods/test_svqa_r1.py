"""SVQA-R1: what is swapped, both views in one group, who gets the bonus."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from make import group, run
from PIL import Image
from tiny import vision_run

from vlrl.methods.papers.svqa_r1 import (
    MIRRORED,
    VIEW_ACCURACIES,
    Mirrored,
    SvqaR1,
    SvqaR1ViewBonus,
    mirrored,
    swap_sides,
)
from vlrl.plugins.registry import ConfigError
from vlrl.types import Completion, Media, Prompt, Rollout, Row, Sampling


@dataclass(frozen=True)
class Half(Media):
    """Black on the left, white on the right."""

    kind = "image"
    key = "half"

    def load(self):
        return Image.fromarray(np.array([[0, 255]], np.uint8))


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Is it LEFT of the box, or right?", "Is it RIGHT of the box, or left?"),
        ("The leftmost thing", "The rightmost thing"),
        ("turn clockwise", "turn counterclockwise"),
        ("Right.", "Left."),
        ("in front, above, a bright cleft", "in front, above, a bright cleft"),
    ],
)
def test_sides_are_swapped_and_nothing_else(text, other):
    assert swap_sides(text) == other and swap_sides(other) == text


ROW = Row(
    "r",
    "Is A left of or right of B?",
    "left of",
    images=(Half(),),
    choices=("to the left", "above"),
    target="<answer>left of</answer>",
)


def test_a_row_in_the_mirror():
    row = mirrored(ROW)
    assert (row.id, row.question, row.answer, row.choices) == (
        "r/mirrored",
        "Is A right of or left of B?",
        "right of",
        ("to the right", "above"),
    )
    assert (
        row.target == "<answer>right of</answer>"
        and np.asarray(row.images[0].load()).tolist() == [[255, 0]]
        and row.images[0].key != "half"
    )
    assert mirrored(replace(ROW, answer=3)).answer == 3 and mirrored(
        replace(ROW, answer=["left", "up"])
    ).answer == ["right", "up"]
    assert mirrored(replace(ROW, answer=[10, 0, 30, 5], meta={"size": (100, 50)})).answer == [70, 0, 90, 5]
    with pytest.raises(ValueError, match="cannot be mirrored"):
        mirrored(replace(ROW, answer=[10, 0, 30, 5]))


class Engine:
    def generate(self, requests):
        for request in requests:
            for index in range(request.n):
                yield Completion(request, index, [1], [-1.0], "x", "stop")


@pytest.mark.parametrize(("meta", "views"), [({}, 2), ({"mirror": False}, 1)])
def test_both_views_are_one_group_that_is_trained_on(meta, views):
    parts = run(
        engine=Engine(),
        seed=0,
        step=1,
        phase="rl",
        sampling=lambda p, a: Sampling(),
        make_rollout=lambda c: Rollout(c.request.prompt, c.ids),
        prompt_template=lambda row: Prompt(row, ({"role": "user", "content": row.question},), row.images),
    )
    prompt, text_only = parts.prompt_template(replace(ROW, meta=meta)), group(0, name="words").prompt
    both, words = SvqaR1()([prompt, text_only], [3, 2], parts)
    assert (
        len(both) == 3 * views and len(words) == 2 and all(r.trained and r.source == "policy" for r in both)
    )
    turned = [r for r in both if MIRRORED.get(r)]
    assert len(turned) == 3 * (views - 1) and all(
        r.answer == "right of" and isinstance(r.prompt.images[0], Mirrored) for r in turned
    )


def two_views(plain, turned):
    g = group(*plain, *turned, raw={"spatial": [*plain, *turned]})
    for rollout in g.rollouts[len(plain) :]:
        MIRRORED.set(rollout, True)
    return g


@pytest.mark.parametrize(
    ("plain", "turned", "expected"),
    [
        ((1, 0), (1, 0), (1.3, 0, 1.3, 0)),  # both views half right
        ((1, 1), (0, 0), (1, 1, 0, 0)),  # always "left": right in one view only
        ((1, 0, 0), (1, 1, 1), (1.3, 0, 0, 1, 1, 1)),
        ((0, 0), (0, 0), (0, 0, 0, 0)),
    ],
)
def test_bonus(plain, turned, expected):
    g = two_views(plain, turned)
    assert SvqaR1ViewBonus()(g) == pytest.approx(list(expected))
    assert VIEW_ACCURACIES[g] == {"plain": sum(plain) / len(plain), "mirrored": sum(turned) / len(turned)}


def test_one_view_is_left_alone_and_the_strategy_is_needed():
    assert SvqaR1ViewBonus()(group(1, 0, raw={"spatial": [1, 0]})) == [1, 0]
    with pytest.raises(ConfigError, match="requires 'mirrored'.*set rollout: .name: svqa_r1"):
        vision_run(["methods/svqa_r1"], ["rollout={name: independent}"])
