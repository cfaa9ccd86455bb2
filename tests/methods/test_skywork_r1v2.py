"""The selective sample buffer: what is stored, what is drawn how often, and that it survives a restart."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace

import pytest
from make import group, run

from vlrl.methods.core.token_weight import TIS
from vlrl.methods.papers.skywork_r1v2 import SkyworkR1v2, mean_size
from vlrl.plugins.registry import ConfigError
from vlrl.types import Prompt


@pytest.mark.parametrize(
    ("rewards", "size"),
    [
        ((1, 0), 1.0),
        ((1, 0, 0, 0), 2 * 0.25 * 0.75 / (0.25 * 0.75) ** 0.5),
        ((1, 1), 0.0),
        ((0.3, 0.3, 0.3), 0.0),
        ((), 0.0),
    ],
)
def test_size_of_the_advantages_by_hand(rewards, size):
    assert mean_size(group(*rewards)) == pytest.approx(size)


def buffer(**fields):
    made = SkyworkR1v2(**fields)
    made.setup(run(seed=3))
    return made


def test_groups_without_contrast_are_replaced_and_only_those():
    replay = buffer(uses=2)
    good, flat = group(1, 0, name="good"), group(1, 1, name="flat")
    assert replay([flat]) == [flat] and replay.state.stored == []  # nothing to draw yet
    assert replay([good, flat]) == [good, flat]  # what is fresh is not drawn in the same step
    old, again = replay([flat])[0], replay([flat])[0]
    assert (
        old.row.id == again.row.id == "good"
        and old.rewards == [1, 0]
        and old.id != again.id
        and old is not good
    )
    assert old.rollouts[0].ids == good.rollouts[0].ids and old.rollouts[0] is not good.rollouts[0]
    assert replay([flat]) == [flat]  # used twice: forgotten


def test_a_group_is_not_drawn_twice_in_a_step_and_old_ones_are_forgotten():
    replay = buffer(size=2, uses=9)
    replay([group(1, 0, name=f"g{i}") for i in range(5)])
    assert [item.group.row.id for item in replay.state.stored] == ["g3", "g4"]
    drawn = replay([group(1, 1, name=f"f{i}") for i in range(3)])
    assert sorted(g.row.id for g in drawn) == ["f2", "g3", "g4"]


def test_draws_follow_the_size_of_the_advantages():
    replay = buffer(uses=10_000)
    replay([group(1, 0, name="even"), group(1, *[0] * 15, name="rare")])
    counts = Counter(replay([group(0, 0)])[0].row.id for _ in range(2000))
    share = 1 / (1 + mean_size(group(1, *[0] * 15)))  # 0.67
    assert (
        abs(counts["even"] / 2000 - share) < 4 * (share * (1 - share) / 2000) ** 0.5
    )  # four standard deviations


def test_state_survives_a_restart():
    replay = buffer(uses=5)
    good = group(1, 0, name="good", texts=["yes", "no"])
    replay([good])
    state = json.loads(json.dumps(replay.state_dict()))
    parts = run(
        seed=3, rows={"main": [good.row, group(0, name="other").row]},
        policy=SimpleNamespace(spaces=lambda prompt: ()),
        prompt_template=lambda row: Prompt(row, ({"role": "user", "content": row.question},)),
    )  # fmt: skip
    restored = SkyworkR1v2(uses=5)
    restored.setup(parts)
    restored.load_state_dict(state)
    assert restored.state_dict() == state  # also before it is first used
    flat = group(1, 1, name="flat")
    for _ in range(3):
        (mine,), (theirs,) = replay([flat]), restored([flat])
        assert (mine.id, mine.rewards, [r.ids for r in mine], [r.text for r in mine]) == (
            theirs.id, theirs.rewards, [r.ids for r in theirs], [r.text for r in theirs],
        )  # fmt: skip
    assert restored.state_dict() == replay.state_dict()


def test_it_asks_for_a_correction():
    with pytest.raises(ConfigError, match="tis"):
        SkyworkR1v2().check(run(objective=SimpleNamespace(token_weights={})))
    SkyworkR1v2().check(run(objective=SimpleNamespace(token_weights={"age": TIS()})))
    with pytest.raises(ValueError, match="uses"):
        SkyworkR1v2(uses=0)
