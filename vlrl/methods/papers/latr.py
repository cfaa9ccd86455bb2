"""LATR: lookahead tree-based rollouts. Part of a group is a tree of greedy branches that fork where two
tokens are almost equally likely.

Branches that stay similar to their parents are pruned. `Lookahead` has the rules of a tree and makes its
requests, `Latr` is the rollout strategy. Paper: Xing et al. 2025 (LATR), arXiv:2510.24302; checked against
the release: starreeze/latr at 2adb0edf, model/sample_filter.py, model/utils.py and
scripts/grpo-kt-countdown.sh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from rapidfuzz.distance import Levenshtein

from vlrl.methods.common.branching import Branching, branch_request, branch_rollout, run_in_rounds
from vlrl.methods.core.sampling import Plain
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import PhaseContext, SamplingContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import StepCounts
from vlrl.types import Completion, Group, Prompt, Request, Rollout

FROM_TREE: Annotation[bool] = Annotation(
    "latr.from_tree", bool, hint="rollout: {name: latr}", doc="True on rollouts that began in the tree"
)


@dataclass(eq=False)
class Branch:
    """A token sequence of the tree. `ids` may extend beyond the tree's current step.

    `alternatives` are the most likely tokens at every position, id to log-prob; `start` is the position of
    the branch's first own token (-1 for the trunk); `ended`: its last token ends the answer.
    """

    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    alternatives: list[dict[int, float]] = field(default_factory=list)
    parent: Branch | None = None
    start: int = -1
    ended: bool = False

    def continues(self, step: int) -> bool:
        """Whether the branch has, or will have, a token at position `step`."""
        return not self.ended or step < len(self.ids)

    def runner_up(self, step: int) -> tuple[int, float]:
        """The most likely token at `step` that is not the branch's own, and its log-prob; (-1, -inf) if none
        is known."""
        others = [(logp, token) for token, logp in self.alternatives[step].items() if token != self.ids[step]]
        logp, token = max(others, default=(-math.inf, -1))
        return token, logp

    def descends_from(self, other: Branch) -> bool:
        """Whether the branch is `other` or one of its descendants."""
        return self is other or (self.parent is not None and self.parent.descends_from(other))


@dataclass(frozen=True)
class Lookahead:
    """The rules of a tree: where it forks, and what is pruned.

    A runner-up token with p2 > `absolute` and p1 - p2 < `relative` opens a branch while there are fewer than
    `width`, the more likely one first. A branch whose first r tokens have an edit distance / r below
    `distance` to its parent's tokens at the same positions is pruned with its descendants, for each r in
    `checks`; one whose parent's token at the fork is `spared` stays. Tokens that end an answer (`end_ids`)
    open no branch. The tree grows up to `depth` tokens, or until it has `width` branches that are all two
    tokens past the last check.
    """

    width: int
    absolute: float
    relative: float
    distance: float
    checks: tuple[int, ...]
    depth: int
    end_ids: frozenset[int]
    spared: Callable[[int], bool] = lambda token: False
    pruned: list[int] = field(default_factory=list)  # branches pruned, step by step

    def grow(
        self, request: Callable[[Sequence[int]], Request]
    ) -> Generator[list[Request], list[Completion], tuple[list[Branch], int]]:
        """Yield requests that continue branches greedily, and be sent their completions. Returns the branches
        and the step that all have reached.

        `request(ids)` makes the request that continues the completion tokens `ids`.
        """
        branches, step = [Branch()], 0
        while step < self.depth and any(branch.continues(step) for branch in branches):
            short = [branch for branch in branches if branch.continues(step) and len(branch.ids) <= step]
            if short:
                for branch, completion in zip(
                    short, (yield [request(branch.ids) for branch in short]), strict=True
                ):
                    known = len(branch.ids)
                    branch.ids += completion.ids[known:]
                    branch.logp += completion.logp[known:]
                    branch.alternatives += (completion.top_logprobs or [])[known:]
                    branch.ended = completion.finish == "stop"
            branches += self.forks(branches, step)
            step += 1
            before = len(branches)
            for similar in [branch for branch in branches if self.too_similar(branch, step)]:
                branches = [branch for branch in branches if not branch.descends_from(similar)]
            self.pruned.append(before - len(branches))
            youngest = max(0, *(branch.start for branch in branches))
            if len(branches) >= self.width and step - youngest > max(self.checks) + 1:
                break
        return branches, step

    def forks(self, branches: Sequence[Branch], step: int) -> list[Branch]:
        """The new branches at `step`."""
        candidates = []
        for branch in branches:
            if branch.continues(step):
                token, logp = branch.runner_up(step)
                gap = math.exp(branch.logp[step]) - math.exp(logp)
                if math.exp(logp) > self.absolute and gap < self.relative and token not in self.end_ids:
                    candidates.append((logp, branch, token))
        candidates.sort(key=lambda item: -item[0])
        return [
            Branch(
                [*b.ids[:step], token],
                [*b.logp[:step], logp],
                [*b.alternatives[:step], b.alternatives[step]],
                b,
                step,
            )
            for logp, b, token in candidates[: max(0, self.width - len(branches))]
        ]

    def too_similar(self, branch: Branch, step: int) -> bool:
        """Whether a branch that is checked at `step` is still too close to its parent."""
        length = step - branch.start
        if (
            branch.parent is None
            or length not in self.checks
            or len(branch.ids) < step
            or len(branch.parent.ids) < step
        ):
            return False
        own, parents = branch.ids[branch.start : step], branch.parent.ids[branch.start : step]
        return (
            not self.end_ids & {*own, *parents}
            and not self.spared(parents[0])
            and Levenshtein.distance(own, parents) / length < self.distance
        )


@register("latr")
@dataclass(frozen=True)
class Latr(Branching):
    """LATR's rollouts: round(eta n) of a group from a lookahead tree, which continue by sampling when the
    tree is finished; the others are sampled.

    At each step a branch takes its most likely token; its runner-up opens another branch if p2 > `absolute`
    and p1 - p2 < `relative`. FROM_TREE marks the tree's rollouts. Paper: Xing et al. 2025, arXiv:2510.24302,
    eq. 5-10; values of the release's grpo-kt-countdown.sh. Deviates: eq. 5's sign of the relative threshold
    (the release's is the other); two alternatives a step, as the release is set; in a narrow tree the rest
    are samples, not copies of its trunk; of too many forks the more likely ones are taken. Edge: no branch
    opens at an end token.

    Attributes:
        share: eta: (from step of the phase, value) pairs; the first step is 1.
        checks: After so many tokens r, a branch with edit distance / r < `distance` to its parent is pruned.
        symbols: Not where the parent's token at the fork is part of this text, or blank; "": everywhere.
        depth: Tokens of the tree at most.
        ahead: Greedy tokens of a request, with their alternatives: the same tree as inside the generator, but
            some of them are not used.
    """

    state_class = StepCounts
    absolute: float = 0.25
    relative: float = 0.15
    distance: float = 0.4
    checks: tuple[int, ...] = (20, 30, 50)
    symbols: str = "+-*/\\<>=()[]{}_^&%$0123456789"
    share: tuple[tuple[int, float], ...] = ((0, 1.0), (10, 0.75), (20, 0.5), (80, 0.25), (200, 0.0))
    depth: int = 512
    ahead: int = 64
    provides = (FROM_TREE,)

    def __post_init__(self) -> None:
        if not self.checks or min(self.checks) < 1 or min(self.depth, self.ahead) < 1:
            raise ValueError(
                f"checks={self.checks}, depth={self.depth} and ahead={self.ahead} must be at least 1"
            )
        if not self.share or self.share[0][0] != 0 or not all(0 <= value <= 1 for _, value in self.share):
            raise ValueError(f"share={self.share} must begin at step 0 and stay in [0, 1]")

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if isinstance(phase.sampling, Plain) and (
            phase.sampling.top_k or phase.sampling.top_p < 1 or phase.sampling.min_p
        ):
            raise ConfigError(
                "rollout: 'latr' compares probabilities over the whole vocabulary; set top_k to 0, top_p "
                "to 1 and min_p to 0 in `sampling`"
            )

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        share = {"latr/share": self.eta(self.run.phase_step + 1)} if self.is_set_up else {}
        return {**share, **self.state.totals("latr")}

    def eta(self, step: int) -> float:
        """The share of a group that comes from a tree, at a step counted from 1."""
        return [value for start, value in self.share if start <= step][-1]

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        eta = self.eta(run.phase_step + 1)
        trees = self.grown(prompts, [round(eta * count) for count in counts], run)
        requests: list[Request] = []
        from_trees: list[list[Rollout]] = []
        for place, (prompt, (branches, step)) in enumerate(zip(prompts, trees, strict=True)):
            trunks = [self.rollout(run, prompt, branch, step) for branch in branches]
            from_trees.append([rollout for rollout in trunks if rollout.finish == "stop"])
            for number, rollout in enumerate(rollout for rollout in trunks if rollout.finish != "stop"):
                sampling, seed = run.sampling(prompt, number), self.seeds(run, prompt)
                requests.append(branch_request(rollout, len(rollout), sampling, seed, tag=(place, rollout)))
        for completion in run.engine.generate(requests):
            place, trunk = completion.request.tag
            from_trees[place].append(branch_rollout(run, completion, trunk, len(trunk), trained=True))
        groups = self.sample_roots(
            prompts, [count - len(rollouts) for count, rollouts in zip(counts, from_trees, strict=True)], run
        )
        for group, rollouts in zip(groups, from_trees, strict=True):
            for rollout in rollouts:
                FROM_TREE.set(rollout, True)
            group.rollouts = [*rollouts, *group.rollouts]
        return self.drop_alternatives(groups)

    def grown(
        self, prompts: Sequence[Prompt], widths: Sequence[int], run: SamplingContext
    ) -> list[tuple[list[Branch], int]]:
        """The tree of every prompt, and the step that it has reached; no branches where the width is 0."""
        end_ids = frozenset(run.policy.tokenizer.all_special_ids)
        growing, rulebook = {}, {}
        for place, (prompt, width) in enumerate(zip(prompts, widths, strict=True)):
            if width:
                depth = min(self.depth, run.sampling(prompt, 0).max_tokens - 1)
                rules = Lookahead(
                    width,
                    self.absolute,
                    self.relative,
                    self.distance,
                    self.checks,
                    depth,
                    end_ids,
                    partial(self.is_symbol, run),
                )
                rulebook[place] = rules
                growing[place] = rules.grow(partial(self.greedy, run, prompt))
        trees = run_in_rounds(run, growing)
        self.state.add(
            wanted=sum(widths),
            found=sum(len(branches) for branches, _ in trees.values()),
            pruned=sum(sum(rules.pruned) for rules in rulebook.values()),
        )
        return [trees.get(place, ([], 0)) for place in range(len(prompts))]

    def is_symbol(self, run: SamplingContext, token: int) -> bool:
        """Whether a token is blank or part of `symbols`."""
        return bool(self.symbols) and run.policy.decode([token]).strip() in self.symbols

    def greedy(self, run: SamplingContext, prompt: Prompt, ids: Sequence[int]) -> Request:
        """A request for `ahead` more tokens after `ids`, the most likely ones, with their alternatives."""
        usual = run.sampling(prompt, 0)
        sampling = replace(
            usual, temperature=0.0, top_logprobs=2, max_tokens=min(usual.max_tokens, len(ids) + self.ahead)
        )
        return Request(prompt, sampling, 1, 0, tuple(ids))

    def rollout(self, run: SamplingContext, prompt: Prompt, branch: Branch, step: int) -> Rollout:
        """The first `step` tokens of a branch as a rollout; finish "stop" if the branch has ended by then."""
        ids = branch.ids[:step]
        return Rollout(
            prompt,
            ids,
            prompt.prefix + run.policy.decode(ids),
            branch.logp[:step],
            "length" if branch.continues(step) else "stop",
            spaces=tuple(run.policy.spaces(prompt)),
            version=run.policy.version,
        )
