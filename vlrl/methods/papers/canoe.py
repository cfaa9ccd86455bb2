"""CANOE (Dual-GRPO): long answers that are faithful to their context, rewarded if the short answer also
follows from the long one alone.

`canoe` is a rollout strategy: it asks the question again with the long answer in place of the context. The
reward `proxy` scores what comes back.

Paper: Si et al. 2025 (CANOE, Dual-GRPO), arXiv:2505.16483; checked against the release: S1s-Z/CANOE at
c6b215cc, train/src/open_r1/grpo.py (the rewards) and train/TRL/trl/trainer/grpo_trainer.py (one sample per
long answer, at the run's temperature).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.common.prompts import neutralised, prompts_within_limit
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import SamplingContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Group, Prompt, Request, Row

PROXY_ANSWER: Annotation[str | None] = Annotation(
    "proxy",
    (str, type(None)),
    hint="rollout: {name: canoe}",
    doc="the policy's answer with the rollout's long answer as its context; None without a long answer",
)


@register("canoe")
@dataclass(frozen=True)
class Canoe(Independent):
    """CANOE's proxy answers: after the rollouts of a prompt, one further answer for each that has a long
    answer, given that as its context.

    The question holds its context between `<context>` tags, the rollout its long answer between
    `<long_answer>` tags; `context` and `long_answer` name other tags. The further answer is text in the
    annotation PROXY_ANSWER of the rollout, for the reward `proxy`; it is not trained on. Edge: a long answer
    that makes the prompt too long gives None. All ranks sample for their own prompts. Raises ConfigError for
    a row without a context.
    """

    context: str = "context"
    long_answer: str = "long_answer"
    provides = (PROXY_ANSWER,)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        requests = []
        for group in groups:
            for rollout in group:
                PROXY_ANSWER.set(rollout, None)
                row = self.restated(group.row, rollout.text)
                for prompt in prompts_within_limit(run, [row] if row is not None else []):
                    requests.append(
                        Request(prompt, run.sampling(prompt, 0), 1, self.seeds(run, prompt), tag=rollout)
                    )
        for completion in run.engine.generate(requests):
            PROXY_ANSWER.set(completion.request.tag, completion.request.prompt.prefix + completion.text)
        return groups

    def restated(self, row: Row, text: str) -> Row | None:
        """The row with the long answer of a rollout's text as its context; None without a long answer."""
        context, long = only_tag(row.question, self.context), only_tag(text, self.long_answer)
        if context is None:
            raise ConfigError(
                f"rollout canoe: the question of row {row.id!r} has no single "
                f"<{self.context}>...</{self.context}> to replace"
            )
        if long is None or not long[1].strip():
            return None
        question = row.question[: context.start(1)] + neutralised(long[1]) + row.question[context.end(1) :]
        return dataclasses.replace(row, question=question)


def only_tag(text: str, tag: str) -> re.Match[str] | None:
    """The match of `<tag>(...)</tag>`; None if there is none, or more than one."""
    found = list(re.finditer(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL))
    return found[0] if len(found) == 1 else None
