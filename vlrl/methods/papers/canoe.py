"""What the policy answers when its own long answer stands in for the context."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.methods.common.derived_prompts import fitting, harmless
from vlrl.methods.core.rollout import Independent
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Prompt, Request, Row

if TYPE_CHECKING:
    from vlrl.context import RunContext


def inside(text: str, tag: str) -> re.Match[str] | None:
    """The only `<tag>...</tag>` of a text; None if there is none, or more than one."""
    found = list(re.finditer(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL))
    return found[0] if len(found) == 1 else None


@register("canoe")
@dataclass(frozen=True)
class Canoe(Independent):
    """After the rollouts of a prompt, one answer more for each that has a long answer: to the same question with that as its context.

    The question holds its context between `<context>` tags, the rollout its long answer between `<long_answer>` tags; what comes back is text, kept
    in `rollout.info["proxy"]` (None where there is no long answer), for the reward `proxy`. It is not trained on.
    Paper: Si et al. 2025 (CANOE, Dual-GRPO), arXiv:2505.16483; checked against a copy of the released rewards (influence_reward). The trainer that
    samples these answers could not be read: one sample, drawn as the run samples, is ours.
    Edge: a long answer that makes too long a prompt gives None. All ranks sample for their own prompts. Raises ConfigError for a row without a
    context.
    """

    context: str = "context"
    long_answer: str = "long_answer"

    def restated(self, row: Row, text: str) -> Row | None:
        """The row with a rollout's long answer as its context."""
        place, long = inside(row.question, self.context), inside(text, self.long_answer)
        if place is None:
            raise ConfigError(f"strategy own_context: the question of row {row.id!r} has no single <{self.context}>...</{self.context}> to replace")
        if long is None or not long[1].strip():
            return None
        question = row.question[: place.start(1)] + harmless(long[1]) + row.question[place.end(1) :]
        return dataclasses.replace(row, question=question)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        requests = []
        for group in groups:
            for rollout in group:
                rollout.info["proxy"] = None
                row = self.restated(group.row, rollout.text)
                for prompt in fitting(run, [row] if row is not None else []):
                    requests.append(Request(prompt, run.sampling(prompt, 0), 1, self.seeds(run, prompt), tag=rollout))
        for completion in run.engine.generate(requests):
            completion.request.tag.info["proxy"] = completion.request.prompt.prefix + completion.text
        return groups
