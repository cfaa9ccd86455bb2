"""Is this attempt right?"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vlrl.methods.callback.judgerlvr import KEY
from vlrl.registry import register
from vlrl.types import Prompt, Row

from .chat import Chat

if TYPE_CHECKING:
    from vlrl.run import Run


@register("judge")
@dataclass(frozen=True)
class Judge(Chat):
    """As `chat`, with `ask` about an attempt of the row that callback `keep_candidates` kept, right or wrong by even chance; gold "yes" or "no".

    The prompt's row has the task `as_task`, so that a reward of that task compares the verdict with the label.
    Paper: Duo et al. 2026 (JudgeRLVR), arXiv:2601.08468, first stage: reward 1 if the verdict is the label. Deviates: the words are ours; the chance
    is a function of the run's seed, the step and the row. Edge: a row without attempts (held-out rows, say) is asked as ever. `ask` holds
    {question} and {attempt}.
    """

    ask: str = "{question}\nA proposed answer: {attempt}\nIs it right? Answer yes or no."
    as_task: str = "judge"
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if "{question}" not in self.ask or "{attempt}" not in self.ask:
            raise ValueError(f"ask={self.ask!r} must hold {{question}} and {{attempt}}")

    def setup(self, run: Run) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, row: Row) -> Prompt:
        kept = self.run.history.get(row.id, {}).get(KEY) if self.run is not None else None
        if not kept:
            return super().__call__(row)
        label = random.Random(f"{self.run.seed}/judge/{self.run.step}/{row.id}").choice(("yes", "no"))
        question = self.ask.replace("{attempt}", kept[label]).replace("{question}", row.question)
        asked = replace(row, id=f"{row.id}/judge", question=question, answer=label, choices=(), target="", task=self.as_task, rewards=())
        return super().__call__(asked)
