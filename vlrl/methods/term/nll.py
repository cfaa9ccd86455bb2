"""Maximum likelihood."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlrl.methods.weight.own_tokens import own
from vlrl.registry import register
from vlrl.stages import Term
from vlrl.types import LossInputs, PerToken


@register("nll")
@dataclass(frozen=True, kw_only=True)
class NLL(Term):
    """L = -log pi (nats per token), on all rollouts or on those of one `source` (and with a reward of at least `min_reward`).

    `given` true: only on tokens that a demonstration began the rollout with (`info["given"]` many).
    Paper: vlrl original (the supervised loss); `given`: SEELE, arXiv:2509.06923, eq. 10.  Edge: no rollout qualifies: zero.
    """

    source: str = ""
    min_reward: float = float("-inf")
    given: bool = False

    def __call__(self, x: LossInputs) -> PerToken:
        keep = [not self.source or rollout.source == self.source for rollout in x.batch.rollouts]
        keep_B = torch.tensor(keep, device=x.logp_BT.device) & (x.reward_B >= self.min_reward)
        keep_BT = keep_B[:, None] & ~own(x) if self.given else keep_B[:, None]
        nll_BT = torch.where(keep_BT, -x.logp_BT, 0.0)
        return PerToken(nll_BT, {"nll": nll_BT.detach()})
