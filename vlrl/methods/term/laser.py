"""The policy learns to say, in one token, whether its answer is right."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from vlrl.registry import register
from vlrl.stages import Term
from vlrl.types import LossInputs, PerToken

if TYPE_CHECKING:
    from vlrl.run import Run


@register("laser")
@dataclass(frozen=True, kw_only=True)
class SelfReward(Term):
    """w (beta (log pi(z | x, y) - c) - 1[r > threshold])^2 per rollout that has the token z of shape `last_token`; 0 for the others.

    w = n / (2 n_k) with `balanced`: n rollouts of the group, n_k of them as right (or wrong) as this one; 1 where the group is of one kind.
    Paper: Yang et al. 2025 (LaSeR), arXiv:2510.14943; released script: coefficient 0.1, beta 0.1, c -23 (a constant for the reference's
    log-prob), balanced, from step 200 on (`start`). Deviates: the release balances over the batch. Shapes: (B,); log-probs in nats.
    """

    coef: float = 0.1
    beta: float = 0.1
    c: float = -23.0
    balanced: bool = True
    threshold: float = 0.5
    start: int = 0
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def setup(self, run: Run) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, x: LossInputs) -> PerToken:
        on = self.run is None or self.run.phase_step >= self.start
        rollouts = x.batch.rollouts
        places = [rollout.info.get("self_reward_at", -1) if on else -1 for rollout in rollouts]
        right = [float(r > self.threshold) for r in x.reward_B.tolist()]
        kinds = Counter(zip(x.group_B.tolist(), right))
        totals = Counter(x.group_B.tolist())
        weights = []
        for place, g, ok in zip(places, x.group_B.tolist(), right):
            mixed = self.balanced and kinds[g, ok] < totals[g]
            weights.append((totals[g] / (2 * kinds[g, ok]) if mixed else 1.0) if place >= 0 else 0.0)
        at_B = torch.tensor([max(place, 0) for place in places], device=x.logp_BT.device)
        weight_B, right_B = (torch.tensor(values, device=x.logp_BT.device, dtype=x.logp_BT.dtype) for values in (weights, right))
        said_B = self.beta * (x.logp_BT.gather(1, at_B[:, None])[:, 0] - self.c)
        loss_B = torch.where(weight_B > 0, weight_B * (said_B - right_B).square(), 0.0 * x.logp_BT[:, 0])
        known_B = weight_B > 0
        agree_B = ((said_B.detach() > 0.5) == (right_B > 0.5))[known_B].to(x.logp_BT.dtype)
        return PerToken(loss_B, {"laser/agrees": agree_B.mean() if len(agree_B) else loss_B.new_zeros(())})
