"""ProGRPO: advantages re-weighted by confidence, larger for rollouts of which the policy is less sure than of
the prompt.

    progrpo.prompt_confidence   aux tensor: confidence in the prompt, from its perplexity
    progrpo                     advantage: GRPO plus the difference of the confidences

Paper: Li et al. 2026 (ProGRPO), arXiv:2602.05281, sec. 4 and eq. 7-9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.methods.core.advantage import GRPO
from vlrl.plugins.registry import register
from vlrl.plugins.stages import AuxTensor
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, Prompt, Rollout, TokenBatch


@register("progrpo.prompt_confidence")
@dataclass(frozen=True, kw_only=True)
class ProgrpoPromptConfidence(AuxTensor):
    """Prompt confidence: c(q) = exp(mean_t log pi(q_t | q_<t)) over the prompt's text tokens, the same number
    at every token of its completions.

    Paper: Li et al. 2026 (ProGRPO), arXiv:2602.05281, sec. 4 (prompt perplexity). Media placeholders are not
    scored. One forward per prompt, at temperature 1. Edge: a prompt of fewer than two text tokens has c = 1.
    Shapes: (B, T), no gradient.
    """

    at_start = True

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        with torch.no_grad(), policy.autocast():
            values = torch.tensor(
                [self.of(policy, prompt) for prompt in batch.prompts], device=batch.ids_BT.device
            )
        return values[batch.prompt_B][:, None].expand(batch.ids_BT.shape).contiguous()

    def of(self, policy: Any, prompt: Prompt) -> float:
        """c(q) of one prompt."""
        encoded, family, model = policy.encode(prompt), policy.family, policy.model
        ids_L = torch.tensor(encoded.ids, device=policy.device)
        media = policy.encode_media(list(encoded.features)) if encoded.features else []
        kinds = [feature.kind for feature in encoded.features]
        positions = encoded.positions.to(policy.device).unsqueeze(-2)
        hidden, _ = family.hidden(model, ids_L[None], positions, None, media, kinds)
        text_L = torch.tensor([kind == 0 for kind in encoded.types], device=policy.device)[1:]
        if not text_L.any():
            return 1.0
        logits = family.logits(model, hidden[0, :-1][text_L]).float()
        logp = logits.log_softmax(-1).gather(-1, ids_L[1:][text_L][:, None])
        return float(logp.mean().exp())


@register("progrpo")
@dataclass(frozen=True)
class ProGRPO(GRPO):
    """ProGRPO's advantage: A_i = GRPO_i + alpha (c(q) - c(o_i | q)); plain GRPO where no rollout of the group
    is correct.

    c(q) is the aux tensor `progrpo.prompt_confidence`; c(o|q) = exp(mean log pi) over the `share` of a
    rollout's tokens of lowest probability. Paper: Li et al. 2026, arXiv:2602.05281, eq. 7-9 (share 0.2).
    Deviates: alpha is vlrl's.
    Edge: a group in which all rollouts are correct has a signal: towards the completions of which the policy
    is less sure.
    """

    alpha: float = 0.3
    share: float = 0.2
    needs = ("progrpo.prompt_confidence",)

    def confidence(self, rollout: Rollout) -> float:
        """c(o|q) of one rollout."""
        logp = sorted(
            value
            for value, trained in zip(rollout.signals.get("old_logp") or rollout.logp, rollout.trained_mask)
            if trained
        )
        lowest = logp[: max(1, math.ceil(self.share * len(logp) - 1e-9))]
        return math.exp(math.fsum(lowest) / len(lowest)) if lowest else 1.0

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        result = []
        for group, row in zip(groups, super().__call__(groups)):
            if any(rollout.correct for rollout in group):
                row = [
                    a + self.alpha * (r.signals["progrpo.prompt_confidence"][0] - self.confidence(r))
                    for a, r in zip(row, group)
                ]
            result.append(row)
        return result
