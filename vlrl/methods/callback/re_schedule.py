"""How much a prompt's accuracy can gain by a few choices in the tree of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

from vlrl.methods._accuracy import accuracies, slots_of
from vlrl.registry import ConfigError, register
from vlrl.stages import Callback
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run

KEY = "r_score"
Path = tuple[int, ...]
Leaves = Mapping[Path, bool]


def accuracy(leaves: Leaves) -> float:
    """The share of right leaves."""
    return sum(leaves.values()) / len(leaves)


def best_choice(leaves: Leaves, depth: int) -> dict[Path, bool]:
    """The leaves that remain when one inner node keeps only its best child, where that helps most; all of them where it helps nowhere.

    Inner nodes lie below the root and above the parents of leaves; of equal children the first is the best.
    """
    best, remaining = accuracy(leaves), dict(leaves)
    for level in range(1, depth - 1):
        for node in sorted({path[:level] for path in leaves}):
            below = {path: right for path, right in leaves.items() if path[:level] == node}
            children = sorted({path[: level + 1] for path in below})
            child = max(children, key=lambda child: accuracy({path: right for path, right in below.items() if path[: level + 1] == child}))
            left = {path: right for path, right in leaves.items() if path not in below or path[: level + 1] == child}
            if len(children) > 1 and accuracy(left) > best:
                best, remaining = accuracy(left), left
    return remaining


def r_score(leaves: Leaves, depth: int, edits: int) -> float:
    """The sum of the gains in accuracy of `edits` best choices, one after the other."""
    now = dict(leaves)
    for _ in range(edits):
        now = best_choice(now, depth)
    return accuracy(now) - accuracy(leaves)


def full(paths: Mapping[Path, bool], branch: int, depth: int) -> dict[Path, bool]:
    """Leaves at full depth: an answer that ended early stands for all that would have gone on from it."""
    return {(*path, *rest): right for path, right in paths.items() for rest in product(range(branch), repeat=depth - len(path))}


@register("r_score")
@dataclass(frozen=True)
class RScore(Callback):
    """The r-score of each prompt joins its memory in the run's history: the accuracy that `edits` choices of a best child add, made one by one.

    Paper: Wang et al. 2025 (Re-Schedule), arXiv:2510.24832, reasoning score; checked against analyze_tree.py of the release
    (parent_selection_improvement_topM_sum, M 5): the choice that gains most is made first, nodes below the root and above the parents of leaves
    choose. Deviates: an answer that ends early stands for all its continuations. Right is an accuracy above `threshold`. Reads what strategy
    `reasoning_tree` leaves; every rank keeps what all ranks found. Weight `scheduled` reads it.
    """

    edits: int = 5
    slot: str = ""
    threshold: float = 0.5
    slots: list[str] = field(init=False, default_factory=list, repr=False, compare=False)

    def check(self, run: Run) -> None:
        if run.strategy.name != "reasoning_tree" or self.edits < 1:
            raise ConfigError("callbacks: r_score needs strategy: {name: reasoning_tree} and at least 1 edit")

    def setup(self, run: Run) -> None:
        self.slots[:] = slots_of(run)

    def __call__(self, run: Run, groups: Sequence[Group]) -> dict[str, float]:
        branch, depth = run.strategy.branch, run.strategy.depth  # type: ignore[attr-defined]
        found = []
        for group in groups:
            right = zip(group, accuracies(group, self.slot, self.slots))
            paths = {tuple(rollout.info["path"]): value > self.threshold for rollout, value in right if "path" in rollout.info}
            if paths:
                found.append(r_score(full(paths, branch, depth), depth, self.edits))
                run.history.setdefault(group.row.id, {})[KEY] = found[-1]
        return {"mean": sum(found) / len(found)} if found else {}
