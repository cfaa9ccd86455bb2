"""Clone the right, push away the wrong in proportion.

The tokens that a reward model finds decisive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from vlrl.methods.core.advantage import RLOO, GroupRelative
from vlrl.registry import ConfigError, register
from vlrl.stages import TokenWeight
from vlrl.types import Group, LossInputs

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("oreal")
@dataclass(frozen=True)
class OREAL(GroupRelative):
    """A_i = `positive` RLOO_i N / N+ for right rollouts, `negative` RLOO_i N / N- for wrong ones; N, N+, N- count the trained tokens of the step.

    With surrogate `reinforce` and reduction `token_mean` the first is behaviour cloning, the second policy gradient on failures, each a mean over its
    own tokens. `one_each` trains only on the first right and the first wrong rollout of a group (the loss mask of the others is emptied); the
    baseline sees all.
    Paper: Lyu et al. 2025, arXiv:2502.06781, eq. 7-8; positive 1.0, negative 0.5, RLOO as factor of both and one rollout of each kind as in the
    released code.  Deviates: of each kind the first rollout is taken, there one at random, which is the same for independent samples.
    Edge: groups that are all right or all wrong have no signal.
    """

    positive: float = 1.0
    negative: float = 0.5
    one_each: bool = True
    threshold: float = 0.5

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        tokens = {True: 0, False: 0}
        kept: list[list[bool | None]] = []
        for group in groups:
            right = [r > self.threshold for r in group.rewards]
            chosen = {right.index(kind) for kind in (True, False) if kind in right} if self.one_each else set(range(len(right)))
            kept.append([kind if i in chosen else None for i, kind in enumerate(right)])
            for i, rollout in enumerate(group):
                if i in chosen:
                    tokens[right[i]] += len(rollout) if rollout.loss_mask is None else sum(rollout.loss_mask)
                else:
                    rollout.loss_mask = [False] * len(rollout)
        factor = {kind: coef * sum(tokens.values()) / max(tokens[kind], 1) for kind, coef in ((True, self.positive), (False, self.negative))}
        return [
            [0.0 if kind is None else factor[kind] * a for kind, a in zip(kinds, row, strict=True)]
            for kinds, row in zip(kept, RLOO()(groups), strict=True)
        ]


@register("oreal.decisive_tokens")
@dataclass(frozen=True)
class OrealDecisiveTokens(TokenWeight):
    """w_t = clip((p_t - threshold) / (1 - threshold), 0, 1), p_t = sigmoid of the mean logit of tokens 1..t; where A < 0 with 1 - p_t for p_t.

    Logits are field `token_score` (a head on the policy's states) or `model_value` (a model of its own); their mean over a rollout learns its
    outcome. The first `warmup` steps weigh nothing: only the scorer learns.
    Paper: Lyu et al. 2025 (OREAL), arXiv:2502.06781, sec. 3.3; running mean, threshold 0.5 and the frozen steps (10 of 90) as in the released code.
    """

    threshold: float = 0.5
    warmup: int = 10
    scores: Literal["token_score", "model_value"] = "token_score"
    run: Any = field(init=False, default=None, repr=False, compare=False)

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.scores,)

    def check(self, run: RunContext) -> None:
        wanted = {"token_score": "critic", "model_value": "critic_model"}[self.scores]
        if not any(callback.name == wanted for callback in run.callbacks.values()):
            raise ConfigError(f"token_weights: oreal needs a scorer that learns; add callbacks: {{critic: {{name: {wanted}, objective: outcome}}}}")

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, x: LossInputs) -> Tensor:
        if self.run is not None and self.run.phase_step < self.warmup:
            return torch.zeros_like(x.mask_BT)
        count_BT = x.mask_BT.cumsum(-1).clamp(min=1)
        right_BT = ((x[self.scores].detach() * x.mask_BT).cumsum(-1) / count_BT).sigmoid()
        speaks_BT = torch.where(x.advantage_BT < 0, 1 - right_BT, right_BT)
        return ((speaks_BT - self.threshold) / (1 - self.threshold)).clamp(0, 1)
