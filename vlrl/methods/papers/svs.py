"""SvS: self-play with variational problem synthesis. The policy writes variants of problems that it often
fails, from its own correct solutions.

`svs` is a rollout strategy: it solves the problems, writes variants of some, and solves these. The reward
`solve_rate` pays a variant that is neither trivial nor too hard.

Paper: Liang et al. 2025 (SvS), arXiv:2508.14029; checked against the release: MasterVito/SvS at 9fd8f353,
verl/trainer/ppo/ray_trainer.py, prompts/variational_problem_synthesis.txt, scripts/run_svs_qwen2.5_3b.sh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.common.correctness import success_rate
from vlrl.methods.common.prompts import check_task, derived_row, neutralised, prompts_within_limit
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import PhaseContext, SamplingContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import StepCounts
from vlrl.types import Group, Prompt, Rollout, Row

SOLVE_RATE: Annotation[float] = Annotation(
    "svs.solve_rate",
    float,
    hint="rollout: {name: svs}",
    doc="share of correct solutions of the problem that the rollout wrote; 0 without a problem",
)


@register("svs")
@dataclass(frozen=True)
class Svs(Independent):
    """SvS: where low <= accuracy <= high, each correct solution is the prompt for `variants` new problems
    with its answer; n rollouts solve each.

    Three kinds of groups are trained on: the given problems; the writing (task `task`, prompt `ask` with
    {solution}), whose annotation SOLVE_RATE, for the reward `solve_rate`, is the share of correct solutions
    (0: no problem was written); and the written problems, scored as the given one. Variants have its
    pictures. Paper: Liang et al. 2025 (SvS), arXiv:2508.14029, sec. 3; low 0.125, high 0.5, 8 variants.
    Deviates: the words of `ask` are ours, with the release's content. Edge: a problem too long for a prompt
    has SOLVE_RATE 0. Logs writing prompts and problems read.

    Attributes:
        open, close: Around the problem: the first block that `open` begins behind the last `</think>`;
            without one, the first block of three backticks. A block need not be closed.
        solutions: Correct solutions used at most (0: all).
    """

    state_class = StepCounts
    low: float = 0.125
    high: float = 0.5
    variants: int = 8
    solutions: int = 0
    task: str = "synthesis"
    ask: str = (
        "You write problems for tests. A model gave this response to a problem that you do not "
        "see:\n\n<response>\n{solution}\n</response>\n\nThe "
        "response is correct. Work out its topic, the kind of reasoning that it uses, and what the problem "
        "was meant to teach. Then write one clear "
        "problem, as a course could set it, that fits the response exactly and has its final answer. Put "
        "the problem alone into a block:\n"
        "```text\n(the problem)\n```"
    )
    open: str = "```text"
    close: str = "```"
    provides = (SOLVE_RATE,)

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < 1 or self.variants < 1 or self.solutions < 0:
            limits = f"variants={self.variants} >= 1 and solutions={self.solutions} >= 0"
            raise ValueError(f"0 < low={self.low} <= high={self.high} < 1, {limits} are needed")
        if "{solution}" not in self.ask:
            raise ValueError(f"ask={self.ask!r} must contain {{solution}}")

    def check(self, phase: PhaseContext) -> None:
        check_task(phase, self.name, self.task)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        writing = {row.id: (row, group.row) for group in groups for row in self.writing_rows(group)}
        writing_prompts = prompts_within_limit(run, [row for row, _ in writing.values()])
        written = super().__call__(writing_prompts, [self.variants] * len(writing_prompts), run)
        problems: dict[str, tuple[Row, Rollout]] = {}
        for group in written:
            given = writing[group.row.id][1]
            for place, rollout in enumerate(group):
                SOLVE_RATE.set(rollout, 0.0)
                text = self.problem(rollout.text)
                if text:
                    suffix = f"{group.row.id.removeprefix(given.id + '/')}-{place}"
                    row = derived_row(given, suffix, text, given.answer, given.task, given.rewards)
                    problems[row.id] = (row, rollout)
        self.state.add(writing=len(written), problems=len(problems))
        problem_prompts = prompts_within_limit(run, [row for row, _ in problems.values()])
        solved = super().__call__(problem_prompts, [run.group_size] * len(problem_prompts), run)
        run.score(solved)
        for group in solved:
            if len(group):
                SOLVE_RATE.set(problems[group.row.id][1], success_rate(group.rollouts))
        return groups + written + solved

    def writing_rows(self, group: Group) -> list[Row]:
        """Rows that ask for variants, one per correct solution of a problem whose accuracy is in [low,
        high]."""
        if not len(group) or not self.low <= success_rate(group.rollouts) <= self.high:
            return []
        correct = [(place, rollout) for place, rollout in enumerate(group) if rollout.correct]
        return [
            derived_row(
                group.row,
                f"write-{place}",
                self.ask.replace("{solution}", neutralised(rollout.text)),
                group.row.answer,
                self.task,
            )
            for place, rollout in correct[: self.solutions or len(correct)]
        ]

    def problem(self, text: str) -> str:
        """The text of the first block behind the last </think>: between `open` and `close`, else between two
        `close`, or to the end of a text that closes none; "" without a block."""
        spoken = text.rpartition("</think>")[2]
        _, opened, rest = spoken.partition(self.open if self.open in spoken else self.close)
        return neutralised(rest.partition(self.close)[0]) if opened else ""

    def metrics(self) -> dict[str, tuple[float, float]]:
        return self.state.totals("svs")
