"""`score(text, gold)` of every shipped reward."""

import asyncio
from dataclasses import dataclass

import pytest
from PIL import Image

from vlrl.plugins.registry import build, get, names
from vlrl.plugins.stages import Reward
from vlrl.plugins.text_scoring import ScoresTexts, group_of
from vlrl.types import Media


@dataclass(frozen=True)
class Picture(Media):
    kind = "image"
    size: tuple

    @property
    def key(self):
        return str(self.size)

    def load(self):
        return Image.new("RGB", self.size)


def score(name, *args, **columns):
    spec = name if isinstance(name, dict) else {"name": name}
    return build(Reward, spec).score(*args, **columns)


@pytest.mark.parametrize(
    ("name", "text", "gold", "columns", "expected"),
    [
        ("math", "<answer>0.5</answer>", "1/2", {}, 1.0),
        ("math", "<answer>0.4</answer>", "1/2", {}, 0.0),
        ("mcq", "<answer>B</answer>", "B", {"choices": ["a cat", "a dog"]}, 1.0),
        ("iou", "<answer>[0, 0, 10, 5]</answer>", [0, 0, 10, 10], {"images": [Picture((20, 20))]}, 0.5),
        ("tag_format", "<think>a</think><answer>b</answer>", None, {}, 1.0),
        ("tag_format", "b", None, {}, 0.0),
    ],
)
def test_it_is_the_score_of_a_run(name, text, gold, columns, expected):
    assert score(name, text, gold, **columns) == pytest.approx(expected)


def test_responses_of_one_group_are_compared():
    texts = [f"<answer>{box}</answer>" for box in ([0, 0, 10, 10], [0, 0, 10, 5], [50, 50, 60, 60])]
    reward = build(Reward, {"name": "iou_hard"})
    assert reward.score(texts, [0, 0, 10, 10]) == list(
        reward.score_group(group_of(texts, [0, 0, 10, 10], {}))
    )
    assert len(set(reward.score(texts, [0, 0, 10, 10]))) == 3


def test_it_works_where_a_loop_is_running():
    async def in_a_notebook():
        return score("math", "<answer>2</answer>", "2")

    assert asyncio.run(in_a_notebook()) == 1.0


def test_a_broken_gold_raises():
    with pytest.raises(ValueError):
        score("iou", "<answer>[0, 0, 1, 1]</answer>", "a cat")


def test_every_shipped_reward_has_it():
    """Each is a number for some gold, or says what it needs: a field of its config, a run, a gold of another
    form."""
    golds = ("2", ["2"], [0, 0, 10, 10], [[0, 0, 10, 10]], {}, None, 2.0, [3, 4])
    scored = 0
    for name in names(Reward):
        try:
            reward = build(Reward, {"name": name})
        except ValueError:
            continue  # it has a required field
        for gold in golds:
            try:
                value = reward.score("<think>so</think><answer>2</answer>", gold)
            except (ValueError, TypeError, KeyError, RuntimeError):
                continue
            assert isinstance(value, float)
            scored += 1
            break
    assert scored >= 50


def test_rewards_compare_siblings_in_score_group():
    """A run calls `score_group`. A reward that overrides `score` in its place would be scored one rollout at
    a time."""
    assert not [name for name in names(Reward) if get(Reward, name).score is not ScoresTexts.score]
