"""Part of a group grown as a tree whose branches go different ways, the rest sampled as ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vlrl.methods.strategy._branch import Branching, from_token, joined, together
from vlrl.methods.strategy._lookahead import Branch, Lookahead
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Prompt, Request, Rollout

if TYPE_CHECKING:
    from vlrl.run import Run


@register("latr")
@dataclass(frozen=True)
class LookaheadTrees(Branching):
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

    def check(self, run: Run) -> None:
        if getattr(run.decode, "top_k", 0) or getattr(run.decode, "top_p", 1.0) < 1 or getattr(run.decode, "min_p", 0.0):
            raise ConfigError("strategy latr compares the probabilities of the whole vocabulary: set decode.top_k to 0, top_p to 1 and min_p to 0")

    def eta(self, step: int) -> float:
        """The share of a group that comes from a tree."""
        return [value for start, value in self.share if start <= step][-1]

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        eta = self.eta(run.phase_step)
        trees = self.grown(prompts, [round(eta * count) for count in counts], run)
        requests: list[Request] = []
        rooted: list[list[Rollout]] = []
        for place, (prompt, (branches, step)) in enumerate(zip(prompts, trees, strict=True)):
            made = [self.rollout(run, prompt, branch, step) for branch in branches]
            rooted.append([rollout for rollout in made if rollout.finish == "stop"])
            for number, rollout in enumerate(rollout for rollout in made if rollout.finish != "stop"):
                sampling, seed = run.decode(prompt, number), self.seeds(run, prompt)
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

    def grown(self, prompts: Sequence[Prompt], widths: Sequence[int], run: Run) -> list[tuple[list[Branch], int]]:
        """A tree for every prompt, and how far it has grown."""
        ends = frozenset(run.policy.tokenizer.all_special_ids)
        works = {}
        for place, (prompt, width) in enumerate(zip(prompts, widths, strict=True)):
            if width:
                depth = min(self.depth, run.decode(prompt, 0).max_tokens - 1)
                rules = Lookahead(width, self.absolute, self.relative, self.distance, self.checks, depth, ends)
                works[place] = rules.grow(lambda ids, prompt=prompt: self.greedy(run, prompt, ids))
        trees = together(run, works)
        return [trees.get(place, ([], 0)) for place in range(len(prompts))]

    def greedy(self, run: Run, prompt: Prompt, ids: Sequence[int]) -> Request:
        """`ahead` more tokens, the likeliest ones."""
        usual = run.decode(prompt, 0)
        sampling = replace(usual, temperature=0.0, top_logprobs=2, max_tokens=min(usual.max_tokens, len(ids) + self.ahead))
        return Request(prompt, sampling, 1, 0, tuple(ids))

    def rollout(self, run: Run, prompt: Prompt, branch: Branch, step: int) -> Rollout:
        """A branch as far as the tree has come; whole if it has ended before."""
        ids = branch.ids[:step]
        finish = "length" if branch.alive(step) else "stop"
        return Rollout(
            prompt, ids, prompt.prefix + run.policy.decode(ids), branch.logp[:step], finish, spaces=tuple(run.policy.spaces(prompt)),
            version=run.policy.version,
        )  # fmt: skip
