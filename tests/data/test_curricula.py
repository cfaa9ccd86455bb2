"""Curriculum prompt samplers: `levels` and `rulereasoner`."""

import json
import math
from collections import Counter
from types import SimpleNamespace

import pytest
from run_kit import View

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import PromptSampler
from vlrl.types import Group, Prompt, Rollout, Row


def sampler_for(name, seed=0, **options):
    parts = {part: [Row(f"{part}{i}", "?", answer="x") for i in range(20)] for part in "abc"}
    sampler = build(PromptSampler, {"name": name, **options})
    sampler.setup(View(rows=parts, source_weights={}, seed=seed))
    return sampler


def scored(rows, value, slot=None):
    """Groups of ten rollouts with reward `value`, of which that share is correct."""
    groups = []
    for row in rows:
        prompt = Prompt(row, ())
        reward = value(row) if callable(value) else value
        rewards = {slot: reward} if slot else {}
        groups.append(
            Group(
                prompt,
                [
                    Rollout(
                        prompt,
                        [1],
                        reward=reward,
                        rewards=rewards,
                        outcome=reward,
                        correct=i < round(10 * reward),
                    )
                    for i in range(10)
                ],
            )
        )
    return groups


def end_step(sampler, groups):
    sampler.end_step(View(sampled_groups=groups, answered_groups=groups, trained_groups=groups))


def levels_of(rows):
    return {row.id[0] for row in rows}


def test_levels_rise_when_mastered():
    """Threshold 0.75 over 8 groups: a: 0.7, 1 -> mean 0.85, up. b: 1, 0 -> 0.5; 0, 1 -> 0.5; 1, 1 -> up. c
    stays."""
    sampler = sampler_for("levels", threshold=0.75, window=8)
    drawn = []
    for value in (0.7, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0):
        rows = sampler(4)
        drawn.append("".join(sorted(levels_of(rows))))
        end_step(sampler, scored(rows, value))
    assert drawn == ["a", "a", "b", "b", "b", "b", "c", "c", "c"]


def test_levels_by_hand():
    """Window 4, threshold 0.75: 0.5 0.5 | 1 1 -> mean 0.75: up. Two groups are not a full window."""
    sampler = sampler_for("levels", window=4)
    end_step(sampler, scored(sampler(2), 0.5))
    assert sampler.metrics() == {"data/level": 0.0, "data/level_accuracy": 0.5}
    end_step(sampler, scored(sampler(2), 1.0))
    assert sampler.metrics() == {"data/level": 1.0, "data/level_accuracy": 0.0}
    assert levels_of(sampler(3)) == {"b"}


def test_levels_after_so_many_prompts():
    sampler = sampler_for("levels", threshold=2.0, max_groups=6)
    drawn = []
    for _ in range(5):
        rows = sampler(3)
        drawn.append(levels_of(rows))
        end_step(sampler, scored(rows, 0.0))
    assert drawn == [{"a"}, {"a"}, {"b"}, {"b"}, {"c"}]


def test_a_level_is_passed_once():
    """gtxygyzb/Saturn-code 2cc9d746 trains one pass over each level: here 20 rows, so four steps of five."""
    sampler = sampler_for("levels", threshold=2.0, epochs=1)
    drawn = []
    for _ in range(9):
        rows = sampler(5)
        drawn.append("".join(sorted(levels_of(rows))))
        end_step(sampler, scored(rows, 0.0))
    assert drawn == ["a"] * 4 + ["b"] * 4 + ["c"]


def test_levels_of_equal_length():
    """Three levels in seven steps: a level ends with the step that completes its third of the phase."""
    sampler = sampler_for("levels", threshold=2.0, equal=True)
    drawn = []
    for step in range(7):
        rows = sampler(2)
        drawn.append("".join(sorted(levels_of(rows))))
        groups = scored(rows, 1.0)
        settings = SimpleNamespace(steps=7)
        sampler.end_step(
            View(
                sampled_groups=groups,
                answered_groups=groups,
                trained_groups=groups,
                settings=settings,
                phase_step=step,
            )
        )
    assert drawn == ["a", "a", "a", "b", "b", "c", "c"]


def test_levels_review_and_other_groups():
    sampler = sampler_for("levels", window=1, review=0.5)
    end_step(sampler, scored([Row("a0", "?")], 1.0))  # never served: says nothing
    assert sampler.metrics()["data/level"] == 0
    end_step(sampler, scored(sampler(1), 1.0))
    counts = Counter(row.id[0] for row in sampler(200))
    assert 70 < counts["a"] < 130 and counts["a"] + counts["b"] == 200


@pytest.mark.parametrize("name", ["levels", "rulereasoner"])
def test_restart_goes_on_alike(name):
    options = {"slot": "acc", "every": 2} if name == "rulereasoner" else {}
    first, second = sampler_for(name, **options), sampler_for(name, **options)
    for _ in range(5):
        end_step(first, scored(first(8), lambda row: float(row.id[0] == "a"), "acc"))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for _ in range(3):
        rows = first(8)
        assert [row.id for row in rows] == [row.id for row in second(8)]
        for sampler in (first, second):
            end_step(sampler, scored(rows, 0.3, "acc"))
    assert first.metrics() == second.metrics()
    assert [row.id for row in sampler_for(name, seed=1)(20)] != [row.id for row in sampler_for(name)(20)]


def test_domain_weights_by_hand():
    """r = 1, 0.5, unseen; target 1, tau 0.5: gaps 0, 0.5, 1 -> e^0 : e^1 : e^2."""
    sampler = sampler_for("rulereasoner", tau=0.5, every=1)
    assert sampler.weights() == pytest.approx(dict.fromkeys("abc", 1 / 3))
    sampler.state.served.update(a0="a", b0="b")
    end_step(sampler, scored([Row("a0", "?")], 1.0) + scored([Row("b0", "?")], 0.5))
    total = 1 + math.e + math.e**2
    assert sampler.weights() == pytest.approx({"a": 1 / total, "b": math.e / total, "c": math.e**2 / total})
    sampler.state.served.update(b1="b")
    end_step(sampler, scored([Row("b1", "?")], 1.0))
    assert sampler.state.means["b"] == 0.75


def test_shares_change_every_eighth_step_only():
    """Equal shares first: 12 rows are 4 of each. The eighth step alone is read. Counts are rounded down, the
    rest goes to the largest shares."""
    sampler = sampler_for("rulereasoner")
    for step in range(8):
        rows = sampler(12)
        assert Counter(row.id[0] for row in rows) == {"a": 4, "b": 4, "c": 4}
        end_step(
            sampler,
            scored(
                rows, lambda row, last=step == 7: {"a": 1.0, "b": 0.7, "c": 0.4}[row.id[0]] if last else 0.0
            ),
        )
    assert sampler.state.means == pytest.approx({"a": 1.0, "b": 0.7, "c": 0.4})
    total = 1 + math.e + math.e**2  # gaps 0, 0.3, 0.6 over tau 0.3
    assert sampler.metrics() == pytest.approx(
        {"data/weight/a": 1 / total, "data/weight/b": math.e / total, "data/weight/c": math.e**2 / total}
    )
    assert Counter(row.id[0] for row in sampler(12)) == {
        "a": 1,
        "b": 3,
        "c": 8,
    }  # 1.08, 2.94, 7.98: 1, 2, 7, and two more for c and b


def test_one_domain_is_refused():
    sampler = build(PromptSampler, {"name": "rulereasoner"})
    with pytest.raises(ConfigError, match="alone"):
        sampler.setup(View(rows={"a": [Row("a", "?")]}, source_weights={}))


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "levels", "window": 0},
        {"name": "levels", "review": 1.0},
        {"name": "rulereasoner", "tau": 0.0},
        {"name": "rulereasoner", "decay": 0.0},
    ],
)
def test_mistakes(spec):
    with pytest.raises(ConfigError, match="sampler"):
        build(PromptSampler, spec)
    with pytest.raises(ConfigError, match="more than 1"):
        sampler_for("rulereasoner", floor=0.5)
