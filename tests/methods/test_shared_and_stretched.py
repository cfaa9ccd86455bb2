"""MathBook-RL's shared advantages and ARMed's stretched scores, by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from make import group

from vlrl.methods.papers.armed import Armed, quantile
from vlrl.methods.papers.mathbook_rl import MathbookRl


def variant(principle, *rewards, name):
    made = group(*rewards, name=name)
    made.prompt = dataclasses.replace(
        made.prompt,
        row=dataclasses.replace(made.prompt.row, meta={"principle": principle} if principle else {}),
    )
    return made


def test_variants_share_their_ranks():
    groups = [
        variant("area", 0.0, 1.0, name="a"),
        variant("area", 1.0, 1.0, name="b"),
        variant("", 1.0, 0.0, name="c"),
    ]
    first, second, alone = MathbookRl(eps=0.0)(groups)
    std = 0.75**0.5 / 2  # rewards 0, 1, 1, 1
    assert first == pytest.approx(
        [(0.5 - 0.75) / std, (1.0 - 0.75) / std]
    )  # places: best (1 + 1) / 2, second (0 + 1) / 2
    assert second == pytest.approx([(1.0 - 0.75) / std, (0.5 - 0.75) / std])
    assert alone == pytest.approx([1.0, -1.0])


def test_equal_rewards_give_zeros_and_ragged_groups_work():
    assert MathbookRl()([variant("p", 1.0, 1.0, name="a"), variant("p", 1.0, name="b")]) == [
        [0.0, 0.0],
        [0.0],
    ]


def test_stretch_by_hand():
    scores = [0.70, 0.72, 0.74, 0.80]
    made = group(*[s + 0.1 for s in scores], raw={"semantic": scores})
    assert Armed(slot="semantic")(made) == pytest.approx([0.1, 0.3, 0.5, 1.1])
    assert Armed(slot="semantic", weight=0.5, gamma=2.0)(made)[2] == pytest.approx(0.84 + 0.5 * (0.16 - 0.74))
    assert Armed(slot="semantic", min_spread=0.2)(made) == made.rewards
    with pytest.raises(ValueError, match="gamma"):
        Armed(slot="x", gamma=0.0)
    with pytest.raises(KeyError):
        Armed(slot="nope")(made)


def test_quantiles_agree_with_numpy():
    values = np.random.default_rng(0).random(9).tolist()
    assert [quantile(values, q) for q in (0, 0.1, 0.5, 0.77, 1)] == pytest.approx(
        np.quantile(values, [0, 0.1, 0.5, 0.77, 1]).tolist()
    )
