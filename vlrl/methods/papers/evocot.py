r"""EvoCoT: the policy first explains known answers; then it continues its own explanations, of which less and
less is given.

`evocot.answer_known` is the prompt template of stage 1, whose correct explanations callback
`re_distillation.keep_correct` keeps; `evocot.own_steps` that of stage 2. The stages are phases
(configs/methods/evocot.yaml).

Paper: Liu et al. 2025 (EvoCoT), arXiv:2508.07809; stage 1 checked against collect_error.py, stage 2 against
prepare_step_RL_data.py (delete_step: "\n\n", a prefix as the assistant's turn, correct completions only) and
2QA2reasoning.sh (s from 1 to 10, one pass each) of the release. Deviates: the stage 1 prompt's words are
ours; one kept solution per row, not a random one of eight; a row without one, or with at most s steps, has
its plain prompt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from vlrl.methods.core.prompt_template import Chat
from vlrl.methods.papers.re_distillation import KEY
from vlrl.plugins.registry import register
from vlrl.types import Prompt, Row


@register("evocot.answer_known")
@dataclass(frozen=True)
class EvocotAnswerKnown(Chat):
    """EvoCoT stage 1: as `chat`, with the question and the gold answer inserted into `ask`, so that the
    policy explains a known answer.

    `ask` holds {question} and {answer}. The prompt's row stays the original one. Edge: a row that is a
    conversation, or has no answer, has its plain prompt.
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
    """EvoCoT stage 2: as `chat`, and the answer begins with the row's kept solution without its last s steps.

    s = 1, 2, ... `max_removed` in equal parts of the phase; steps end at `delimiter`. The given steps are
    part of the prompt, so they are not trained on, and of the text that rewards read. Edge: held-out rows,
    which have no kept solution, have their plain prompt.
    """

    max_removed: int = 10
    delimiter: str = "\n\n"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_removed < 1 or not self.delimiter:
            raise ValueError(
                f"max_removed={self.max_removed} must be at least 1 and delimiter={self.delimiter!r} not "
                "empty"
            )

    @property
    def removed(self) -> int:
        """The current s."""
        return min(1 + self.max_removed * self.run.phase_step // self.run.settings.steps, self.max_removed)

    def __call__(self, row: Row) -> Prompt:
        prompt = super().__call__(row)
        kept = self.run.history.get(row.id, {}).get(KEY) if self.is_set_up else None
        steps = kept["text"].removeprefix(prompt.prefix).split(self.delimiter) if kept else []
        if not steps or len(steps) <= self.removed:
            return prompt
        return replace(prompt, prefix=prompt.prefix + self.delimiter.join(steps[: -self.removed]))

    def metrics(self) -> dict[str, float]:
        return {"evocot/removed_steps": float(self.removed)}
