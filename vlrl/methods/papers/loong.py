"""Loong: new questions with programs that answer them; the program is run, and the answer that it gives
verifies the chains of thought.

Paper: Loong, arXiv:2509.03059, sec. 3 (seed questions with code, generators in the manner of few-shot,
self-instruct and evol-instruct, execution, verification of the agent's answer against the code's);
camel-ai/loong at f8015bca has the seed data and a cookbook (cookbooks/env_with_generator.ipynb)."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.methods.common.prompts import derived_row, neutralised, prompts_within_limit
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.contexts import PhaseContext, SamplingContext
from vlrl.plugins.registry import home_of, register
from vlrl.plugins.stages import Reward, StepCounts
from vlrl.types import Group, Prompt, Row

STYLES = {
    "few_shot": "Write one new question like these:",
    "self_instruct": "Write one new question of the same field as these, on another topic:",
    "evol_instruct": "Write a harder version of the last of these questions:",
}
FORM = (
    "\n{examples}\nGive the question, then a ```python block with a function f() that takes no "
    "arguments and returns the "
    "answer."
)


@register("loong")
@dataclass(frozen=True)
class Loong(Independent):
    """Loong's synthetic environment: for each prompt the policy writes `questions` new ones with a program;
    what the program returns is the answer of the new row, which is solved n times.

    The row keeps its task, so that the verifier of its domain compares the answers. Groups: the given
    prompts, then the new questions. Paper: arXiv:2509.03059, sec. 3. Deviates: the policy is the generator,
    and its writing is not trained on; a program is run twice and must agree with itself. Edge: writing
    without a question or a program that returns a number or a text is left out. Logs questions written and
    valid.

    Attributes:
        style: "few_shot", "self_instruct" or "evol_instruct".
        examples: Questions of the step's prompts of the same task that are shown.
    """

    state_class = StepCounts
    style: Literal["few_shot", "self_instruct", "evol_instruct"] = "few_shot"
    questions: int = 1
    examples: int = 3
    sandbox: str = "bubblewrap"
    seconds: float = 2.0

    def __post_init__(self) -> None:
        if self.questions < 1 or self.examples < 1:
            raise ValueError(f"questions={self.questions} and examples={self.examples} must be at least 1")

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        home_of(Reward, "code.sandbox").require(self.sandbox)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        given = {f"{prompt.row.id}/write": prompt.row for prompt in prompts}
        rows = list(given.values())
        asked = prompts_within_limit(run, [self.writing(row, rows, run) for row in rows])
        written = super().__call__(asked, [self.questions] * len(asked), run)
        made = [
            new
            for group in written
            for place, rollout in enumerate(group)
            if (new := self.made(given[group.row.id], place, rollout.text)) is not None
        ]
        self.state.add(written=sum(map(len, written)), valid=len(made))
        solving = prompts_within_limit(run, made)
        return [*groups, *super().__call__(solving, [run.group_size] * len(solving), run)]

    def writing(self, row: Row, rows: Sequence[Row], run: SamplingContext) -> Row:
        """The row that asks for a question."""
        others = [other.question for other in rows if other.task == row.task and other.id != row.id]
        draw = random.Random(f"{run.seed}/{run.step}/{row.id}")
        shown = [*draw.sample(others, min(self.examples - 1, len(others))), row.question]
        listed = "\n".join(f"- {question}" for question in shown)
        text = STYLES[self.style] + FORM.format(examples=listed)
        return derived_row(row, "write", text, row.answer, f"{row.task}_writing")

    def made(self, row: Row, place: int, text: str) -> Row | None:
        """The new row of a writing; None where it has no question, or no program that answers it."""
        question = neutralised(text.partition("```")[0])
        program = home_of(Reward, "code.verifier").program_in(text)
        if not question or "def f(" not in program:
            return None
        outputs = home_of(Reward, "code.triplets").executed(program, [[], []], self.sandbox, self.seconds)
        if outputs[0] is None or outputs[0] != outputs[1]:
            return None
        value: Any = json.loads(outputs[0])
        if not isinstance(value, (int, float, str)) or isinstance(value, bool):
            return None
        return derived_row(row, f"new-{place}", question, str(value), row.task, row.rewards)

    def metrics(self) -> dict[str, tuple[float, float]]:
        return {**self.state.totals("loong", "written"), "loong/valid": self.state.share("valid", "written")}
