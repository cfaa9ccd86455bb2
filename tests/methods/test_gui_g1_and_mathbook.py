"""GUI-G1's coefficient and MathBook-RL's samplers."""

from types import SimpleNamespace

import pytest
import torch

from vlrl.config import load
from vlrl.methods.papers.gui_g1 import GuiG1
from vlrl.methods.papers.mathbook_rl import MathbookRlByPrinciple, MathbookRlSchedule, principles_of
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.types import Group, Prompt, Rollout, Row


def rows(sets=3, variants=2):
    return [
        Row(f"{s}/{v}", "?", 1, meta={"principle": f"p{s}", "level": v})
        for s in range(sets)
        for v in range(variants)
    ]


def sampler(cls, given, **fields):
    made = cls(**fields)
    made.setup(SimpleNamespace(rows={"a": given}, seed=0, answered_groups=[]))
    return made


def test_coefficient_of_a_row():
    rollouts = [Rollout(Prompt(Row("r", "?", 1, meta=meta), ()), [1]) for meta in ({"rate": 2.5}, {})]
    x = SimpleNamespace(batch=SimpleNamespace(rollouts=rollouts), logp_BT=torch.zeros(2, 3))
    assert GuiG1()(x).tolist() == [[2.5], [1.0]]


@pytest.mark.parametrize("rate", [-1, float("nan"), "2", True])
def test_coefficients_that_are_no_numbers_are_refused(rate):
    with pytest.raises(ValueError, match=r"meta\.rate"):
        GuiG1().rate(Row("r", "?", 1, meta={"rate": rate}))


def test_variants_of_a_principle_come_together():
    draw = sampler(MathbookRlByPrinciple, rows())
    first, second = draw(4), draw(4)
    names = [row.meta["principle"] for row in (*first, *second)]
    assert names[0] == names[1] and names[2] == names[3] and names[0] != names[2]
    assert sorted(names[:6]) == ["p0", "p0", "p1", "p1", "p2", "p2"]  # an epoch has every principle once


def test_a_principle_goes_on_in_the_next_batch_and_after_a_restart():
    draw = sampler(MathbookRlByPrinciple, rows(variants=3))
    first = draw(4)
    again = sampler(MathbookRlByPrinciple, rows(variants=3))
    again.load_state_dict(draw.state_dict())
    second = draw(2)
    assert [row.meta["principle"] for row in second] == [first[3].meta["principle"]] * 2
    assert [row.id for row in again(2)] == [row.id for row in second]


def answered(row, correct):
    rollouts = [Rollout(Prompt(row, ()), [1]) for _ in range(4)]
    for index, rollout in enumerate(rollouts):
        rollout.correct = index < correct
    return Group(Prompt(row, ()), rollouts)


def test_the_schedule_raises_solved_and_lowers_failed_principles():
    """One correct rollout of 4 raises the level, none lowers it (update_state: any(score == 1.0)); levels end
    at 0 and at the hardest."""
    draw = sampler(MathbookRlSchedule, rows(sets=1, variants=3))
    levels = []
    for correct in (0, 1, 4, 2, 0, 0, 0):
        row = draw(1)[0]
        levels.append(row.meta["level"])
        draw.end_step(SimpleNamespace(answered_groups=[answered(row, correct)]))
    assert levels == [0, 0, 1, 2, 2, 1, 0]
    assert draw.metrics() == {"data/level": 0.0}


def test_rows_without_a_principle_are_refused():
    with pytest.raises(ConfigError, match="gen_geometry"):
        principles_of([Row("r", "?", 1)], "principle")


def test_the_advantage_needs_variants_together():
    """Without batches by principle it would be GRPO, so that such a run is refused."""
    config = load(
        ["base/rl", "models/tiny_text", "tasks/lab_arithmetic", "methods/grpo"],
        ["advantage={name: mathbook_rl}"],
    )
    with pytest.raises(ConfigError, match="by_principle"):
        Session(Plan.of(config))
