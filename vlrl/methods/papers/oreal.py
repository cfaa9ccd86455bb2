"""OREAL: behaviour cloning on correct rollouts, policy gradient on wrong ones, and a token-level reward model
that weights the tokens.

    oreal                   advantage: separate coefficients and token means for correct and wrong rollouts
    oreal.decisive_tokens   token weight: from a scorer that learns outcomes (callback `critic` or
    `critic_model` with objective: outcome)

Paper: Lyu et al. 2025 (OREAL), arXiv:2502.06781, with released code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl.methods.common.schedule import check_begins, steps_of
from vlrl.methods.core.advantage import RLOO, GroupRelative
from vlrl.methods.core.critic import OUTCOME_CRITIC, OUTCOME_CRITIC_MODEL
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import TokenWeight
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, LossInputs


@register("oreal")
@dataclass(frozen=True)
class OREAL(GroupRelative):
    """OREAL's advantage: RLOO, scaled so that correct and wrong rollouts each have a mean over their own
    tokens.

        A_i = positive RLOO_i N / N+ for a correct rollout,  negative RLOO_i N / N- for a wrong one

    N, N+ and N- count the trained tokens of the step: all, of correct and of wrong rollouts. With
    `policy_gradient` and `token_mean` the first is behaviour cloning, the second policy gradient on failures.
    `one_each` trains only on the first correct and the first wrong rollout of a group; the baseline is
    computed from all. Paper: Lyu et al. 2025, arXiv:2502.06781, eq. 7-8; positive 1.0, negative 0.5, RLOO and
    one rollout of each kind as in the released code. Deviates: there one at random, which is the same for
    independent samples. Edge: groups that are all correct or all wrong have no signal.
    """

    positive: float = 1.0
    negative: float = 0.5
    one_each: bool = True

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        tokens = {True: 0, False: 0}
        kinds: list[
            list[bool | None]
        ] = []  # per rollout: correct or wrong; None for one that is not trained on
        for group in groups:
            correct = [rollout.correct for rollout in group]
            chosen = (
                {correct.index(kind) for kind in (True, False) if kind in correct}
                if self.one_each
                else set(range(len(correct)))
            )
            kinds.append([kind if i in chosen else None for i, kind in enumerate(correct)])
            for i, rollout in enumerate(group):
                if i in chosen:
                    tokens[correct[i]] += rollout.trained_tokens
                else:
                    rollout.leave_out([False] * len(rollout))
        factor = {
            kind: coef * sum(tokens.values()) / max(tokens[kind], 1)
            for kind, coef in ((True, self.positive), (False, self.negative))
        }
        return [
            [0.0 if kind is None else factor[kind] * a for kind, a in zip(row_kinds, row, strict=True)]
            for row_kinds, row in zip(kinds, RLOO()(groups), strict=True)
        ]


@register("oreal.decisive_tokens")
@dataclass(frozen=True)
class OrealDecisiveTokens(TokenWeight):
    """OREAL's token weights: w_t = clip((p_t - threshold) / (1 - threshold), 0, 1), p_t = sigmoid of the mean
    logit of tokens 1..t.

    Where A < 0, 1 - p_t replaces p_t. Logits are the aux tensor `token_score` (a head on the policy's states)
    or `model_value` (a separate model); their mean over a rollout is trained to predict its outcome. In the
    first `warmup` steps of the phase (below 1: a share of its steps) all weights are 0: only the scorer
    learns. Paper: Lyu et al. 2025 (OREAL), arXiv:2502.06781, sec. 3.3; running mean, threshold 0.5 and the
    frozen steps (10 of 90) as in the released code. Shapes: (B, T).
    """

    threshold: float = 0.5
    warmup: float = 10
    scores: Literal["token_score", "model_value"] = "token_score"

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.scores,)

    @property
    def requires(self) -> tuple[Capability, ...]:
        return ({"token_score": OUTCOME_CRITIC, "model_value": OUTCOME_CRITIC_MODEL}[self.scores],)

    def check(self, phase: PhaseContext) -> None:
        check_begins(phase, f"token_weights: {self.name!r} warmup", self.warmup)

    def __call__(self, x: LossInputs) -> Tensor:
        if self.is_set_up and self.run.phase_step < steps_of(self.warmup, self.run):
            return torch.zeros_like(x.mask_BT)
        count_BT = x.mask_BT.cumsum(-1).clamp(min=1)
        p_correct_BT = ((x[self.scores].detach() * x.mask_BT).cumsum(-1) / count_BT).sigmoid()
        p_BT = torch.where(x.advantage_BT < 0, 1 - p_correct_BT, p_correct_BT)
        return ((p_BT - self.threshold) / (1 - self.threshold)).clamp(0, 1)
