"""CogDual: the likelihood that a character's thoughts add to its reference reply, and the likeness of the
reply.

Paper: CogDual, arXiv:2507.17147: SFT, then RL with an inference-conditioned likelihood gain and a latent
semantic alignment. No released code was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.functional.exact import mean
from vlrl.methods.papers.memory_r import embedding
from vlrl.methods.papers.rlpr import Rlpr
from vlrl.plugins.registry import register
from vlrl.types import Group


@register("cogdual")
@dataclass(frozen=True)
class Cogdual(Rlpr):
    """CogDual's rewards: total = gain G + alignment S,

        G = mean_j [log p(y*_j | x, z, y*_<j) - log p(y*_j | x, y*_<j)],  S = cos(e(y), e(y*))

    z is what the rollout wrote up to `opening`, y its reply, y* the reference (`row.answer`). Paper:
    arXiv:2507.17147 (ICLG and LSA; their weights could not be read). Deviates: e is hashed character
    trigrams, not a sentence encoder; gain is cut to [-1, 1]. Edge: no `opening`: the group's smallest value,
    at most 0. Log-probs (nats) at temperature 1.
    """

    gain: float = 1.0
    alignment: float = 1.0

    def __call__(self, group: Group) -> list[float]:
        gains = super().__call__(group)
        reference = embedding(str(group.row.answer))
        out = []
        for rollout, value in zip(group, gains, strict=True):
            reply = rollout.text.rpartition(self.opening)[2].partition(self.closing)[0]
            said = embedding(reply if self.opening in rollout.text else "")
            likeness = sum(a * b for a, b in zip(said, reference, strict=True))
            out.append(self.gain * value + self.alignment * likeness)
        return out

    def scores(
        self, base: Sequence[float], logps: Sequence[Sequence[float]], lengths: Sequence[int], m: int
    ) -> list[float]:
        return [min(1.0, max(-1.0, mean(row) - mean(base))) for row in logps]
