"""RAST: what RL changed in a small model, added to a large model's logits at every step of decoding.

Paper: Ouyang et al. 2025 (RAST), arXiv:2506.15710, eq. 3; ozyyshr/RAST at 75d1e55b,
contrast_decode_worker.py:541-558 (base + alpha (expert - antiexpert)) and scripts/run_hyperparameter.sh
(alpha 0.3 .. 1.0).

Shapes: V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl.methods.common.side_models import Continuation, SideModel, fitted
from vlrl.methods.core.sampling import Plain
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import StepCounts, transient
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Prompt, Sampling


@dataclass
class ShiftState(StepCounts):
    """`models` are the two side models."""

    models: Any = transient()


@dataclass(frozen=True)
class ShiftedSampling(Plain):
    """Base of sampling with z + strength (z_plus - z_minus): `models` names the two, "" is
    the policy itself.

    Logs `gain`, the mean of log p_plus - log p_minus of the drawn tokens (nats), by which they follow the
    difference.
    """

    state_class = ShiftState
    strength: float = 1.0

    @abstractmethod
    def models(self) -> tuple[str, str]:
        """(plus, minus)."""

    @property
    def factor(self) -> float:
        """What the difference is multiplied with."""
        return self.strength

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if not all(self.models()[1:]):
            raise ConfigError(f"sampling: {self.name!r} needs models beside the policy; see `vlrl list`")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        where = f"sampling: {self.name!r}"
        self.state.models = [
            SideModel(run, model, where, place + 1) if model else None
            for place, model in enumerate(self.models())
        ]

    def __call__(self, prompt: Prompt, attempt: int) -> Sampling:
        plain = super().__call__(prompt, attempt)
        if not self.is_set_up:
            return plain
        plus, minus = (
            Continuation(model, prompt, self.run) if model is not None else None
            for model in self.state.models
        )
        return replace(plain, processors=(Shift(plus, minus, self.factor, self.state),))

    def metrics(self) -> dict[str, tuple[float, float]]:
        return {f"{self.name}/gain": self.state.share("gain", "tokens")}


class Shift:
    """The logits processor of one prompt: z + strength (z_plus - z_minus), where None stands for z."""

    def __init__(
        self, plus: Continuation | None, minus: Continuation | None, strength: float, state: ShiftState
    ) -> None:
        self.plus, self.minus, self.strength, self.state = plus, minus, strength, state
        self.last: dict[
            tuple[int, ...], Tensor
        ] = {}  # log p_plus - log p_minus before a token, by the tokens

    def __call__(self, ids: Sequence[int], logits_V: Tensor) -> Tensor:
        key = tuple(ids)
        if key and (gap_V := self.last.pop(key[:-1], None)) is not None:
            self.state.add(gain=float(gap_V[key[-1]]), tokens=1.0)
        plus_V, minus_V = (
            fitted(side(key), logits_V) if side is not None else logits_V for side in (self.plus, self.minus)
        )
        self.last[key] = torch.log_softmax(plus_V, -1) - torch.log_softmax(minus_V, -1)
        return logits_V + self.strength * (plus_V - minus_V)


@register("rast")
@dataclass(frozen=True)
class Rast(ShiftedSampling):
    """RAST: samples the policy, a large base model, from z + strength (z_tuned - z_base): the change that RL
    made in a small model of the same vocabulary.

    Paper: arXiv:2506.15710, eq. 3; released code: alpha 1.0. Temperature and filters act on the sum, as
    there. Deviates: one token at a time for each completion, without batching the small models. Edge: the
    log-probs of the rollouts are those of the sum, so training on them is off-policy; the preset trains
    nothing. Engines: hf, vllm in the process.

    Attributes:
        tuned, base: The small model after and before RL (a folder, a hub id, or "start").
    """

    tuned: str = ""
    base: str = ""

    def models(self) -> tuple[str, str]:
        return self.tuned, self.base
