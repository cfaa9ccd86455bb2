"""SSP: search self-play. One policy proposes questions to given answers, by searching, and solves them, by
searching.

    ssp              rollout strategy: proposals, the test of their questions, solutions
    ssp.advantage    advantage estimator: GRPO for the solver, REINFORCE for the proposer

The proposer's reward is `solver_failure`. Paper: Search Self-play (SSP), arXiv:2510.18821, sec. 3 and
algorithm 1; checked against Alibaba-Quark/SSP at b4797e1, quarl/trainer/ppo/ssp_ray_trainer.py,
quarl/utils/problem_extraction.py and examples/train_ssp.sh. Deviates: the policy answers at the test of a
question (the paper's solver; the release asks another model) and the row's outcome compares (the release: an
LLM judge); both roles are in one update (the release's combine_update, which its script leaves off); the
words of the prompts are ours; a fault of the test is an error (release: a valid question); with an empty pool
there are fewer solutions.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

from vlrl.methods.common.correctness import success_rate
from vlrl.methods.common.prompts import (
    check_task,
    derived_row,
    neutralised,
    prompts_within_limit,
    within_limit,
)
from vlrl.methods.core.advantage import GRPO
from vlrl.methods.core.rollout import Independent, MultiTurn
from vlrl.plugins.capabilities import Annotation, Capability
from vlrl.plugins.contexts import PhaseContext, SamplingContext, StepContext
from vlrl.plugins.episodes import EPISODE_ANNOTATIONS, EPISODE_END
from vlrl.plugins.registry import register
from vlrl.plugins.stages import StepCounts, transient
from vlrl.types import Group, Prompt, Rollout, Row, Sampling

SOLVED: Annotation[float] = Annotation(
    "ssp.solved",
    float,
    hint="rollout: {name: ssp}",
    doc="share of the solver's answers to the proposed question that are correct; -1 for no valid question",
)
POOLED = ("id", "question", "answer", "task", "rewards")  # of the row of a valid question
_QUESTION = re.compile(r"<question>\s*(.*?)\s*</question>", re.DOTALL)
_SEARCH = re.compile(r"<search>\s*(.*?)\s*</search>", re.DOTALL)
_INFORMATION = re.compile(r"<information>\s*(.*?)\s*</information>", re.DOTALL)
PROPOSE = (
    "Write a hard question whose answer is: {answer}\nSearch for facts about the answer before you write: "
    "reason inside <think> </think> tags, put a "
    "query inside <search> </search> tags; what is found is shown inside <information> </information> "
    "tags. Search at least twice, each time for "
    "something new. The question must follow from the facts, have no other answer, and not name the "
    "answer. End with the question inside "
    "<question> </question> tags."
)
CHECK = "Documents:\n{documents}\n\nAnswer the question from the documents, without a search: {question}"


@dataclass
class SspState(StepCounts):
    """Valid questions of earlier steps as the fields of their rows, and those of the current step. Counted
    are proposals, those that keep the rules, valid ones, and what was solved."""

    pool: list[dict[str, Any]] = field(default_factory=list)
    fresh: list[dict[str, Any]] = transient(factory=list)


@dataclass(frozen=True)
class Proposal:
    """A question that keeps the rules: the row that it is for, the rollout that wrote it, and the documents
    that the rollout was shown."""

    given: Row
    rollout: Rollout
    question: str
    documents: str


@register("ssp")
@dataclass(frozen=True)
class Ssp(MultiTurn):
    """Search self-play: the policy searches and writes `proposals` questions to each row's answer; valid ones
    are solved by searching, n times each.

        proposer  tau ~ pi(. | propose, a),  q = Q(tau),  R = 1 - (1/n) sum_j r_j;    solver  rho_j ~ pi(. |
        q),  r_j = 1[A(rho_j) = a]

    Trained on: proposals (`task`, scored by `solver_failure`) and solutions, scored as the row. A question is
    valid if it keeps the rules (`read`) and the policy, given all that its proposer was shown and `noise`
    other documents, answers it without searching. An invalid one has SOLVED -1; a valid question of the pool
    is solved instead. Paper: Search Self-play (SSP), arXiv:2510.18821, sec. 3.1-3.3, 4.4, algorithm 1;
    Alibaba-Quark/SSP at b4797e1, quarl/utils/problem_extraction.py, examples/train_ssp.sh (1, 4, 10),
    quarl/config/rl_config.yaml (0.8). Deviates: see the file's head. Edge: only what the environment showed
    is a document; of a list the first answer counts.

    Attributes:
        reuse: Steps after which the pool is emptied (0: no pool).
        temperature: Of proposals.
    """

    state_class = SspState
    proposals: int = 1
    noise: int = 4
    gate: bool = True
    reuse: int = 10
    temperature: float = 0.8
    task: str = "propose"
    ask: str = PROPOSE
    check_with: str = CHECK
    provides: ClassVar[tuple[Capability, ...]] = (*EPISODE_ANNOTATIONS, SOLVED)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.proposals < 1 or min(self.noise, self.reuse, self.temperature) < 0:
            said = f"noise={self.noise}, reuse={self.reuse} and temperature={self.temperature} not negative"
            raise ValueError(f"proposals={self.proposals} must be at least 1, {said}")
        for where, text, holes in (
            ("ask", self.ask, ("{answer}",)),
            ("check_with", self.check_with, ("{documents}", "{question}")),
        ):
            if missing := [hole for hole in holes if hole not in text]:
                raise ValueError(f"{where}={text[:60]!r} must contain {' and '.join(missing)}")

    @cached_property
    def single(self) -> Independent:
        """Answers without a search."""
        return Independent()

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        check_task(phase, self.name, self.task)

    def sampling_of(self, prompt: Prompt, attempt: int, run: SamplingContext) -> Sampling:
        sampling = super().sampling_of(prompt, attempt, run)
        return replace(sampling, temperature=self.temperature) if prompt.row.task == self.task else sampling

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        given = {
            f"{prompt.row.id}/propose": (prompt.row, count)
            for prompt, count in zip(prompts, counts, strict=True)
        }
        asking = [prompt for prompt in map(self.proposing, prompts) if within_limit(prompt, run)]
        proposed = super().__call__(asking, [self.proposals] * len(asking), run)
        kept = []
        for group in proposed:
            for rollout in group:
                SOLVED.set(rollout, -1.0)
                proposal = self.read(given[group.row.id][0], rollout, run)
                kept += [proposal] if proposal is not None else []
        valid = self.gated(kept, run) if self.gate else kept
        solving = {
            row.id: proposal for row, proposal in ((solver_row(p, place), p) for place, p in enumerate(valid))
        }
        total = sum(map(len, proposed))
        rows = [solver_row(proposal, place) for place, proposal in enumerate(valid)] + self.older(
            total - len(valid), run
        )
        solver_prompts = prompts_within_limit(run, rows)
        own = {name: given[f"{proposal.given.id}/propose"][1] for name, proposal in solving.items()}
        solved = super().__call__(
            solver_prompts, [own.get(prompt.row.id, run.group_size) for prompt in solver_prompts], run
        )
        run.score(solved)
        new = [group for group in solved if group.row.id in solving and len(group)]
        for group in new:
            SOLVED.set(solving[group.row.id].rollout, success_rate(group.rollouts))
            self.state.fresh.append({key: getattr(group.row, key) for key in POOLED})
        shares = [success_rate(group.rollouts) for group in new]
        self.state.add(proposals=total, kept=len(kept), valid=len(shares), solved=sum(shares))
        return [*proposed, *solved]

    def older(self, number: int, run: SamplingContext) -> list[Row]:
        """As many valid questions of earlier steps, drawn with replacement; none while there are none."""
        draw, pool = random.Random(f"{run.seed}/{run.phase}/{run.step}/ssp"), self.state.pool
        chosen = [draw.choice(pool) for _ in range(number)] if pool and self.reuse else []
        return [
            Row(**{**fields, "id": f"{fields['id']}/again-{place}", "rewards": tuple(fields["rewards"])})
            for place, fields in enumerate(chosen)
        ]

    def proposing(self, prompt: Prompt) -> Prompt:
        """The prompt of the proposer for a row: `ask` alone, without what the prompt template asks of
        answers."""
        row = derived_row(
            prompt.row,
            "propose",
            self.ask.replace("{answer}", neutralised(gold_of(prompt.row))),
            prompt.row.answer,
            self.task,
        )
        message = {"role": "user", "content": [{"type": "text", "text": row.question}]}
        return Prompt(row=replace(row, images=(), videos=()), messages=(message,))

    def read(self, given: Row, rollout: Rollout, run: SamplingContext) -> Proposal | None:
        """The question that a proposer wrote, with what it found; None where it breaks a rule."""
        found = _QUESTION.search(rollout.text)
        question = neutralised(found[1]) if found is not None and EPISODE_END[rollout] == "done" else ""
        gold, searches = gold_of(given), [query.casefold() for query in _SEARCH.findall(rollout.text)]
        documents = "\n\n".join(shown(rollout, run))
        worded = 10 <= len(question) <= 1000 and len(question.split()) >= 10
        searched = len(searches) >= 2 and len(set(searches)) == len(searches) and bool(documents)
        if not (worded and searched and gold) or gold.casefold() in question.casefold():
            return None
        return Proposal(given, rollout, question, documents)

    def gated(self, proposals: Sequence[Proposal], run: SamplingContext) -> list[Proposal]:
        """The proposals whose question the policy answers from their documents, among those of others."""
        asked: dict[str, Proposal] = {}
        rows = []
        for place, proposal in enumerate(proposals):
            draw = random.Random(f"{run.seed}/{run.phase}/{run.step}/{proposal.given.id}/{place}")
            others = list(
                dict.fromkeys(other.documents for other in proposals if other.documents != proposal.documents)
            )
            documents = [proposal.documents, *draw.sample(others, min(self.noise, len(others)))]
            draw.shuffle(documents)
            text = self.check_with.replace("{question}", proposal.question).replace(
                "{documents}", "\n\n".join(documents)
            )
            row = derived_row(
                proposal.given,
                f"gate-{place}",
                text,
                proposal.given.answer,
                proposal.given.task,
                proposal.given.rewards,
            )
            rows.append(row)
            asked[row.id] = proposal
        prompts = prompts_within_limit(run, rows)
        answers = self.single(prompts, [1] * len(prompts), run)
        run.score(answers)
        return [asked[group.row.id] for group in answers if any(rollout.correct for rollout in group)]

    def end_step(self, run: StepContext) -> None:
        super().end_step(run)
        self.state.pool = [*self.state.pool, *run.gather_and_clear(self.state.fresh)]
        if self.reuse and run.step % self.reuse == 0:
            self.state.pool = []

    def metrics(self) -> Mapping[str, tuple[float, float]]:
        of = {"kept": "proposals", "valid": "proposals", "solved": "valid"}
        return {
            f"ssp/{name}": self.state.share(name, total)
            for name, total in of.items()
            if self.state.logged.get(total)
        }


def solver_row(proposal: Proposal, place: int) -> Row:
    """The row that the solver gets for a valid question."""
    given = proposal.given
    return derived_row(given, f"solve-{place}", proposal.question, given.answer, given.task, given.rewards)


def gold_of(row: Row) -> str:
    """A row's answer as text, the first of several; "" without one."""
    answers = list(row.answer) if isinstance(row.answer, (list, tuple)) else [row.answer]
    return str(answers[0]).strip() if answers and answers[0] is not None else ""


def shown(rollout: Rollout, run: SamplingContext) -> list[str]:
    """The documents that the environment showed in a rollout: what stands in its information tags, in the
    tokens that the policy did not sample."""
    runs = groupby(zip(rollout.ids, rollout.loss_mask or [True] * len(rollout)), key=lambda pair: pair[1])
    texts = [run.policy.decode([token for token, _ in tokens]) for sampled, tokens in runs if not sampled]
    return [document for text in texts for document in _INFORMATION.findall(text) if document]


@register("ssp.advantage")
@dataclass(frozen=True)
class SspAdvantage(GRPO):
    """SSP's advantages: those of `grpo` for the solver's groups, A = R (REINFORCE without a baseline) for the
    proposer's.

    Paper: Search Self-play (SSP), arXiv:2510.18821, eq. 4 and 5; release: examples/train_ssp.sh (proposer.n 1
    with GRPO's estimator, which is the reward itself for a group of one). Edge: a proposer's group is one
    whose rollouts have SOLVED; invalid questions with reward 0 teach nothing.
    """

    requires: ClassVar[tuple[Capability, ...]] = (SOLVED,)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        proposers = [bool(len(group)) and all(SOLVED.on(rollout) for rollout in group) for group in groups]
        solvers = iter(
            super().__call__([group for group, proposer in zip(groups, proposers) if not proposer])
        )
        return [
            [rollout.reward for rollout in group] if proposer else next(solvers)
            for group, proposer in zip(groups, proposers)
        ]
