"""A tree of greedy branches that leave each other where two tokens are nearly as likely, and stay apart: made of requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from rapidfuzz.distance import Levenshtein

from vlrl.types import Completion, Request


@dataclass(eq=False)
class Branch:
    """A sequence on its way. `ids` may run ahead of the tree's present step; `known` are the alternatives of each token."""

    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    known: list[dict[int, float]] = field(default_factory=list)
    parent: Branch | None = None
    birth: int = -1  # the place of its first own token
    ended: bool = False  # its last token ends it

    def alive(self, step: int) -> bool:
        """Whether a token is to come at place `step`."""
        return not self.ended or step < len(self.ids)

    def second(self, step: int) -> tuple[int, float]:
        """The likeliest token at `step` that is not its own, and its log-prob."""
        others = [(logp, token) for token, logp in self.known[step].items() if token != self.ids[step]]
        logp, token = max(others, default=(-math.inf, -1))
        return token, logp

    def below(self, other: Branch) -> bool:
        """Whether it comes from `other`."""
        return self is other or (self.parent is not None and self.parent.below(other))


@dataclass(frozen=True)
class Lookahead:
    """Where a tree branches, and what is pruned.

    A second token with p2 > `absolute` and p1 - p2 < `relative` opens a branch while there are fewer than `width`, the likelier first. A branch whose
    first r tokens are, by edit distance / r, nearer than `distance` to its parent's at the same places is dropped with all that came from it, for
    each r in `checks`. Tokens that end an answer (`ends`) open none. The tree grows up to `depth` tokens, or until it is as wide as it may be and
    all branches are past the last check.
    """

    width: int
    absolute: float
    relative: float
    distance: float
    checks: tuple[int, ...]
    depth: int
    ends: frozenset[int]

    def grow(self, ask: Callable[[Sequence[int]], Request]) -> Generator[list[Request], list[Completion], tuple[list[Branch], int]]:
        """Yields requests that go on greedily and is sent their completions; returns the branches and the step that they have reached together."""
        branches, step = [Branch()], 0
        while step < self.depth and any(branch.alive(step) for branch in branches):
            short = [branch for branch in branches if branch.alive(step) and len(branch.ids) <= step]
            if short:
                for branch, completion in zip(short, (yield [ask(branch.ids) for branch in short]), strict=True):
                    start = len(branch.ids)
                    branch.ids += completion.ids[start:]
                    branch.logp += completion.logp[start:]
                    branch.known += (completion.top_logprobs or [])[start:]
                    branch.ended = completion.finish == "stop"
            branches += self.forks(branches, step)
            step += 1
            for near in [branch for branch in branches if self.too_near(branch, step)]:
                branches = [branch for branch in branches if not branch.below(near)]
            if len(branches) >= self.width and step - max(branch.birth for branch in branches) > max(self.checks):
                break
        return branches, step

    def forks(self, branches: Sequence[Branch], step: int) -> list[Branch]:
        """New branches at `step`."""
        found = []
        for branch in branches:
            if branch.alive(step):
                token, logp = branch.second(step)
                gap = math.exp(branch.logp[step]) - math.exp(logp)
                if math.exp(logp) > self.absolute and gap < self.relative and token not in self.ends:
                    found.append((logp, branch, token))
        found.sort(key=lambda item: -item[0])
        return [
            Branch([*b.ids[:step], token], [*b.logp[:step], logp], [*b.known[:step], b.known[step]], b, step)
            for logp, b, token in found[: max(0, self.width - len(branches))]
        ]

    def too_near(self, branch: Branch, step: int) -> bool:
        """Whether a branch that is checked now has not left its parent."""
        length = step - branch.birth
        if branch.parent is None or length not in self.checks or len(branch.ids) < step or len(branch.parent.ids) < step:
            return False
        mine, other = branch.ids[branch.birth : step], branch.parent.ids[branch.birth : step]
        return not self.ends & {*mine, *other} and Levenshtein.distance(mine, other) / length < self.distance
