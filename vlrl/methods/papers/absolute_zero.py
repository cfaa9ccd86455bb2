"""Absolute Zero: one policy proposes code tasks that can be checked by running them, and solves them; no
data.

    absolute_zero             rollout strategy: proposals, the tasks that are valid, and their solutions
    absolute_zero.advantage   advantage: TRR++, a baseline for each pair of role and kind

Paper: Zhao et al. 2025 (Absolute Zero), arXiv:2505.03335; LeapLabTHU/Absolute-Zero-Reasoner at a82124e5:
rewards/reward_managers.py, trainer/ppo/azr_ray_trainer.py, configs/azr_ppo_trainer.yaml,
scripts/selfplay/7b.sh."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.functional.exact import mean, std
from vlrl.methods.common.correctness import success_rate
from vlrl.methods.common.prompts import neutralised, prompts_within_limit
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import SamplingContext
from vlrl.plugins.registry import home_of, register
from vlrl.plugins.stages import AdvantageEstimator, Reward, StepCounts
from vlrl.types import Group, Prompt, Rollout, Row

KINDS = ("deduction", "abduction", "induction")
ASK = {
    "deduction": "What does this call return?\n```python\n{program}\n```\nf({arguments})\nGive the "
    "value inside "
    "<answer> </answer> tags.",
    "abduction": "For which arguments does this function return "
    "{output}?\n```python\n{program}\n```\nGive the "
    "arguments, separated by commas, inside <answer> </answer> tags.",
    "induction": "Write the function f that gives these results, as a program in a ```python block:\n{cases}",
}
PROPOSE = (
    "Propose a new task: a deterministic function f in a ```python block, and arguments for it in "
    "a ```input block "
    "(values separated by commas). Make it unlike these:\n{references}"
)
SEED = {"program": "def f(x):\n    return x", "arguments": ["Hello World"], "output": '"Hello World"'}


SOLVED: Annotation[float] = Annotation(
    "absolute_zero.solved",
    float,
    hint="rollout: {name: absolute_zero}",
    doc="share of right solutions of the proposed task; -1 for a proposal that is not valid",
)


def triplets() -> Any:
    """The rewards' module that runs triplets."""
    return home_of(Reward, "code.triplets")


@dataclass
class AbsoluteZeroState(StepCounts):
    """`buffer` holds the valid triplets so far, by kind: program, arguments, output."""

    buffer: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


@register("absolute_zero")
@dataclass(frozen=True)
class AbsoluteZero(Independent):
    """Absolute Zero's self-play: each prompt (`row.meta.kind`) becomes one that shows `references` past
    triplets and asks for a new one; what runs twice with one result is a task, which is solved `solves`
    times.

    SOLVED is the share of right solutions of a proposal's task, -1 where it is not valid; for reward
    `triplet`. Groups: the proposals, then the solutions of `tasks` valid tasks of each prompt. Induction
    shows the program's results on arguments of `cases` past triplets. Paper: arXiv:2505.03335, sec. 3.1-3.3.
    Deviates: the words; a step proposes and solves at once, of one kind per prompt; induction shows all its
    cases, the paper half of them. Logs the share of valid proposals and the size of the buffer.
    """

    state_class = AbsoluteZeroState
    references: int = 6
    solves: int = 8
    tasks: int = 1
    cases: int = 3
    sandbox: str = "bubblewrap"
    seconds: float = 2.0

    def __post_init__(self) -> None:
        if min(self.references, self.solves, self.tasks, self.cases) < 1:
            raise ValueError(
                f"references={self.references}, solves={self.solves}, tasks={self.tasks} and "
                f"cases={self.cases} must "
                "be at least 1"
            )

    provides = (SOLVED,)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        kinds = {prompt.row.id: str(prompt.row.meta["kind"]) for prompt in prompts}
        asked = prompts_within_limit(run, [self.proposing(prompt.row, run) for prompt in prompts])
        proposals = super().__call__(asked, [run.group_size] * len(asked), run)
        rows: list[tuple[Row, Rollout]] = []
        for group in proposals:
            kind = kinds[group.row.id.removesuffix("/propose")]
            made = [self.task_of(group.row, rollout, kind, len(rows), i) for i, rollout in enumerate(group)]
            found = [task for task in made if task is not None]
            self.state.add(proposals=len(group), valid=len(found))
            rows += found[: self.tasks]
        chosen = {row.id: rollout for row, rollout in rows}
        solving = prompts_within_limit(run, [row for row, _ in rows])
        solved = super().__call__(solving, [self.solves] * len(solving), run)
        run.score(solved)
        for group in solved:
            SOLVED.set(chosen[group.row.id], success_rate(group.rollouts))
        return [*proposals, *solved]

    def proposing(self, row: Row, run: SamplingContext) -> Row:
        """The row that asks for a task, with past triplets to differ from."""
        kind = str(row.meta["kind"])
        known = self.state.buffer.get(kind, [])
        shown = random.Random(f"{run.seed}/{run.step}/{row.id}").sample(
            known, min(self.references, len(known))
        )
        text = "\n".join(
            f"```python\n{one['program']}\n```\nf({written(one['arguments'])})" for one in shown or [SEED]
        )
        question = PROPOSE.replace("{references}", text)
        asked = replace(row, id=f"{row.id}/propose", question=question, task=f"propose_{kind}", target="")
        return replace(asked, answer=None, meta={"role": "propose", "kind": kind})

    def task_of(
        self, row: Row, rollout: Rollout, kind: str, place: int, rollout_place: int
    ) -> tuple[Row, Rollout] | None:
        """The row to solve of a proposal, which joins the buffer; None where it is not valid."""
        SOLVED.set(rollout, -1.0)
        made = triplets().proposed(neutralised(rollout.text), self.sandbox, self.seconds)
        if made is None:
            return None
        SOLVED.set(rollout, 0.0)
        triplet = {"program": made.program, "arguments": made.arguments, "output": made.output}
        known = self.state.buffer.setdefault(kind, [])
        if triplet not in known:
            known.append(triplet)
        cases = self.cases_of(triplet, known) if kind == "induction" else []
        question = ASK[kind].format(
            program=made.program,
            arguments=written(made.arguments),
            output=made.output,
            cases="\n".join(f"f({written(given)}) = {out}" for given, out in cases),
        )
        meta = {**triplet, "role": kind, "kind": kind, "cases": cases}
        suffix = f"solve-{place}-{rollout_place}"
        return replace(row, id=f"{row.id}/{suffix}", question=question, task=kind, meta=meta), rollout

    def cases_of(self, triplet: dict[str, Any], known: Sequence[dict[str, Any]]) -> list[list[Any]]:
        """(arguments, output) of the triplet and of past arguments that its program accepts."""
        size = len(triplet["arguments"])
        others = [
            one["arguments"] for one in known[-16:] if len(one["arguments"]) == size and one is not triplet
        ]
        outputs = (
            triplets().executed(triplet["program"], others, self.sandbox, self.seconds) if others else []
        )
        accepted = [[given, out] for given, out in zip(others, outputs) if out is not None]
        return [[triplet["arguments"], triplet["output"]], *accepted][: self.cases]

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        size = sum(len(known) for known in self.state.buffer.values())
        return {
            "absolute_zero/valid": self.state.share("valid", "proposals"),
            "absolute_zero/buffer": float(size),
        }


def written(arguments: Sequence[Any]) -> str:
    """Arguments as a call lists them."""
    return ", ".join(repr(value) for value in arguments)


@register("absolute_zero.advantage")
@dataclass(frozen=True, kw_only=True)
class AbsoluteZeroAdvantage(AdvantageEstimator):
    """TRR++, task-relative REINFORCE++: A = (r - mean) / (std + eps) over all rollouts of the step with the
    row's task: a baseline for each of the six pairs of role and kind.

    Paper: arXiv:2505.03335, eq. 8. Edge: a task of one rollout has advantage 0.
    """

    eps: float = 1e-8

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        by_task: dict[str, list[float]] = defaultdict(list)
        for group in groups:
            by_task[group.row.task] += group.rewards
        scale = {task: (mean(values), std(values) + self.eps) for task, values in by_task.items()}
        return [
            [(reward - scale[group.row.task][0]) / scale[group.row.task][1] for reward in group.rewards]
            for group in groups
        ]
