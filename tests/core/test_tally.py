"""The numbers of a step."""

import pytest

from vlrl.tally import describe
from vlrl.types import Group, Prompt, Rollout, Row


def group(*rollouts: tuple[str, float, int]) -> Group:
    prompt = Prompt(Row("a", "?"), ())
    return Group(prompt, [Rollout(prompt, [1] * n, source=source, reward=reward, rewards={"right": reward}) for source, reward, n in rollouts])


def test_demonstrations_are_trained_on_and_not_reported_as_samples():
    groups = [group(("policy", 0.0, 2), ("policy", 1.0, 4), ("expert", 1.0, 9))]
    out = describe(groups, groups)
    assert (out["rollouts"], out["tokens"]) == (3.0, 15.0)
    assert (out["reward/total"], out["reward/right"], out["length/mean"], out["length/max"]) == (0.5, 0.5, 3.0, 4.0)


def test_where_others_wrote_everything_it_is_reported():
    groups = [group(("expert", 1.0, 9), ("expert", 0.5, 3))]
    assert describe(groups, groups)["reward/total"] == pytest.approx(0.75)


def test_nothing_sampled():
    assert describe([], []) == {"groups": 0.0, "rollouts": 0.0, "tokens": 0.0}
