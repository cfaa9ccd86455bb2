"""A right and a wrong attempt of each prompt, kept to be judged.

Is this attempt right?

Rows with attempts to judge.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vlrl.methods.core.prompt_sampler import Shuffle
from vlrl.methods.core.prompt_template import Chat
from vlrl.registry import ConfigError, register
from vlrl.stages import Callback
from vlrl.types import Group, Prompt, Row

if TYPE_CHECKING:
    from vlrl.context import RunContext

KEY = "candidates"


@register("judgerlvr.keep_candidates")
@dataclass(frozen=True)
class JudgerlvrKeepCandidates(Callback):
    """The texts of a right and of a wrong rollout of each prompt that had both go into the run's history; later ones replace earlier ones.

    So labels are balanced, and no prompt is too easy or too hard. Sampler `judged` and scaffold `judge` make questions of them.
    Paper: Duo et al. 2026 (JudgeRLVR), arXiv:2601.08468: candidate solutions with verified labels. Deviates: they are the policy's own. Right means a
    reward above `threshold`; cut-off rollouts are not kept. Every rank keeps what all ranks found.
    """

    threshold: float = 0.5

    def __call__(self, run: RunContext, groups: Sequence[Group]) -> dict[str, float]:
        for group in groups:
            texts = {rollout.reward > self.threshold: rollout.text for rollout in group if rollout.source == "policy" and not rollout.truncated}
            if len(texts) == 2:
                run.history.setdefault(group.row.id, {})[KEY] = {"yes": texts[True], "no": texts[False]}
        return {"rows": float(sum(KEY in memory for memory in run.history.values()))}


@register("judgerlvr.judge_prompt")
@dataclass(frozen=True)
class JudgerlvrJudgePrompt(Chat):
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

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, row: Row) -> Prompt:
        kept = self.run.history.get(row.id, {}).get(KEY) if self.run is not None else None
        if not kept:
            return super().__call__(row)
        label = random.Random(f"{self.run.seed}/judge/{self.run.step}/{row.id}").choice(("yes", "no"))
        question = self.ask.replace("{attempt}", kept[label]).replace("{question}", row.question)
        asked = replace(row, id=f"{row.id}/judge", question=question, answer=label, choices=(), target="", task=self.as_task, rewards=())
        return super().__call__(asked)


@register("judgerlvr")
@dataclass(frozen=True)
class Judgerlvr(Shuffle):
    """As `shuffle`, over the rows of which callback `keep_candidates` kept attempts.

    Paper: Duo et al. 2026 (JudgeRLVR), arXiv:2601.08468, first stage. Edge: raises ConfigError where nothing was kept.
    """

    def setup(self, run: RunContext) -> None:
        super().setup(run)
        self._state["run"] = run

    def __call__(self, n: int) -> list[Row]:
        if not any(KEY in memory for memory in self._state["run"].history.values()):
            raise ConfigError(
                "sampler 'judged': no attempts were kept; give an earlier phase callbacks: {keep: {name: keep_candidates}} and more steps"
            )
        return super().__call__(n)

    def _try(self, position: int) -> Row | None:
        row = super()._try(position)
        return row if row is not None and KEY in self._state["run"].history.get(row.id, {}) else None
