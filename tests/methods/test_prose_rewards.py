"""CogDual's likelihood gain, DRAGON's set rewards and RLP's information gain, by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vlrl.methods.papers.cogdual import Cogdual
from vlrl.methods.papers.dragon import Dragon, contributions, frechet, vendi
from vlrl.methods.papers.rlp import logp
from vlrl.types import Group, Prompt, Rollout, Row, RowError

E1, E2 = np.array([1.0, 0.0]), np.array([0.0, 1.0])


def test_vendi_counts_different_answers():
    assert vendi(np.array([E1, E1, E1])) == pytest.approx(1.0)
    assert vendi(np.array([E1, E2])) == pytest.approx(2.0)
    assert vendi(np.zeros((0, 2))) == 0.0


def test_frechet_of_points_and_lines():
    assert frechet(np.array([E1, E1]), np.array([E1, E1])) == pytest.approx(0.0)
    assert frechet(np.array([E1, E1]), np.array([E2, E2])) == pytest.approx(2.0)  # |mu - nu|^2
    # one dimension: (mu - nu)^2 + (s - t)^2 with means 1 and 3, deviations 1 and 2
    assert frechet(np.array([[0.0], [2.0]]), np.array([[1.0], [5.0]])) == pytest.approx(4.0 + 1.0)
    one, other = np.random.default_rng(0).normal(size=(2, 6, 3))
    c, d = np.cov(one.T, bias=True), np.cov(other.T, bias=True)
    root = np.sqrt(np.linalg.eigvals(c @ d).real.clip(0)).sum()
    wanted = ((one.mean(0) - other.mean(0)) ** 2).sum() + np.trace(c) + np.trace(d) - 2 * root
    assert frechet(one, other) == pytest.approx(wanted)


def test_what_an_answer_adds_to_its_set():
    # {E1, E1, E2}: without the lone E2 the set has one answer, without an E1 it still has two
    gains = contributions(np.array([E1, E1, E2]), np.zeros((0, 2)), "vendi")
    assert gains[2] > gains[0] == pytest.approx(gains[1]) and gains[0] < 0 < gains[2]
    whole = math.exp(-(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)))
    assert gains[2] == pytest.approx(3 * (whole - 1.0)) and gains[0] == pytest.approx(3 * (whole - 2.0))
    assert contributions(np.array([E1, E2]), np.array([E1]), "nearest") == [1.0, 0.0]
    close, far = contributions(np.array([E1, E2]), np.array([E1, E1]), "frechet")
    # all: means (.5, .5), distance .5, spread .5 -> -1; without E1: -2; without E2: 0
    assert (close, far) == (pytest.approx(2 * (-1 + 2)), pytest.approx(2 * (-1 - 0)))


def group_of(*texts, **meta):
    prompt = Prompt(Row("1", "?", answer="the well is behind the mill", meta=meta), ())
    return Group(prompt, [Rollout(prompt, [1], text=text, reward=0.5) for text in texts])


def test_dragon_reads_the_answers():
    group = group_of("<answer>abc</answer>", "<answer>xyz</answer>", exemplars=["abc"])
    assert Dragon(measure="nearest", weight=2.0)(group) == [pytest.approx(2.5, abs=1e-3), 0.5]
    with pytest.raises(RowError, match="no exemplars"):
        Dragon(measure="frechet")(group_of("a"))


def test_cogdual_pays_gain_and_likeness():
    shaping = Cogdual(gain=2.0, alignment=1.0)
    # base mean -2; gains of 0.5, -3 (cut to -1)
    assert shaping.scores([-1.0, -3.0], [[-1.0, -2.0], [-5.0, -5.0]], [0, 0], 2) == [0.5, -1.0]
    right, wrong = "<cognize>c</cognize><answer>the well is behind the mill</answer>", "no tags"
    group = group_of(right, wrong)
    engine = SimpleNamespace(score_all=lambda pairs: [[-2.0] * 5, [-1.5] * 5])
    policy = SimpleNamespace(
        encode_text=lambda text: [9] * 5 if "well" in text else [7],
        tokenizer=SimpleNamespace(decode=lambda ids: {1: right, 2: wrong}[ids[0]]),
    )
    group.rollouts[1].ids = [2]
    shaping.setup(SimpleNamespace(policy=policy, engine=engine))
    assert shaping(group) == [pytest.approx(2.0 * 0.5 + 1.0, abs=1e-3), pytest.approx(0.0)]


def test_log_probs_after_a_prompt():
    class Model:
        """Logits are a table by the last token."""

        device = "cpu"
        table = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]])

        def __call__(self, input_ids):
            return SimpleNamespace(logits=self.table[input_ids])

    wanted = torch.log_softmax(Model.table, -1)
    assert logp(Model(), [2, 0], [1, 0]) == pytest.approx([float(wanted[0, 1]), float(wanted[1, 0])])
