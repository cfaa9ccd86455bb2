"""Answers that judge themselves: a right one and its verdict, or a wrong one, its verdict, and a better one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vlrl.methods.papers.judgerlvr import KEY
from vlrl.registry import ConfigError, register
from vlrl.stages import RolloutStrategy
from vlrl.types import Group, Prompt, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("self_rewarding_correction")
@dataclass(frozen=True)
class SelfRewardingCorrection(RolloutStrategy):
    """y = right attempt + `right`, or (even chance) wrong attempt + `wrong` + right attempt + `right`; source "kept", one per prompt, unsampled.

    Paper: Xiong et al. 2025 (self-rewarding correction), arXiv:2502.19613, first stage: sequential rejection sampling of attempt, verdict and
    correction, kept where verdicts and answers agree with the checker. Deviates: attempts are those of callback `keep_candidates`, so the correction
    is a right attempt of its own and was not written after the wrong one; the wrong attempt's tokens are not trained on, its verdict is; the
    verdicts' words could be checked in a secondary source alone. Edge: a row of which no pair was kept gives an empty group, which is counted and
    replaced. The choice is a function of the run's seed, the step and the row.
    """

    right: str = " [VERIFY] correct."
    wrong: str = " [VERIFY] wrong.\n"
    samples: ClassVar[bool] = False

    def check(self, run: RunContext) -> None:
        if run.objective.policy_loss.name != "zero_loss":
            raise ConfigError("strategy correction_traces gives one text per prompt to imitate; use surrogate: {name: none} with term nll")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        return [Group(prompt, self.trace(prompt, run)) for prompt in prompts]

    def trace(self, prompt: Prompt, run: RunContext) -> list[Rollout]:
        """The prompt's trace, if there is one."""
        pair = run.history.get(prompt.row.id, {}).get(KEY)
        if not pair:
            return []
        tokenizer = run.policy.tokenizer
        good = pair["yes"].removeprefix(prompt.prefix)
        bad = pair["no"].removeprefix(prompt.prefix)
        erring = random.Random(f"{run.seed}/traces/{run.step}/{prompt.row.id}").random() < 0.5
        skipped = tokenizer.encode(bad, add_special_tokens=False) if erring else []
        said = (self.wrong + pair["yes"] if erring else good) + self.right
        ids = [*skipped, *tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id]
        rollout = Rollout(prompt, ids, prompt.prefix + (bad if erring else "") + said, source="kept", spaces=tuple(run.policy.spaces(prompt)))
        rollout.loss_mask = [False] * len(skipped) + [True] * (len(ids) - len(skipped)) if erring else None
        return [rollout]
