"""Auxiliary tensors: the policy's entropy, its last hidden states, the load of its experts, and log-probs
under the reference policy.

Shapes: B rollouts, T completion tokens, N scored tokens, V vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlrl.functional import entropy_from_logits
from vlrl.methods.common.token_memory import TokenMemory, check_capacity
from vlrl.plugins.contexts import StageContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import AuxTensor, State, transient
from vlrl.services.lazy import Tensor, torch
from vlrl.types import TokenBatch


@register("entropy")
@dataclass(frozen=True, kw_only=True)
class Entropy(AuxTensor):
    """The policy's entropy at each completion token: H_t = -sum_v p_v log p_v, in nats, of the distribution
    that token t was drawn from.

    Paper: Shannon 1948; as a signal in RLVR: arXiv:2505.22617, eq. 2. Deviations: temperature-scaled, as
    sampled.
    Edge: a distribution with a single possible token has entropy 0. Shapes: logits (N, V) to (N,), with
    gradient.
    """

    in_forward = True

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        return entropy_from_logits(logits_NV)


@register("hidden")
@dataclass(frozen=True, kw_only=True)
class Hidden(AuxTensor):
    """h_t, the last layer's hidden state that predicts token t, without gradient.

    vlrl original (an input to other plug-ins, for instance of arXiv:2509.23808). Shapes: (N, H). As large as
    hidden size x tokens: for signals, not for long runs.
    """

    in_forward = True
    reads_hidden = True

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        return hidden_NH.detach().float()


@register("expert_load")
@dataclass(frozen=True, kw_only=True)
class ExpertLoad(AuxTensor):
    """How evenly a micro-batch's tokens are spread over a mixture's experts: the balancing loss with its
    gradient, and the busiest expert's load; both are 1 if the load is even.

    All tokens count, prompts and pictures too; every scored token carries the micro-batch's two numbers, so
    that any aggregation is their mean over micro-batches. Paper: arXiv:2101.03961, eq. 4 to 6. Raises
    ConfigError for a model without routers that can be read. Shapes: (N, 2).
    """

    in_forward = True
    reads_routing = True

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        run.policy.read_routers("loss term router_balance")


@dataclass
class ReferenceState(State):
    """Saved is the reference, which the policy keeps."""

    policy: Any = transient()
    memory: TokenMemory = transient(factory=lambda: TokenMemory(0))

    def state_dict(self) -> dict[str, Any]:
        return self.policy.reference_state() if self.policy is not None else {}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        if values:
            self.policy.load_reference(values)


@register("ref_logp")
@dataclass(frozen=True, kw_only=True)
class RefLogp(AuxTensor):
    """Log-probs of the sampled tokens under the reference policy: log pi_ref(y_t | x, y_<t), in nats,
    temperature-scaled as sampled.

    The reference is the policy at the start of the run (or phase): with a LoRA adapter the same model with
    the adapter switched off, else a frozen copy, made once, which survives a restart. Paper:
    arXiv:2402.03300, eq. 4. Edge: zero outside the loss mask. Shapes: (B, T), no gradient. Rollouts that come
    again (from a replay buffer, demonstrations, accepted drafts) are not computed again: `remember` is the
    number of tokens whose values are kept, 4 bytes each (0: none). They are forgotten when the reference
    changes.
    """

    remember: int = 1 << 22

    def __post_init__(self) -> None:
        check_capacity(self.remember)

    def init_state(self) -> ReferenceState:
        return ReferenceState(memory=TokenMemory(self.remember))

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        run.policy.keep_reference()
        self.state.policy = run.policy

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        with torch.no_grad(), policy.reference() as reference:
            if not self.is_set_up:
                return reference.forward(batch)["logp"]
            return self.state.memory(
                self.run, reference.model, batch, lambda part: reference.forward(part)["logp"]
            )
