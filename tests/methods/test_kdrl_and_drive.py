"""KDRL's term and teacher, DRIVE's sampler, by hand."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
from make import end_step, gradient, group, inputs, run
from tiny import steps, text_run

from vlrl.methods.papers.drive import Drive
from vlrl.methods.papers.kdrl import Kdrl
from vlrl.plugins.registry import ConfigError
from vlrl.types import Row

K3 = math.exp(0.5) - 1.5  # the estimate at u = 0.5


def pulled(mask="none", step=0, rewards=(1.0, 0.0, 0.0, 0.0), **fields):
    """The loss of four rollouts of one token in two groups: log pi -1, the teacher's -0.5."""
    x = inputs([[-1.0]] * 4, reward=list(rewards), group_of=[0, 0, 1, 1], teacher_logp=[[-0.5]] * 4)
    term = Kdrl(mask=mask, teacher={"model": "start"}, **fields)
    term._attached[:] = [SimpleNamespace(phase_step=step)]
    out = term(x)
    return out.loss[:, 0].tolist(), gradient(out.loss, x)[:, 0].tolist()


@pytest.mark.parametrize(
    ("mask", "on"), [("none", [1, 1, 1, 1]), ("response", [0, 1, 1, 1]), ("group", [0, 0, 1, 1])]
)  # fmt: skip
def test_the_pull_by_hand(mask, on):
    loss, slope = pulled(mask)
    assert loss == pytest.approx([5e-3 * K3 * m for m in on]) and slope == pytest.approx(
        [-5e-3 * 0.5 * m for m in on]
    )  # k2's gradient, u = 0.5


@pytest.mark.parametrize(
    ("step", "anneal", "beta"),
    [(0, 100, 5e-3), (50, 100, 3e-3), (100, 100, 1e-3), (900, 100, 1e-3), (7, 0, 5e-3)],
)
def test_the_pull_weakens(step, anneal, beta):
    assert pulled(step=step, anneal=anneal)[0][1] == pytest.approx(beta * K3)


def test_a_teacher_is_a_model_of_its_own(tmp_path):
    teacher = text_run(["methods/grpo"], ["seed=5"])
    teacher.policy.save(tmp_path / "teacher")
    made = text_run(["methods/kdrl"], [f"loss_terms.teacher.teacher.model={tmp_path / 'teacher'}"])
    metrics = steps(made)
    assert metrics[0]["teacher/divergence"] > 0 and metrics[0]["loss/teacher"] > 0
    assert metrics[0]["teacher/beta"] == 5e-3
    (own,) = teacher_of(made).state.teachers.distinct
    frozen = list(own.other.model.parameters())
    assert not any(p.requires_grad for p in frozen) and all(
        torch.equal(a, b) for a, b in zip(frozen, teacher.policy.model.parameters())
    )


START = "loss_terms.teacher.teacher.model=start"


def teacher_of(made):
    return made.objective.loss_terms["teacher"]


def test_the_first_weights_as_teacher():
    made = text_run(["methods/kdrl"], [START, "optimizer.lr=1e-2"])
    first, second = steps(made, 2)
    assert first["teacher/divergence"] == pytest.approx(0, abs=1e-6)  # the policy itself
    assert second["teacher/divergence"] > 1e-4  # until it was updated
    saved = teacher_of(made).state.state_dict()
    again = text_run(["methods/kdrl"], [START, "seed=3"])
    teacher_of(again).state.load_state_dict(saved)
    with again.policy.reference() as reference:
        assert all(torch.equal(a, saved["weights"][name]) for name, a in reference.model.state_dict().items())


def test_the_teacher_scores_a_rollout_once_a_step(monkeypatch):
    made = text_run(["methods/kdrl"], [START, "ppo_epochs=3", "num_minibatches=2"])
    passes = []
    forward = type(made.policy).forward
    monkeypatch.setattr(
        type(made.policy), "forward", lambda self, *args: passes.append(self) or forward(self, *args)
    )
    steps(made, 1)
    assert sum(one is not made.policy for one in passes) == 1  # the reference's, of all groups at once


def test_a_teacher_must_be_named():
    with pytest.raises(ConfigError, match="no model is named"):
        text_run(["methods/kdrl"])


ROWS = [Row(f"r{i}", f"q{i}") for i in range(8)]


def focus(**fields):
    made = Drive(**fields)
    made.setup(run(rows={"main": ROWS}, source_weights={}, seed=2))
    return made


def test_the_hardest_rows_remain_for_their_steps():
    made = focus(rows=[4, 2], steps=[2, 1])
    first = made(8)
    assert sorted(row.id for row in first) == [row.id for row in ROWS]
    end_step(made, [group(i / 10, i / 10, name=f"r{i}") for i in reversed(range(8))])
    second = made(4)
    assert sorted(row.id for row in second) == ["r0", "r1", "r2", "r3"] and made.metrics() == {
        "data/rows": 4.0,
        "data/round": 1.0,
    }
    end_step(made, [group(0.9, name="r0"), group(0.1, name="r3"), group(0.2, name="r1")])
    assert len({row.id for row in made(4)}) == 4  # the second of two steps with four rows
    end_step(
        made, [group(0.0, name="r0"), group(0.7, name="r3")]
    )  # means 0.45, 0.4 and r1 0.2; r2 was never scored
    assert {row.id for row in made(4)} == {"r1", "r3"} and made.metrics()["data/round"] == 2.0
    again = focus(rows=[4, 2], steps=[2, 1])
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert [row.id for row in again(5)] == [row.id for row in made(5)]
    end_step(made, [])
    end_step(made, [])
    assert {row.id for row in made(4)} == {"r1", "r3"}  # the last set stays


def test_a_call_beyond_a_pass_takes_the_same_rows_again():
    made = focus(rows=[9], steps=[1])
    assert len({row.id for row in made(12)}) == 8
    end_step(made, [group(1.0, name="r1")])
    made(1)
    assert made.metrics()["data/rows"] == 8.0  # never more than there are
    for wrong in (
        {"rows": (4,)},
        {"rows": (), "steps": ()},
        {"rows": (0,), "steps": (1,)},
        {"rows": (1,), "steps": (0,)},
    ):
        with pytest.raises(ConfigError, match="rows"):
            Drive(**wrong)


def test_drive_trains():
    made = text_run(
        ["methods/drive"],
        [
            "phases.focus.group_size=6",
            "data.train.arithmetic.count=4",
            "phases.focus.prompt_sampler={name: drive, rows: [2], steps: [1]}",
        ],
    )
    made.use(1)
    made.phase_step = 0
    made.enter(1)
    metrics = steps(made, 2)
    assert [m["data/rows"] for m in metrics] == [4.0, 2.0] and metrics[0]["grad_norm"] > 0
