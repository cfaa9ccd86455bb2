"""Rollouts apart from the others earn a little more: leverage by hand, where it is off, and what the field
gives."""

from __future__ import annotations

import pytest
import torch
from make import group
from tiny import steps, text_run, vision_run

from vlrl.methods.core.aux_tensor import Hidden
from vlrl.methods.papers.repexp import Repexp, elliptical, sparse_projection
from vlrl.trainer.views import StepView


def test_leverage_by_hand():
    """Rows (2, 0), (-2, 0), (0, 0), lam 2: spread diag(10, 2), so 4 / 10 for the outer two. Without itself:
    spread 6, 4 / 6."""
    rows = [[3.0, 1.0], [-1.0, 1.0], [1.0, 1.0]]
    assert elliptical(rows, 2.0, False) == pytest.approx([0.4, 0.4, 0.0])
    assert elliptical(rows, 2.0, True) == pytest.approx([4 / 6, 4 / 6, 0.0])
    # one to the side in a second direction: means (0, 1): rows (1, -1), (-1, -1), (0, 2); spread diag(2 + 1,
    # 6 + 1)
    assert elliptical([[1.0, 0.0], [-1.0, 0.0], [0.0, 3.0]], 1.0, False) == pytest.approx(
        [1 / 3 + 1 / 7, 1 / 3 + 1 / 7, 4 / 7]
    )
    assert elliptical([[5.0, 1.0]], 0.01, False) == [0.0]


def test_the_bonus_is_off_where_nothing_is_right():
    rows = [[3.0, 1.0], [-1.0, 1.0], [1.0, 1.0]]
    signals = [{"repexp.representation": [row]} for row in rows]
    some = group(1.0, 0.0, 0.1, raw={"a": [1.0, 0.0, 0.0]}, signals=signals)
    assert Repexp(beta=0.5, lam=2.0)(some) == pytest.approx([1.2, 0.2, 0.1])
    none = group(0.1, 0.0, 0.0, raw={"a": [0.0] * 3}, signals=signals)
    assert Repexp(beta=0.5, lam=2.0)(none) == [0.1, 0.0, 0.0]
    with pytest.raises(ValueError, match="lam"):
        Repexp(lam=0.0)


def test_projections_are_sparse_and_keep_lengths():
    matrix = sparse_projection(400, 64, (1, 2))
    assert torch.equal(matrix, sparse_projection(400, 64, (1, 2))) and not torch.equal(
        matrix, sparse_projection(400, 64, (1, 3))
    )
    assert matrix.abs().unique().tolist() == pytest.approx([0.0, (20 / 64) ** 0.5]) and (
        matrix != 0
    ).double().mean() == pytest.approx(0.05, abs=0.01)
    vector = torch.ones(400, dtype=torch.float64)
    assert 0.5 < (vector @ matrix).square().sum() / 400 < 1.5


def test_the_field_is_the_mean_state_of_the_reference():
    run = text_run(["methods/repexp"])
    run.step = 1
    groups = run.rollout([run.prompt_template(run.rows["arithmetic"][0])], [3], StepView.between_steps(run))
    groups[0].rollouts[0].loss_mask = [False, *[True] * (len(groups[0].rollouts[0]) - 1)]
    batch, field = run.batch(groups), run.aux_tensors["repexp.representation"]
    values = field(run.policy, batch)
    assert values.shape == (3, 1, 32)
    hidden = run.policy.forward(batch, [Hidden()])["hidden"].double()
    for b, rollout in enumerate(groups[0]):
        first = 1 if b == 0 else 0
        expected = hidden[b, first : len(rollout)].mean(0) @ sparse_projection(
            hidden.shape[-1], 32, (run.seed, 1)
        )
        torch.testing.assert_close(values[b, 0], expected, rtol=1e-5, atol=1e-5)
    with torch.no_grad():  # the reference stays where it was
        run.policy.model.get_output_embeddings().weight.add_(1.0)
        next(p for p in run.policy.model.parameters() if p.ndim == 2).add_(1.0)
    torch.testing.assert_close(field(run.policy, batch), values)
    run.close()


def test_presets_train():
    first, second = steps(text_run(["methods/repexp"]))
    assert first["grad_norm"] > 0 and second["reward/errors"] == 0
    steps(vision_run(["methods/repexp"], ["prompts_per_step=2"]), 1)
