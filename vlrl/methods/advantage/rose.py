"""What each stretch of a rollout in a tree was worth, and less for right answers that take long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.methods._tokens import check_credit
from vlrl.methods.advantage.grpo import mean
from vlrl.registry import ConfigError, register
from vlrl.stages import Advantage
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


def shared_tokens(group: Group) -> list[list[int]]:
    """[i][j]: how many first tokens rollouts i and j have in common by their places in the tree; with itself: all."""
    places = [rollout.info.get("tree", (i, [0] * i)) for i, rollout in enumerate(group)]
    return [
        [len(group.rollouts[i]) if i == j else (a[1][b[0]] if a[0] > b[0] else b[1][a[0]]) for j, b in enumerate(places)]
        for i, a in enumerate(places)
    ]


@register("rose")
@dataclass(frozen=True)
class SegmentValues(Advantage):
    """A_t = V(b_k) - V(b_{k-1}) for tokens between branching points b_{k-1} and b_k; V(b) = the mean reward of all that share the first b tokens.

    V at the start is the group's mean, at the end the rollout's own reward. With `alpha` > 0, for a right rollout (reward above `threshold`) longer
    than the shortest right one, whose ways part after k tokens: A_t <- A_t - |A_t| (1 - ((L_short - k) / (L - k))^alpha) for t >= k.
    Paper: Zhao et al. 2026 (ROSE), arXiv:2601.05053, with Dr.GRPO's loss; checked against core_algos.py of the release, whose exponent stands inside
    (the printed formula has it around the difference; its alpha is one of 0.5, 1, 2, 3, the released script's 0).
    Deviates: the release takes all rollouts that branch after b tokens for one node, wherever they branch; here a node is a prefix. For strategy
    `rose` with credit `per_token`. Edge: a rollout without siblings in the tree has one stretch, reward less group mean.
    """

    writes_tokens = True
    alpha: float = 1.0
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise ValueError(f"alpha={self.alpha} must not be negative; 0 leaves long answers alone")

    def check(self, run: Run) -> None:
        if run.strategy.name != "rose":
            raise ConfigError(f"advantage rose reads a tree that strategy {run.strategy.name!r} does not grow; use strategy: {{name: rose}}")
        check_credit(run, "rose")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        out = []
        for group in groups:
            shared = shared_tokens(group)
            rows = [self.segments(group, row, i) for i, row in enumerate(shared)]
            self.shorten(group, shared, rows)
            for rollout, row in zip(group, rows, strict=True):
                rollout.info["token_advantages"] = row
            out.append([mean(row) for row in rows])
        return out

    def segments(self, group: Group, shared: Sequence[int], i: int) -> list[float]:
        """The advantages of rollout i, by token."""
        length, rewards = len(group.rollouts[i]), group.rewards
        ends = sorted({0, length, *(s for s in shared if s < length)})
        values = [rewards[i] if end == length else mean([r for r, s in zip(rewards, shared, strict=True) if s >= end]) for end in ends]
        return [after - before for a, b, before, after in zip(ends, ends[1:], values, values[1:]) for _ in range(b - a)]

    def shorten(self, group: Group, shared: Sequence[Sequence[int]], rows: Sequence[list[float]]) -> None:
        """Take from the advantages of right rollouts that are longer than need be, in place."""
        right = [i for i, reward in enumerate(group.rewards) if reward > self.threshold]
        if not self.alpha or len(right) < 2:
            return
        short = min(right, key=lambda i: (len(rows[i]), i))
        for i in right:
            k = shared[i][short]
            if i != short and len(rows[i]) > len(rows[short]):
                less = 1 - ((len(rows[short]) - k) / (len(rows[i]) - k)) ** self.alpha
                rows[i][k:] = [a - abs(a) * less for a in rows[i][k:]]
