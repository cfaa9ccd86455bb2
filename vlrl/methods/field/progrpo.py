"""How sure the policy is of the question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vlrl.registry import register
from vlrl.stages import Field
from vlrl.types import Prompt, TokenBatch


@register("prompt_confidence")
@dataclass(frozen=True, kw_only=True)
class PromptConfidence(Field):
    """c(q) = exp(mean_t log pi(q_t | q_<t)) over the prompt's text tokens, the same number at every token of its completions.

    Paper: Li et al. 2026 (ProGRPO), arXiv:2602.05281, sec. 4 (prompt perplexity).  Media placeholders are not scored. One forward per prompt, at
    temperature 1.
    Edge: a prompt of fewer than two text tokens has c = 1.  Shapes: (B, T), no gradient.
    """

    at_start = True

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        with torch.no_grad(), policy.computing():
            values = torch.tensor([self.of(policy, prompt) for prompt in batch.prompts], device=batch.ids_BT.device)
        return values[batch.prompt_B][:, None].expand(batch.ids_BT.shape).contiguous()

    def of(self, policy: Any, prompt: Prompt) -> float:
        """c(q) of one prompt."""
        encoded, family, model = policy.encode(prompt), policy.family, policy.model
        ids_L = torch.tensor(encoded.ids, device=policy.device)
        seen = policy.look(list(encoded.features)) if encoded.features else []
        kinds = [feature.kind for feature in encoded.features]
        positions = encoded.positions.to(policy.device).unsqueeze(-2)
        hidden, _ = family.hidden(model, ids_L[None], positions, None, seen, kinds)
        text_L = torch.tensor([kind == 0 for kind in encoded.types], device=policy.device)[1:]
        if not text_L.any():
            return 1.0
        logits = family.logits(model, hidden[0, :-1][text_L]).float()
        logp = logits.log_softmax(-1).gather(-1, ids_L[1:][text_L][:, None])
        return float(logp.mean().exp())
