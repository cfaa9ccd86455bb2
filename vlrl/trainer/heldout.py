"""Held-out accuracy during training: one greedy completion per held-out row, scored by the run's own
rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import SamplingContext
from vlrl.trainer.data.rows import row_fault
from vlrl.trainer.phase import PhasePlan
from vlrl.trainer.step.observer import Observers
from vlrl.trainer.step.scoring import run_rewards, set_outcome
from vlrl.types import Group, Prompt, Request, Rollout, Row, Sampling

FAILURE: Annotation[str] = Annotation(
    "heldout_failure", str, doc="on an empty group: why the environment failed"
)


if TYPE_CHECKING:
    from vlrl.policy.policy import Policy


class EvaluationContext(SamplingContext, Protocol):
    """What an evaluation needs of a session (`vlrl.trainer.views.StepView`)."""

    @property
    def policy(self) -> Policy: ...
    @property
    def current(self) -> PhasePlan: ...
    @property
    def observers(self) -> Observers: ...


class HeldoutAnswer(NamedTuple):
    """A held-out row's greedy answer; `correct` is None where a reward raised."""

    task: str
    question: str
    gold: str
    text: str
    correct: bool | None


@dataclass(frozen=True)
class HeldoutResult:
    """The outcome of a held-out evaluation, over all processes.

    Attributes:
        accuracy: The share of correct answers per task, among the rows that could be scored. A task without
            such rows is left out.
        errors: The number of rows per task that a reward raised on; tasks without errors are left out.
        rewards: The mean score of the outcome reward per task, where a score is neither 0 nor 1: what a
            graded reward pays, beside the share that it calls correct.
        answers: The answers of this process's rows, in order.
    """

    accuracy: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)
    answers: Sequence[HeldoutAnswer] = field(default=(), compare=False)

    def first_answers(self, count: int) -> list[HeldoutAnswer]:
        """The first `count` answers of each task."""
        tasks = dict.fromkeys(answer.task for answer in self.answers)
        return [
            one
            for task in tasks
            for one in [answer for answer in self.answers if answer.task == task][:count]
        ]

    def metrics(self) -> dict[str, float]:
        """`heldout/<task>`, for graded rewards `heldout_reward/<task>`, and after an error `heldout/errors`
        (in all) and `heldout/errors/<task>`."""
        metrics = {f"heldout/{task}": value for task, value in self.accuracy.items()}
        metrics |= {f"heldout_reward/{task}": value for task, value in self.rewards.items()}
        if self.errors:
            metrics["heldout/errors"] = float(sum(self.errors.values()))
            metrics |= {f"heldout/errors/{task}": float(count) for task, count in self.errors.items()}
        return metrics


def greedy(phase: PhasePlan, prompt: Prompt) -> Sampling:
    """Greedy decoding with the run's own length limit and stop strings."""
    return replace(phase.sampling(prompt, 0), temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, top_logprobs=0)


def generate(run: EvaluationContext, rows: Sequence[Row]) -> list[Group]:
    """One group of one greedy rollout per row, in order. Raises RuntimeError if the engine leaves a row out.

    Where attempts are episodes, the rollout is the last one of a greedy episode; the group is empty, with
    FAILURE, where the environment failed.
    """
    phase = run.current
    prompts = [phase.prompt_template(row) for row in rows]
    samplings = [greedy(phase, prompt) for prompt in prompts]
    played = phase.rollout.play(prompts, samplings, run)
    if played is not None:
        return [
            _played(prompt, attempt, f"heldout-{place}")
            for place, (prompt, attempt) in enumerate(zip(prompts, played, strict=True))
        ]
    requests = [
        Request(prompt, sampling, n=1, seed=run.seed, tag=place)
        for place, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
    ]
    completions = {}
    for completion in run.engine.generate(requests):
        completions[completion.request.tag] = completion
        run.observers.progressed("held-out", len(completions), len(requests))
    groups = []
    for place, prompt in enumerate(prompts):
        if place not in completions:
            raise RuntimeError(
                f"engine {run.engine.name!r} returned no completion for held-out row {prompt.row.id!r}"
            )
        groups.append(Group(prompt, [run.make_rollout(completions[place])], id=f"heldout-{place}"))
    return groups


def _played(prompt: Prompt, attempt: list[Rollout] | str, name: str) -> Group:
    group = Group(prompt, [] if isinstance(attempt, str) else attempt[-1:], id=name)
    if isinstance(attempt, str):
        FAILURE.set(group, attempt)
    return group


def generate_usable(run: EvaluationContext, rows: Sequence[Row]) -> tuple[list[Group], list[str]]:
    """(the groups of the rows that can be used, why each row cannot, or ""). The rows are looked at one by
    one only where they fail together."""
    try:
        return generate(run, rows), [""] * len(rows)
    except Exception:  # a row can make a chat template, a tokenizer or a decoder raise anything
        faults = [row_fault(run.policy, run.current, row) for row in rows]
        if not any(faults):
            raise
    return generate(run, [row for row, fault in zip(rows, faults, strict=True) if not fault]), faults


def check_answers(groups: Sequence[Group], phase: PhasePlan) -> list[tuple[bool | None, str]]:
    """(`Rollout.correct`, "") per group of one rollout; (None, reason) where a reward or an environment
    failed, or no reward decides the outcome.

    Only the row's outcome slot counts: another reward may need what the rollout strategy adds in training,
    and its failure leaves the answer's verdict as it is. The run's statistics are left alone: an error here
    is neither an error of a training rollout nor counted in `error_limit`.
    """
    reasons = {
        id(rollout): f"reward {slot!r} raised {type(error).__name__}: {error}"
        for rollout, slot, error in run_rewards(groups, phase.rewards)
        if [slot] == phase.outcome_slots(rollout.row)[:1]
    }
    checked: list[tuple[bool | None, str]] = []
    for group in groups:
        if not len(group):
            checked.append((None, FAILURE.get(group, "no attempt")))
            continue
        rollout = group.rollouts[0]
        set_outcome(rollout, phase)
        if id(rollout) in reasons:
            checked.append((None, reasons[id(rollout)]))
        elif rollout.outcome is None:
            checked.append((None, f"no reward scores its task {rollout.row.task!r}"))
        else:
            checked.append((rollout.correct, ""))
    return checked


def evaluate_run(run: EvaluationContext) -> HeldoutResult:
    """`evaluate` on all held-out rows of the run's phase; an empty result where it has none. Every process
    calls it."""
    rows = run.current.heldout_by_task()
    if not rows:
        return HeldoutResult()
    with run.engine.uncounted(), run.policy.gather_params():
        return evaluate(run, rows)


def evaluate(run: EvaluationContext, rows_by_task: Mapping[str, Sequence[Row]]) -> HeldoutResult:
    """Held-out accuracy per task: the share of rows whose greedy completion is correct.

    A row whose prompt cannot be made, or that a reward raises on, is left out of the accuracy, counted as an
    error, and named in one warning; it never stops the run.
    Each process evaluates every n-th row; all of them return the same result.
    """
    rows = [(task, row) for task, task_rows in rows_by_task.items() for row in task_rows][
        run.rank :: run.ranks
    ]
    groups, faults = generate_usable(run, [row for _, row in rows])
    verdicts = check_answers(groups, run.current)
    scores = [
        next((rollout.outcome for rollout in group), None) if correct is not None else None
        for group, (correct, _) in zip(groups, verdicts, strict=True)
    ]
    answers = iter(zip(verdicts, scores, strict=True))
    checked = [((None, fault), None) if fault else next(answers) for fault in faults]
    outcomes = run.gather(
        [
            (task, row.id, correct, reason, score)
            for (task, row), ((correct, reason), score) in zip(rows, checked, strict=True)
        ]
    )
    shares: dict[str, float] = {}
    errors: dict[str, int] = {}
    for task in rows_by_task:
        correct = [float(value) for name, _, value, *_ in outcomes if name == task and value is not None]
        failures = sum(name == task and value is None for name, _, value, *_ in outcomes)
        if correct:
            shares[task] = sum(correct) / len(correct)
        if failures:
            errors[task] = failures
    failed = [(name, reason) for _, name, value, reason, _ in outcomes if value is None]
    if failed and run.rank == 0:
        run.warn(
            f"held-out: {len(failed)} of {len(outcomes)} rows could not be scored and are left out of the "
            "accuracy; "
            f"the first: row {failed[0][0]!r}: {failed[0][1]}"
        )
    tasks = [task for (task, _), fault in zip(rows, faults, strict=True) if not fault]
    given = [
        HeldoutAnswer(
            task,
            group.prompt.row.question,
            str(group.prompt.row.answer),
            group.rollouts[0].text if len(group) else "",
            correct,
        )
        for task, group, (correct, _) in zip(tasks, groups, verdicts, strict=True)
    ]
    return HeldoutResult(shares, errors, _mean_rewards(outcomes), given)


def _mean_rewards(outcomes: Sequence[tuple[str, str, bool | None, str, float | None]]) -> dict[str, float]:
    """The mean outcome per task, of tasks with an outcome that is neither 0 nor 1."""
    by_task: dict[str, list[float]] = {}
    for task, *_, score in outcomes:
        if score is not None:
            by_task.setdefault(task, []).append(score)
    return {
        task: sum(values) / len(values)
        for task, values in by_task.items()
        if any(value not in (0.0, 1.0) for value in values)
    }
