"""SwS: the policy's weaknesses, from the accuracy of its visits, become new problems of the same concepts.

    sws          callback: records the accuracy of every visit of a row sws.augment  rollout strategy:
    writes problems from weak rows, labels them by its votes, and keeps those in range

Paper: Liang et al. 2025 (SwS), arXiv:2506.08989, sec. 3 (weakness identification, concept extraction and
recombination, generation, filtering); MasterVito/SwS by the catalogue of methods: accuracy bounds 0.125 and
0.875."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.common.correctness import success_rate
from vlrl.methods.common.prompts import derived_row, neutralised, prompts_within_limit
from vlrl.methods.core.metric import answer_of
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.contexts import CallbackContext, SamplingContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Callback, StepCounts
from vlrl.types import Group, Prompt, Row

KEY = "accuracies"  # in a row's memory (`run.history`): of its visits, in order


def is_weak(accuracies: Sequence[float], low: float) -> bool:
    """Whether a row stays weak: below `low` at its last visit, and no better than at its first."""
    return bool(accuracies) and accuracies[-1] < low and accuracies[-1] <= accuracies[0]


@register("sws")
@dataclass(frozen=True)
class Sws(Callback):
    """SwS's record of weaknesses: the share of correct rollouts of each visit of a row goes into the run's
    history.

    Logs the number of rows that are weak. Paper: arXiv:2506.08989, sec. 3.1: rows that stay below `low` and
    do not improve. Deviates: no slope is fitted; the last visit is compared with the first."""

    low: float = 0.5

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        for group in run.answered_groups:
            run.history.setdefault(group.row.id, {}).setdefault(KEY, []).append(success_rate(group.rollouts))
        return {"weak": float(sum(is_weak(memory.get(KEY, ()), self.low) for memory in run.history.values()))}


@register("sws.augment")
@dataclass(frozen=True)
class SwsAugment(Independent):
    """SwS's synthesis: for every weak row among the prompts, the policy writes a problem that joins its
    concept with that of another weak row of the task, and solves it n times; the majority answer is its
    label.

    A problem is trained on where the share of answers that agree is in [low, high]. Concepts are
    `row.meta[concept]`, or the questions themselves. Paper: arXiv:2506.08989, sec. 3.2-3.3. Deviates: the
    policy writes and votes where the paper asks other models (and two judges for quality); concepts are not
    embedded. Edge: a problem without text, or too long, is left out. Logs problems written and kept.

    Attributes:
        weak: Rows below this accuracy are weak, as in callback `sws`.
        pattern: Reads the answers that vote.
    """

    state_class = StepCounts
    weak: float = 0.5
    low: float = 0.125
    high: float = 0.875
    concept: str = "concept"
    task: str = "writing"
    ask: str = (
        "Write one new problem that needs both of these, with a single answer, and nothing "
        "else.\n- {first}\n- {second}"
    )
    pattern: str = r"<answer>(.*?)</answer>"

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < 1:
            raise ValueError(f"0 < low={self.low} <= high={self.high} < 1 is needed")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        weak = [p.row for p in prompts if is_weak(run.history.get(p.row.id, {}).get(KEY, ()), self.weak)]
        asked = prompts_within_limit(run, [self.writing(row, weak, run) for row in weak])
        given = {f"{row.id}/write": row for row in weak}
        written = super().__call__(asked, [1] * len(asked), run)
        rows = []
        for group in written:
            row = given[group.row.id]
            if text := neutralised(group.rollouts[0].text):
                rows.append(derived_row(row, "sws", text, row.answer, row.task, row.rewards))
        solving = prompts_within_limit(run, rows)
        solved = super().__call__(solving, [run.group_size] * len(solving), run)
        kept = [labelled for group in solved if (labelled := self.labelled(group)) is not None]
        self.state.add(written=len(solved), kept=len(kept))
        return [*groups, *kept]

    def writing(self, row: Row, weak: Sequence[Row], run: SamplingContext) -> Row:
        """The row that asks for a problem."""
        others = [other for other in weak if other.task == row.task and other.id != row.id] or [row]
        other = random.Random(f"{run.seed}/{run.step}/{row.id}").choice(others)
        first, second = (str(one.meta.get(self.concept, one.question)) for one in (row, other))
        return derived_row(row, "write", self.ask.format(first=first, second=second), row.answer, self.task)

    def labelled(self, group: Group) -> Group | None:
        """The group with its majority answer as the row's; None where too many or too few agree."""
        answers = [answer_of(rollout.text, self.pattern) for rollout in group]
        label, votes = Counter(answers).most_common(1)[0]
        if not label or not self.low <= votes / len(answers) <= self.high:
            return None
        row = derived_row(group.row, "labelled", group.row.question, label, group.row.task, group.row.rewards)
        prompt = self.run.prompt_template(row)
        for rollout in group:
            rollout.prompt = prompt
        return Group(prompt, group.rollouts, group.id)

    def metrics(self) -> dict[str, tuple[float, float]]:
        return {**self.state.totals("sws", "written"), "sws/kept": self.state.share("kept", "written")}
