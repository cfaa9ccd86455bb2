"""JudgeRLVR: the policy first learns to judge candidate solutions, then to generate them.

    judgerlvr.keep_candidates   callback of the first phase: keeps a correct and a wrong rollout of each
    prompt
    judgerlvr                   prompt sampler of the judge phase: draws rows with candidates
    judgerlvr.judge_prompt      prompt template of the judge phase: asks whether a candidate is correct

Paper: Duo et al. 2026 (JudgeRLVR), arXiv:2601.08468. No released code was found.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlrl.methods.core.prompt_sampler import Shuffle
from vlrl.methods.core.prompt_template import Chat
from vlrl.plugins.contexts import CallbackContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Callback
from vlrl.types import Group, Prompt, Row

# in a row's memory (`run.history`): {"yes": text of a correct rollout, "no": text of a wrong one}
KEY = "candidates"


@register("judgerlvr.keep_candidates")
@dataclass(frozen=True)
class JudgerlvrKeepCandidates(Callback):
    """JudgeRLVR's candidates: the texts of a correct and of a wrong rollout of each prompt that had both go
    into the run's history.

    Later ones replace earlier ones. Labels are balanced, and no prompt is too easy or too hard. Rollouts that
    were cut off are not kept. Every rank keeps what all ranks found. Logs the number of rows with candidates.
    Paper: Duo et al. 2026 (JudgeRLVR), arXiv:2601.08468: candidate solutions with verified labels. Deviates:
    they are the policy's own rollouts.
    """

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        for group in groups:
            texts = {
                rollout.correct: rollout.text
                for rollout in group
                if rollout.source == "policy" and not rollout.truncated
            }
            if len(texts) == 2:
                run.history.setdefault(group.row.id, {})[KEY] = {"yes": texts[True], "no": texts[False]}
        return {"rows": float(sum(KEY in memory for memory in run.history.values()))}


@register("judgerlvr")
@dataclass(frozen=True)
class Judgerlvr(Shuffle):
    """JudgeRLVR's sampler of the judge phase: as `shuffle`, over the rows that callback
    `judgerlvr.keep_candidates` kept candidates for.

    Paper: Duo et al. 2026 (JudgeRLVR), arXiv:2601.08468, first stage. Edge: raises ConfigError where no
    candidates were kept.
    """

    def __call__(self, n: int) -> list[Row]:
        if not any(KEY in memory for memory in self.run.history.values()):
            raise ConfigError(
                "prompt_sampler: 'judgerlvr' found no candidates; give an earlier phase callbacks: {keep: "
                "{name: judgerlvr.keep_candidates}}, "
                "and enough steps for prompts with correct and wrong rollouts"
            )
        return super().__call__(n)

    def usable_row(self, position: int) -> Row | None:
        row = super().usable_row(position)
        return row if row is not None and KEY in self.run.history.get(row.id, {}) else None


@register("judgerlvr.judge_prompt")
@dataclass(frozen=True)
class JudgerlvrJudgePrompt(Chat):
    """JudgeRLVR's judge prompt: as `chat`, with `ask` about a kept candidate of the row, correct or wrong
    with equal probability.

    The prompt's row has the gold answer "yes" or "no" and the task `as_task`, so that a reward of that task
    compares the verdict with the label. `ask` contains {question} and {attempt}, the candidate.
    Paper: Duo et al. 2026 (JudgeRLVR), arXiv:2601.08468, first stage: reward 1 if the verdict is the label.
    Deviates: the words are ours; the choice is a function of the run's seed, the step and the row. Edge: a
    row without candidates (a held-out row, say) gets its usual prompt.
    """

    ask: str = "{question}\nA proposed answer: {attempt}\nIs it right? Answer yes or no."
    as_task: str = "judge"

    def __post_init__(self) -> None:
        super().__post_init__()
        if "{question}" not in self.ask or "{attempt}" not in self.ask:
            raise ValueError(f"ask={self.ask!r} must contain {{question}} and {{attempt}}")

    def __call__(self, row: Row) -> Prompt:
        candidates = (
            self.run.history.get(row.id, {}).get(KEY) if self.is_set_up else None
        )  # the copies made for `tasks` are not set up
        if not candidates:
            return super().__call__(row)
        label = random.Random(f"{self.run.seed}/judge/{self.run.step}/{row.id}").choice(("yes", "no"))
        question = self.ask.replace("{attempt}", candidates[label]).replace("{question}", row.question)
        judged = replace(
            row,
            id=f"{row.id}/judge",
            question=question,
            answer=label,
            choices=(),
            target="",
            task=self.as_task,
            rewards=(),
        )
        return super().__call__(judged)
