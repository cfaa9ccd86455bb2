"""DRAGON: rewards of a set of answers, given to each answer by what the set loses without it.

    vendi     exp(-sum_i l_i ln l_i), l the eigenvalues of K / n, K the cosines: the number of different
    answers frechet   -(|mu - nu|^2 + tr(C + D - 2 (C D)^(1/2))): closeness to the exemplars, as
    distributions nearest   mean over answers of the largest cosine with an exemplar: each answer for itself

Paper: DRAGON, arXiv:2504.15217: rewards of single samples or of distributions, against exemplar sets, for
diffusion models. No code was opened.

Shapes: N answers, M exemplars, E entries of an embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vlrl.methods.papers.memory_r import embedding
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group, RowError

Vectors = NDArray[np.float64]


def vendi(said_NE: Vectors) -> float:
    """The Vendi score of unit vectors: 1 where all are alike, N where all are orthogonal; 0 of nothing."""
    if not len(said_NE):
        return 0.0
    values = np.linalg.eigvalsh(said_NE @ said_NE.T / len(said_NE)).clip(0)
    values = values[values > 1e-12]
    return float(np.exp(-(values * np.log(values)).sum()))


def frechet(said_NE: Vectors, shown_ME: Vectors) -> float:
    """The squared Frechet distance of two sets as normal distributions (population covariances)."""
    mu, nu = said_NE.mean(0), shown_ME.mean(0)
    a_NE, b_ME = (said_NE - mu) / len(said_NE) ** 0.5, (shown_ME - nu) / len(shown_ME) ** 0.5
    # tr (C D)^(1/2) is the sum of the singular values of a b^T, for C = a^T a and D = b^T b
    cross = np.linalg.svd(a_NE @ b_ME.T, compute_uv=False).sum()
    return float(((mu - nu) ** 2).sum() + (a_NE**2).sum() + (b_ME**2).sum() - 2 * cross)


@register("dragon")
@dataclass(frozen=True)
class Dragon(RewardShaping):
    """DRAGON's distributional reward: r_i <- r_i + weight n (S(all) - S(all but i)), S the score `measure` of
    the group's answers; with "nearest", weight times the answer's own score.

    Answers are embedded by hashed character trigrams; exemplars are `row.meta[exemplars]`. Paper:
    arXiv:2504.15217. Deviates: the leave-one-out contribution in place of positive and negative sets, which
    are built for diffusion models, is ours, and so is the embedding (the paper: CLAP, and others). Edge: a
    group of one has S(all but i) = 0; a row without exemplars is a RowError, but for vendi.

    Attributes:
        opening, closing: Around the answer; the whole text where `opening` is missing.
    """

    measure: Literal["vendi", "frechet", "nearest"] = "vendi"
    weight: float = 1.0
    exemplars: str = "exemplars"
    opening: str = "<answer>"
    closing: str = "</answer>"

    def __call__(self, group: Group) -> list[float]:
        texts = [rollout.text.rpartition(self.opening)[2].partition(self.closing)[0] for rollout in group]
        said_NE = np.array([embedding(text) for text in texts])
        shown_ME = np.array([embedding(str(text)) for text in group.row.meta.get(self.exemplars, ())])
        if self.measure != "vendi" and not len(shown_ME):
            raise RowError(
                f"row {group.row.id!r}: meta.{self.exemplars} has no exemplars, which 'dragon' compares with"
            )
        gains = contributions(said_NE, shown_ME, self.measure)
        return [rollout.reward + self.weight * gain for rollout, gain in zip(group, gains, strict=True)]


def contributions(said_NE: Vectors, shown_ME: Vectors, measure: str) -> list[float]:
    """What each answer adds to the set's score, times the size of the set; each one's own with "nearest"."""
    if measure == "nearest":
        return [float(value) for value in (said_NE @ shown_ME.T).max(1)]

    def score(keep: Sequence[int]) -> float:
        if not keep:
            return 0.0
        return vendi(said_NE[keep]) if measure == "vendi" else -frechet(said_NE[keep], shown_ME)

    everyone = list(range(len(said_NE)))
    whole = score(everyone)
    return [len(everyone) * (whole - score(everyone[:i] + everyone[i + 1 :])) for i in everyone]
