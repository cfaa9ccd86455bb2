"""PPO's clip where some tokens were put into a rollout by chance, with a known probability."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlrl.methods.surrogate.ppo_clip import clipped
from vlrl.registry import register
from vlrl.stages import Surrogate
from vlrl.types import LossInputs, PerToken


@register("balance_heuristic")
@dataclass(frozen=True)
class BalanceHeuristic(Surrogate):
    """-min(r A, clip(r, 1 - low, 1 + high) A), r = pi / mu; mu = (1 - a) pi_old + a q for the tokens that a probe was given, pi_old for all others.

    q is the probability that they were put in with (what the rollout notes as their log-prob), a the share of probes in the group: the mixture that
    the group was drawn from (Veach and Guibas 1995). Read from `rollout.info`: "probe" (first and last + 1 of those tokens) and "probes" (a).
    Paper: Jiang et al. 2025 (REX-RAG), arXiv:2508.08149, multiple importance sampling; q checked against exploration_distribution.py of the release.
    Deviates: the formula of the correction could not be read; this is the usual heuristic. Edge: |log q| and |log r| are held below 20.
    """

    low: float = 0.2
    high: float = 0.2

    def __call__(self, x: LossInputs) -> PerToken:
        mu_BT = x.old_logp_BT.clone()
        for row, rollout in enumerate(x.batch.rollouts):
            if "probe" in rollout.info:
                given, share = slice(*rollout.info["probe"]), torch.as_tensor(rollout.info["probes"], dtype=mu_BT.dtype, device=mu_BT.device)
                put = x.sampled_logp_BT[row, given].to(mu_BT).clamp(-20, 0)
                mu_BT[row, given] = torch.logaddexp(mu_BT[row, given] + (1 - share).log(), put + share.log())
        log_BT = ((x.logp_BT - mu_BT) * x.mask_BT).clamp(-20, 20)
        return clipped(log_BT.exp(), x.advantage_BT, self.low, self.high)
