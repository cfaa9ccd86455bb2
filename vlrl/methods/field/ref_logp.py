"""Log-probs of the sampled tokens under the reference policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vlrl.registry import register
from vlrl.stages import Field
from vlrl.types import TokenBatch


@register("ref_logp")
@dataclass(frozen=True, kw_only=True)
class RefLogp(Field):
    """log pi_ref(y_t | x, y_<t), in nats, temperature-scaled as sampled.

    The reference is the policy as the run (or phase) began: with a LoRA adapter the same model with the adapter switched off, else a frozen
    copy, made once, which survives a restart. Paper: arXiv:2402.03300, eq. 4. Edge: zero outside the loss mask. Shapes: (B, T), no gradient.
    """

    held: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def setup(self, run: Any) -> None:
        run.policy.keep_reference()
        self.held["policy"] = run.policy

    def state_dict(self) -> dict[str, Any]:
        return self.held["policy"].reference_state() if self.held else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held["policy"].load_reference(state)

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        with torch.no_grad(), policy.reference() as reference:
            return reference.forward(batch)["logp"]
