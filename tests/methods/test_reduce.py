"""Aggregation: weights by hand, and against sums over ragged rollouts."""

import pytest
import torch
from make import inputs, run

from vlrl.methods.core.loss_aggregation import Constant, SequenceMean, TokenMean
from vlrl.plugins.registry import ConfigError
from vlrl.types import Denominators

LOSS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 99.0, 99.0]])


def reduced(reduce, loss=LOSS, lengths=(3, 1), totals=None):
    x = inputs(torch.zeros_like(loss).tolist(), lengths=list(lengths))
    totals = totals or Denominators(tokens=sum(lengths), sequences=len(lengths), groups=1)
    return (reduce.weights(x, totals) * loss * x.mask_BT).sum().item()


def test_token_mean():
    assert reduced(TokenMean()) == pytest.approx(10 / 4)


def test_sequence_mean():
    assert reduced(SequenceMean()) == pytest.approx((2 + 4) / 2)


def test_constant():
    assert reduced(Constant(length=5)) == pytest.approx(10 / (2 * 5))
    assert reduced(Constant(length=1)) == pytest.approx((6 + 4) / 2)


def test_constant_takes_the_longest_completion():
    reduce = Constant()
    reduce.setup(run())
    assert reduced(reduce) == pytest.approx(10 / (2 * 16))


def test_constant_without_a_limit_is_refused():
    with pytest.raises(ConfigError, match=r"loss_aggregation\.length"):
        Constant().check(run(sampling=object()))


@pytest.mark.parametrize("reduce", [TokenMean(), SequenceMean(), Constant(length=7)], ids=lambda r: r.name)
def test_any_split_into_micro_batches_gives_the_same(reduce):
    loss, lengths = torch.rand(6, 5, dtype=torch.float64), [5, 1, 3, 2, 4, 5]
    totals = Denominators(tokens=sum(lengths), sequences=6, groups=3)
    parts = sum(reduced(reduce, loss[i : i + 2], lengths[i : i + 2], totals) for i in (0, 2, 4))
    assert parts == pytest.approx(reduced(reduce, loss, lengths, totals), abs=1e-12)
    wider = torch.cat([loss, torch.full((6, 4), 9.0)], 1)
    assert reduced(reduce, wider, lengths, totals) == pytest.approx(
        reduced(reduce, loss, lengths, totals), abs=1e-12
    )


@pytest.mark.parametrize("reduce", [TokenMean(), SequenceMean(), Constant(length=7)], ids=lambda r: r.name)
def test_a_rollout_without_trained_tokens_is_harmless(reduce):
    x = inputs([[0.0]], lengths=[0])
    assert torch.isfinite(reduce.weights(x, Denominators(0, 0, 0))).all()
