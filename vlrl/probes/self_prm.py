"""Self-PRM: the policy judges its own samples; majority voting against the samples that it calls right.

    majority: the most frequent answer of N;   self-PRM: the most frequent answer among those judged right
    precision, recall of its verdicts, by difficulty (share of correct samples of the row)

Paper: Feng et al. 2025, arXiv:2505.11227: process reward ability grows under outcome RL alone; on hard
problems the precision of the model's verdicts stays below 10%. No released code was opened: the verdict's
words are ours; a whole solution is judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlrl.methods.core.metric import answer_of
from vlrl.probes.inference import PATTERN, verdicts, vote
from vlrl.probes.probed_model import ProbedModel
from vlrl.probes.result import Figure, ProbeResult, against

MIN_PRECISION = 0.1  # the paper's: below it on difficult problems
BINS = ("hard", "middle", "easy")


def difficulty(share: float) -> str:
    """The bin of a row by its share of correct samples: below 1/3, below 2/3, or above."""
    return BINS[0 if share < 1 / 3 else 1 if share < 2 / 3 else 2]


def reranked(answers: Sequence[str], said: Sequence[bool]) -> int:
    """The sample that self-PRM returns: the vote among those judged right, of all where none is."""
    weights = [float(one) for one in said] if any(said) else [1.0] * len(answers)
    return vote(answers, weights)


def precision_recall(pairs: Sequence[tuple[bool, bool]]) -> tuple[float | None, float | None]:
    """Precision and recall of (judged right, is right); None of nothing."""
    both = sum(said and right for said, right in pairs)
    yes, right = sum(said for said, _ in pairs), sum(right for _, right in pairs)
    return both / yes if yes else None, both / right if right else None


def measure(
    words: Sequence[str], models: Sequence[str], rows: int, n: int, temperature: float
) -> ProbeResult:
    """Both ways to choose, and the verdicts by difficulty, for every model in the order of training."""
    table: list[list[Any]] = []
    lines = {}
    for name in models:
        with ProbedModel(words, name, rows) as subject:
            groups = [
                g for g in subject.ask([subject.prompt(r) for r in subject.rows], n, temperature) if len(g)
            ]
            values = verdicts(subject, [(group.row, rollout.text) for group in groups for rollout in group])
            label = subject.name
        votes, chosen = [], []
        pairs: dict[str, list[tuple[bool, bool]]] = {name: [] for name in BINS}
        for group in groups:
            own, values = values[: len(group)], values[len(group) :]
            said = [value > 0.5 for value in own]
            answers = [answer_of(rollout.text, PATTERN) for rollout in group]
            right = [rollout.correct for rollout in group]
            votes.append(float(right[vote(answers, [1.0] * len(own))]))
            chosen.append(float(right[reranked(answers, said)]))
            pairs[difficulty(sum(right) / len(right))] += zip(said, right, strict=True)
        hard = precision_recall(pairs["hard"])
        everything = precision_recall([pair for members in pairs.values() for pair in members])
        gain = against(chosen, votes)
        table.append([label, sum(votes) / len(votes), sum(chosen) / len(chosen), *everything, hard[0]])
        lines[label] = [
            (float(place), precision)
            for place, kind in enumerate(BINS)
            if (precision := precision_recall(pairs[kind])[0]) is not None
        ]
    last = table[-1]
    hard_words = (
        "had nothing judged right"
        if last[5] is None
        else f"has a precision of {last[5]:.1%}, "
        f"{'below' if last[5] < MIN_PRECISION else 'above'} the paper's 10%"
    )
    statement = (
        f"{last[0]}: self-PRM {last[2]:.1%} against majority voting {last[1]:.1%} ({gain}); on hard problems "
        f"its verdict {hard_words}."
    )
    head = ("model", "majority", "self-PRM", "precision", "recall", "precision on hard problems")
    figure = Figure(lines, "difficulty", "precision of the model's verdicts on itself", BINS, "precision")
    return ProbeResult("Self-PRM: the policy as its own judge", statement, head, table, figure)
