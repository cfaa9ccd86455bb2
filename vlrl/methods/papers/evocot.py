"""First the answer is known and reasons are asked for; then fewer and fewer of these are given."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vlrl.methods.core.prompt_template import Chat
from vlrl.methods.papers.re_distillation import KEY
from vlrl.registry import register
from vlrl.types import Prompt, Row

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("evocot.answer_known")
@dataclass(frozen=True)
class EvocotAnswerKnown(Chat):
    """As `chat`, with the question put into `ask` together with the gold answer: the policy explains what it is told. The prompt's row stays.

    Paper: Liu et al. 2025 (EvoCoT), arXiv:2508.07809, stage 1; checked against collect_error.py of the release. Deviates: the words are ours. Edge: a
    row that is a conversation, or has no answer, is asked as ever. `ask` holds {question} and {answer}.
    """

    ask: str = "{question}\nThe answer is {answer}. Write down, step by step, how it follows."

    def __post_init__(self) -> None:
        super().__post_init__()
        if "{question}" not in self.ask or "{answer}" not in self.ask:
            raise ValueError(f"ask={self.ask!r} must hold {{question}} and {{answer}}")

    def __call__(self, row: Row) -> Prompt:
        if row.messages or row.answer is None:
            return super().__call__(row)
        parts = {"question": row.question, "answer": str(row.answer)}
        question = re.sub(r"\{(question|answer)\}", lambda match: parts[match[1]], self.ask)
        return replace(super().__call__(replace(row, question=question)), row=row)


@register("evocot.own_steps")
@dataclass(frozen=True)
class EvocotOwnSteps(Chat):
    """As `chat`, and the answer opens with the solution that callback `keep_right` kept of the row, without its last s steps.

    s = 1, 2, ... `most` in equal parts of the phase; steps end at `delimiter`. What is given is prompt, so it is not trained on, and part of the text
    that rewards read.
    Paper: Liu et al. 2025 (EvoCoT), arXiv:2508.07809, stage 2; checked against prepare_step_RL_data.py (delete_step: "\\n\\n", a prefix as the
    assistant's turn, right completions only) and 2QA2reasoning.sh (s from 1 to 10, one pass each). Deviates: one kept solution per row, not a random
    one of eight; a row with none, or with at most s steps, which the release leaves out, is asked as ever. Edge: held-out rows are asked as ever.
    """

    most: int = 10
    delimiter: str = "\n\n"
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most < 1 or not self.delimiter:
            raise ValueError(f"most={self.most} must be at least 1 and delimiter={self.delimiter!r} not empty")

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    @property
    def removed(self) -> int:
        """s now."""
        return min(1 + self.most * self.run.phase_step // self.run.settings.steps, self.most)

    def __call__(self, row: Row) -> Prompt:
        prompt = super().__call__(row)
        kept = self.run.history.get(row.id, {}).get(KEY) if self.run is not None else None
        steps = kept["text"].removeprefix(prompt.prefix).split(self.delimiter) if kept else []
        if len(steps) <= self.removed:
            return prompt
        return replace(prompt, prefix=prompt.prefix + self.delimiter.join(steps[: -self.removed]))

    def metrics(self) -> dict[str, float]:
        return {"steps/removed": float(self.removed)}
