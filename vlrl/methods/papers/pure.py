"""PURE: min-form credit assignment for process rewards, where the worst step of a rollout decides its return.

    pure                    advantage estimator that writes advantages per token, for token_credit
    `per_token`; reads STEP_SCORES pure.process_rewards    reward shaping that writes them: the scores of a
    process reward model

Paper: Cheng et al. 2025 (PURE), arXiv:2504.15275, eq. 5-8, with released code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from vlrl.beside.process import open_process_reward_model
from vlrl.methods.common.step_scores import STEP_SCORES, steps_of
from vlrl.methods.core.advantage import RLOO, GroupRelative, set_token_advantages, whiten_rows
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, RewardShaping, State, transient
from vlrl.types import Group, Rollout


@register("pure")
@dataclass(frozen=True)
class Pure(GroupRelative):
    """PURE's advantage: outcome RLOO plus the return of the softmin-weighted step scores, whitened over all
    tokens of the batch.

        A_{i,t} = outcome RLOO_i + sum_{k >= step of t} (r'_k - b_k),  r' = softmin(r / T) r

    r are the step scores of a rollout; the return of r' is near the smallest. b_k is
    the baseline: with `baseline` "token" the others' r' per token times the tokens of the step, with
    "step" the mean over the others of their r' per step. Paper: Cheng et al. 2025 (PURE), arXiv:2504.15275,
    eq. 5-8; T 0.1, outcome 1 (verifiable_reward_coef) and the token baseline as in the released code.
    Deviates: the release's whitening counts the ends of steps. Edge: a rollout without steps, and tokens
    after the last step, have only the outcome; without steps of siblings there is no baseline.

    Attributes:
        mask_ends: The last token of a step has advantage 0 (it never counts in its step).
    """

    temperature: float = 0.1
    outcome: float = 1.0
    baseline: Literal["token", "step"] = "token"
    mask_ends: bool = True
    provides = (TOKEN_ADVANTAGES,)
    requires = (STEP_SCORES,)

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        check_token_credit(phase, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        rows, last_tokens = [], []
        for group, outcomes in zip(groups, RLOO()(groups), strict=True):
            steps = [STEP_SCORES.get(rollout, []) for rollout in group]
            shaped = [softmin_rewards([r for _, r in s], self.temperature) for s in steps]
            for i, (rollout, ends, values, outcome) in enumerate(
                zip(group, steps, shaped, outcomes, strict=True)
            ):
                bounds = [0, *(end for end, _ in ends)]
                widths = [end - start for start, end in pairwise(bounds)]
                tokens = [sum(rollout.trained_mask[start : end - 1]) for start, end in pairwise(bounds)]
                gains = [
                    value - b
                    for value, b in zip(values, self.baselines(group, shaped, i, tokens), strict=True)
                ]
                row = [self.outcome * outcome] * len(rollout)
                start = 0
                for k, width in enumerate(widths):
                    row[start : start + width] = [self.outcome * outcome + math.fsum(gains[k:])] * width
                    start += width
                rows.append(row)
                last_tokens.append([end - 1 for end, _ in ends] if self.mask_ends else [])
        whiten_rows(rows, [rollout for group in groups for rollout in group], left_out=last_tokens)
        return set_token_advantages(groups, rows)

    def baselines(
        self, group: Group, shaped: Sequence[Sequence[float]], i: int, widths: Sequence[int]
    ) -> list[float]:
        """b_k of rollout i, one per step, from the other rollouts; `widths` are the trained tokens of its
        steps without their last ones."""
        others = [
            (math.fsum(values), len(values), max(rollout.trained_tokens, 1))
            for j, (rollout, values) in enumerate(zip(group, shaped))
            if j != i and values
        ]
        if not others:
            return [0.0] * len(widths)
        if self.baseline == "step":
            return [math.fsum(total / steps for total, steps, _ in others) / len(others)] * len(widths)
        per_token = math.fsum(total for total, _, _ in others) / sum(tokens for _, _, tokens in others)
        return [per_token * width for width in widths]


def softmin_rewards(rewards: Sequence[float], temperature: float) -> list[float]:
    """r'_i = softmin(r / T)_i * r_i: their sum is close to min r for small T."""
    low = min(rewards, default=0.0)
    weights = [math.exp(-(r - low) / temperature) for r in rewards]
    return [w / math.fsum(weights) * r for w, r in zip(weights, rewards)]


@dataclass
class ProcessRewardsState(State):
    """The process reward model, loaded when the phase begins."""

    model: Any = transient()


@register("pure.process_rewards")
@dataclass(frozen=True)
class PureProcessRewards(RewardShaping):
    """PURE's step scores: P(right) - P(wrong) of a process reward model at the end of each step; writes
    STEP_SCORES.

    A step ends with the token in which `delimiter` ends, the last one with the rollout. The model reads the
    prompt as the policy does, then each step without the delimiter and with `mark` behind it. Rewards are
    unchanged. Every rank holds a whole model. Paper: Cheng et al. 2025 (PURE), arXiv:2504.15275; released
    code: CJReinforce/PURE, openrlhf/trainer/ppo_utils/experience_maker.py at 41f9363: steps, mark, score.
    Deviates: steps are tokenised anew by the model's own tokenizer. Edge: a step without text has no score
    and belongs to the next one; a rollout without text has no steps.

    Attributes:
        model: A folder or a hub id of a model for token classification with two labels, such as
            jinachris/PURE-PRM-7B; "tiny" has random weights, for tests.
    """

    state_class = ProcessRewardsState
    model: str = ""
    delimiter: str = "\n\n"
    mark: str = "\n"
    provides = (STEP_SCORES,)

    def __post_init__(self) -> None:
        if not self.delimiter:
            raise ConfigError(
                "reward_shaping: delimiter of 'pure.process_rewards' is empty; name the text that ends a "
                "step, like a blank line"
            )

    def check(self, phase: PhaseContext) -> None:
        if not self.model:
            hint = (
                "reward_shaping.process.model=PATH, a model for token classification such as "
                "jinachris/PURE-PRM-7B"
            )
            raise ConfigError(
                f"reward_shaping: 'pure.process_rewards' has no `model`; name a process reward model: {hint}"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.model = open_process_reward_model(self.model, self.mark, run.policy)

    def __call__(self, group: Group) -> list[float]:
        ends = [self.steps(rollout) for rollout in group]
        solutions = [
            (self.run.policy.render(rollout.prompt), [text for _, text in steps])
            for rollout, steps in zip(group, ends)
        ]
        for rollout, steps, scores in zip(group, ends, self.state.model.scores(solutions), strict=True):
            STEP_SCORES.set(rollout, [(end, score) for (end, _), score in zip(steps, scores, strict=True)])
        return group.rewards

    def steps(self, rollout: Rollout) -> list[tuple[int, str]]:
        """(end in tokens, text without the delimiter) of each step."""
        return steps_of(rollout, self.run.policy, self.delimiter)
