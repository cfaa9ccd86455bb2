"""How far the trainer's log-probs are from the engine's, in numbers for the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vlrl.registry import register
from vlrl.stages import Callback
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("mismatch")
@dataclass(frozen=True)
class Mismatch(Callback):
    """d_t = log pi_trainer(y_t) - log pi_engine(y_t) (nats), over the trained tokens of a step.

    mean = mean |d|, max = max |d|, kl = mean(e^d - 1 - d) (the k3 estimate of KL(engine || trainer)), ess = (sum w)^2 / (n sum w^2) with w = e^d,
    in (0, 1]: the share of tokens that importance weighting would leave; seq_ess the same with w of whole rollouts.
    vlrl original (k3: Schulman 2020; effective sample size: Kong 1992). Edge: nothing sampled by an engine gives no numbers.
    Costs one pass without gradient per step where old log-probs are not computed anyway.
    """

    needs = ("old_logp",)

    def __call__(self, run: Run, groups: Sequence[Group]) -> dict[str, float]:
        rows = []
        for rollout in (r for group in groups for r in group if r.source == "policy" and r.logp and "old_logp" in r.signals):
            gap_T = torch.tensor(rollout.signals["old_logp"], dtype=torch.float64) - torch.tensor(rollout.logp, dtype=torch.float64)
            rows.append(gap_T if rollout.loss_mask is None else gap_T[torch.tensor(rollout.loss_mask)])
        if not rows or not sum(map(len, rows)):
            return {}
        gap_N = torch.cat(rows)
        return {
            "mean": gap_N.abs().mean().item(),
            "max": gap_N.abs().max().item(),
            "kl": (torch.expm1(gap_N) - gap_N).mean().item(),
            "ess": _share(gap_N),
            "seq_ess": _share(torch.stack([row.sum() for row in rows])),
        }


def _share(log_weight_N: torch.Tensor) -> float:
    """Effective sample size of weights exp(log_weight), as a share of N."""
    weight_N = (log_weight_N - log_weight_N.max()).exp()
    return (weight_N.sum() ** 2 / (len(weight_N) * (weight_N**2).sum())).item()
