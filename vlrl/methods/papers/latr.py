"""A tree of greedy branches that leave each other where two tokens are nearly as likely, and stay apart: made of requests.

Part of a group grown as a tree whose branches go different ways, the rest sampled as ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rapidfuzz.distance import Levenshtein

from vlrl.methods.common.branching import Branching, from_token, joined, together
from vlrl.registry import ConfigError, register
from vlrl.types import Completion, Group, Prompt, Request, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


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


@register("latr")
@dataclass(frozen=True)
class Latr(Branching):
    """round(eta n) rollouts from a tree of greedy branches that prove different, the others sampled; once the tree is done, all go on by sampling.

    At each step a branch takes its likeliest token, and its second one opens another if p2 > `absolute` and p1 - p2 < `relative`. After r tokens, r
    in `checks`, a branch with edit distance / r < `distance` to its parent is dropped. eta falls by `share`: (from step, value) pairs.
    Paper: Xing et al. 2025 (LATR), arXiv:2510.24302, eq. 5-10; thresholds, checks and shares are those of grpo-kt-countdown.sh of the release. The
    tree is grown by requests of `ahead` greedy tokens with their alternatives instead of inside the generator: the same tree, some tokens in vain.
    Deviates: eq. 5's sign of the relative threshold (the release compares the other way round); two alternatives a step, as the release is set;
    where the tree stays narrow the rest are samples, not copies of its trunk; where too many fork at once, the likelier come first.
    Edge: a greedy branch that ends is a rollout as it is; a token that ends an answer opens no branch.
    """

    absolute: float = 0.25
    relative: float = 0.15
    distance: float = 0.4
    checks: tuple[int, ...] = (20, 30, 50)
    share: tuple[tuple[int, float], ...] = ((0, 1.0), (10, 0.75), (20, 0.5), (80, 0.25), (200, 0.0))
    depth: int = 512
    ahead: int = 64

    def __post_init__(self) -> None:
        if not self.checks or min(self.checks) < 1 or min(self.depth, self.ahead) < 1:
            raise ValueError(f"checks={self.checks}, depth={self.depth} and ahead={self.ahead} must be at least 1")
        if not self.share or self.share[0][0] != 0 or not all(0 <= value <= 1 for _, value in self.share):
            raise ValueError(f"share={self.share} must begin at step 0 and stay in [0, 1]")

    def check(self, run: RunContext) -> None:
        if getattr(run.sampling, "top_k", 0) or getattr(run.sampling, "top_p", 1.0) < 1 or getattr(run.sampling, "min_p", 0.0):
            raise ConfigError("strategy latr compares the probabilities of the whole vocabulary: set decode.top_k to 0, top_p to 1 and min_p to 0")

    def eta(self, step: int) -> float:
        """The share of a group that comes from a tree."""
        return [value for start, value in self.share if start <= step][-1]

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        eta = self.eta(run.phase_step)
        trees = self.grown(prompts, [round(eta * count) for count in counts], run)
        requests: list[Request] = []
        rooted: list[list[Rollout]] = []
        for place, (prompt, (branches, step)) in enumerate(zip(prompts, trees, strict=True)):
            made = [self.rollout(run, prompt, branch, step) for branch in branches]
            rooted.append([rollout for rollout in made if rollout.finish == "stop"])
            for number, rollout in enumerate(rollout for rollout in made if rollout.finish != "stop"):
                sampling, seed = run.sampling(prompt, number), self.seeds(run, prompt)
                requests.append(from_token(rollout, len(rollout), sampling, seed, tag=(place, rollout)))
        for completion in run.engine.generate(requests):
            place, trunk = completion.request.tag
            rooted[place].append(joined(run, completion, trunk, len(trunk), trained=True))
        rest = self.roots(prompts, [count - len(some) for count, some in zip(counts, rooted, strict=True)], run)
        for group, some in zip(rest, rooted, strict=True):
            for rollout in some:
                rollout.info["tree"] = True
            group.rollouts = [*some, *group.rollouts]
        return self.forget(rest)

    def grown(self, prompts: Sequence[Prompt], widths: Sequence[int], run: RunContext) -> list[tuple[list[Branch], int]]:
        """A tree for every prompt, and how far it has grown."""
        ends = frozenset(run.policy.tokenizer.all_special_ids)
        works = {}
        for place, (prompt, width) in enumerate(zip(prompts, widths, strict=True)):
            if width:
                depth = min(self.depth, run.sampling(prompt, 0).max_tokens - 1)
                rules = Lookahead(width, self.absolute, self.relative, self.distance, self.checks, depth, ends)
                works[place] = rules.grow(lambda ids, prompt=prompt: self.greedy(run, prompt, ids))
        trees = together(run, works)
        return [trees.get(place, ([], 0)) for place in range(len(prompts))]

    def greedy(self, run: RunContext, prompt: Prompt, ids: Sequence[int]) -> Request:
        """`ahead` more tokens, the likeliest ones."""
        usual = run.sampling(prompt, 0)
        sampling = replace(usual, temperature=0.0, top_logprobs=2, max_tokens=min(usual.max_tokens, len(ids) + self.ahead))
        return Request(prompt, sampling, 1, 0, tuple(ids))

    def rollout(self, run: RunContext, prompt: Prompt, branch: Branch, step: int) -> Rollout:
        """A branch as far as the tree has come; whole if it has ended before."""
        ids = branch.ids[:step]
        finish = "length" if branch.alive(step) else "stop"
        return Rollout(
            prompt, ids, prompt.prefix + run.policy.decode(ids), branch.logp[:step], finish, spaces=tuple(run.policy.spaces(prompt)),
            version=run.policy.version,
        )  # fmt: skip
