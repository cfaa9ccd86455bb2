"""The policy's entropy at each completion token.

The last hidden state.

Log-probs of the sampled tokens under the reference policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vlrl.functional import entropy_from_logits
from vlrl.registry import register
from vlrl.stages import AuxTensor
from vlrl.types import TokenBatch


@register("entropy")
@dataclass(frozen=True, kw_only=True)
class Entropy(AuxTensor):
    """H_t = -sum_v p_v log p_v, in nats, of the distribution that token t was drawn from.

    Paper: Shannon 1948; as a signal in RLVR: arXiv:2505.22617, eq. 2. Deviations: temperature-scaled, as sampled.
    Edge: a distribution with a single possible token has entropy 0. Shapes: logits (N, V) to (N,), with gradient.
    """

    in_forward = True

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        return entropy_from_logits(logits_NV)


@register("hidden")
@dataclass(frozen=True, kw_only=True)
class Hidden(AuxTensor):
    """h_t, the last layer's state that predicts token t, without gradient.

    Paper: vlrl original (an input to others, for instance arXiv:2509.23808).  Shapes: (N, H).  As large as hidden size x tokens: for signals, not
    for long runs.
    """

    in_forward = True
    reads_hidden = True

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        return hidden_NH.detach().float()


@register("ref_logp")
@dataclass(frozen=True, kw_only=True)
class RefLogp(AuxTensor):
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
