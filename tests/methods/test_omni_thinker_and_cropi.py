"""Omni-Thinker's backward transfer and CROPI's influences."""

from dataclasses import replace

import pytest
import torch
from make import group
from run_kit import View
from tiny import text_run

from vlrl.methods.papers.cropi import KEY, SCORE, Cropi, CropiInfluence, Sketch, cosine
from vlrl.methods.papers.omni_thinker import OmniThinker, order, transfer
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.views import StepView
from vlrl.types import Group


def test_backward_transfer_and_order():
    found = transfer({"math": 0.8, "chat": 0.6}, {"math": 0.7, "chat": 0.2, "code": 0.9})
    assert found == {"math": pytest.approx(-0.1), "chat": pytest.approx(-0.4)}
    assert order(found) == ["math", "chat"]


def test_transfer_is_measured_from_the_end_of_a_task_s_training():
    accuracies = iter([{"a": 0.5, "b": 0.0}, {"a": 0.3, "b": 0.6}])
    callback = OmniThinker(every=1)
    steps = [View(phase_step=n, accuracy=lambda: next(accuracies)) for n in range(2)]
    for view in steps:
        view.settings.steps = 2

    def of(task):
        made = group(1.0, 0.0)
        return Group(replace(made.prompt, row=replace(made.row, task=task)), made.rollouts)

    assert callback(steps[0], [of("a")]) == {"a": 0.0}
    assert callback(steps[1], [of("b")]) == {"a": pytest.approx(-0.2), "b": 0.0}
    assert "b +0.000, a -0.200" in steps[1].warnings[0]


def test_a_sketch_keeps_inner_products():
    torch.manual_seed(0)
    a, b = torch.randn(2, 4000)
    b = b + a
    sketch = Sketch(2000, 0)
    assert cosine(sketch([a]), sketch([a])) == pytest.approx(1.0)
    assert 0.5 < cosine(sketch([a]), sketch([b])) < 0.9  # in truth 1 / sqrt 2
    assert cosine(sketch([a]), sketch([-b])) == pytest.approx(-cosine(sketch([a]), sketch([b])))
    assert torch.equal(Sketch(9, 0)([a[:10], b[:10]]), Sketch(9, 0)([a[:10], b[:10]]))
    assert cosine(torch.zeros(3), torch.ones(3)) == 0.0


def test_influence_of_a_row_on_itself_and_on_its_opposite():
    source = "data.train.validation={name: lab_arithmetic, seed: 5, count: 1}"
    words = [source, "data.train.arithmetic.count=3", "group_size=2"]
    run = text_run([], words)
    view = StepView.between_steps(run)
    (wanted,) = run.rows["validation"]
    rows = list(run.rows["arithmetic"])
    ids = run.policy.encode_text("<answer>7</answer>")[:4], run.policy.encode_text("no")[:2]
    plus, minus = ([[list(one), s * sign] for one, s in zip(ids, (0.5, -0.5))] for sign in (1, -1))
    known = zip([wanted, *rows], [plus, plus, minus, [[[5], 0.0]]])
    run.history |= {row.id: {KEY: pairs} for row, pairs in known}
    callback = Cropi(size=512)
    callback.setup(run)
    assert callback.score(view)["rows"] == 3.0
    scores = [run.history[row.id][SCORE] for row in rows]
    assert scores[0] > 0.5 and scores[1] < -0.2 and scores[2] == 0.0
    sampler = CropiInfluence(share=0.3)
    sampler.setup(run)
    assert {row.id for row in sampler(4)} == {rows[0].id}
    run.history.clear()
    with pytest.raises(ConfigError, match="found no influences"):
        sampler(1)
    with pytest.raises(ConfigError, match="no source 'other'"):
        Cropi(validation="other").setup(run)
