"""Rewards for long answers that are faithful to their context (CANOE)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.combine.nested import OverReward, number

PROXY_ANSWER: Annotation[str | None] = Annotation(
    "proxy",
    (str, type(None)),
    hint="rollout: {name: canoe}",
    doc="the policy's answer with the rollout's long answer as its context; None without a long answer",
)


@register("proxy")
@dataclass(frozen=True, kw_only=True)
class Proxy(OverReward):
    """CANOE's proxy reward: the answer that follows from the policy's own long answer.

        r = score of `of` on the answer in PROXY_ANSWER

    The policy gave that answer with its own long answer as context. Without one r = 0.
    Paper: Si et al. 2025 (CANOE), arXiv:2505.16483, proxy reward: a long answer is faithful if the short
    answer follows from it; checked against a copy of the release (influence_reward: equal texts between
    answer tags). Range: that of `of`. Raises ValueError without the rollout strategy `canoe`, which asks for
    the answer.
    """

    requires = (PROXY_ANSWER,)
    decides: ClassVar[bool] = False
    of: Mapping[str, Any] = field(default_factory=lambda: {"name": "exact"})

    def __call__(self, rollout: Rollout) -> float:
        if not PROXY_ANSWER.on(rollout):
            raise ValueError(
                f"row {rollout.row.id!r}: there is no answer with the long answer as context; use rollout: "
                f"{{name: canoe}}"
            )
        proxy = PROXY_ANSWER[rollout]
        if proxy is None:
            return 0.0
        return number(self.inner, dataclasses.replace(rollout, text=proxy, rewards={}, info={}))


@register("part_of_context")
@dataclass(frozen=True, kw_only=True)
class PartOfContext(Reward):
    """CANOE's length reward: the length of the long answer relative to its context.

        r = 1[low < n / m < high]

    n: characters between `<long_answer>` tags, m: characters of the question's `<context>`, both trimmed.
    Paper: Si et al. 2025 (CANOE), arXiv:2505.16483; checked against a copy of the release (len_reward: 0.2
    and 0.8, both exclusive). Deviates: several lines are read too, which the release's pattern does not
    match. Edge: no long answer, several, or no context: 0.
    """

    reads_answer: ClassVar[bool] = False
    low: float = 0.2
    high: float = 0.8

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(f"low={self.low}, high={self.high}: give 0 <= low < high")

    def __call__(self, rollout: Rollout) -> float:
        contexts = re.findall(r"<context>(.*?)</context>", rollout.row.question, re.DOTALL)
        answers = re.findall(r"<long_answer>(.*?)</long_answer>", rollout.text, re.DOTALL)
        if len(contexts) != 1 or len(answers) != 1 or not contexts[0].strip():
            return 0.0
        return float(self.low < len(answers[0].strip()) / len(contexts[0].strip()) < self.high)
