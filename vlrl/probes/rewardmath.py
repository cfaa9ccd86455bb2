"""RewardMATH: one correct solution against many wrong ones, scored by a reward or verifier.

    accuracy: share of problems whose correct solution scores above every wrong one (a tie is no hit)
    MRR: mean of 1 / rank of the correct solution, ties ranked behind the wrong ones

Paper: Kim et al. 2024 (RewardMATH), arXiv:2410.01729; formulas of kimsh0507/RewardMATH_official at cde06ab3,
src/evaluation/eval.py (RewardMATHEvaluation). There 483 problems with one correct and nine wrong solutions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vlrl.probes.result import Figure, ProbeResult

Score = Callable[[str, Mapping[str, Any]], float]
KEYS = ("chosen", "rejected")


def rank(chosen: float, rejected: Sequence[float]) -> int:
    """The place of the correct solution among all, 1 the best; wrong solutions of the same score come before
    it."""
    return 1 + sum(score >= chosen for score in rejected)


def measure(rows: Sequence[Mapping[str, Any]], scorers: Mapping[str, Score]) -> ProbeResult:
    """Accuracy and MRR of each scorer over rows {"chosen", "rejected": [...], ...}.

    Raises ValueError for a row without wrong solutions.
    """
    table: list[list[Any]] = []
    lines = {}
    for name, score in scorers.items():
        ranks, most = [], 0
        for number, row in enumerate(rows):
            if not row["rejected"]:
                raise ValueError(f"row {number}: 'rejected' is empty; give at least one wrong solution")
            ranks.append(rank(score(row["chosen"], row), [score(text, row) for text in row["rejected"]]))
            most = max(most, len(row["rejected"]) + 1)
        hits = sum(place == 1 for place in ranks) / len(ranks)
        table.append([name, hits, sum(1 / place for place in ranks) / len(ranks)])
        lines[name] = [
            (float(place), sum(other <= place for other in ranks) / len(ranks))
            for place in range(1, most + 1)
        ]
    best = max(table, key=lambda row: row[1])
    chance = sum(1 / (len(row["rejected"]) + 1) for row in rows) / len(rows)
    rest = (
        "In the others a wrong solution scores at least as high: a policy can gain there without being right."
        if best[1] < 1
        else "No wrong solution of these rows scores as high; others may."
    )
    statement = (
        f"{best[0]} ranks the correct solution first in {best[1]:.1%} of {len(rows)} problems (chance: "
        f"{chance:.1%}). {rest}"
    )
    figure = Figure(
        lines, "rank", "share of problems with the correct solution at this rank or better", unit="share"
    )
    return ProbeResult(
        "RewardMATH: one correct solution against many",
        statement,
        ("reward", "accuracy", "MRR"),
        table,
        figure,
    )
