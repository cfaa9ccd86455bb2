"""DeepSearch: tree search over chunks of solutions in place of independent samples; every chunk has its own
value.

`deepsearch` is the rollout strategy that searches, `deepsearch.chunk_values` the advantage estimator per
token, for `token_credit: {name: per_token}`. Each requires the other.

Paper: Wu et al. 2025 (DeepSearch), arXiv:2509.25454, sec. 3 and 4, app. A.2. Checked against the release:
smiles724/DeepSearch at daf9067b, deepsearch/utils/mcts.py, deepsearch/rollout/sglang_mcts_wrapper.py,
deepsearch/reward_manager/advantage_fn.py, round0.sh, round1.sh. Deviates: a tree without an open node left
gives its remaining ends, where the release stops with an error; a row counts as hard by the share of its
tree's correct ends, where the release samples four answers after the round.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vlrl.functional.exact import mean
from vlrl.methods.common.branching import branch_request, branch_rollout, run_in_rounds
from vlrl.methods.common.correctness import success_rate
from vlrl.methods.core.rollout import Independent
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.capabilities import Annotation, Capability
from vlrl.plugins.contexts import PhaseContext, SamplingContext, StepContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, AdvantageEstimator
from vlrl.types import Completion, Group, Prompt, Request, Rollout

VALUES: Annotation[list[float]] = Annotation(
    "deepsearch.values",
    list,
    hint="rollout: {name: deepsearch}",
    doc="value of each token's chunk: tanh q, and +-1 for the last chunk of a path",
)
CHUNK_ADVANTAGES = Capability(
    "deepsearch.chunk_advantages", hint="advantage: {name: deepsearch.chunk_values}"
)


KEY = "deepsearch"  # of a row's memory in the run's history: its cached correct solutions


@dataclass(eq=False)
class Node:
    """A chunk of a solution. `rollout` is the solution up to its end, `end_value` is 1 for a correct end, -1
    for another end, 0 within a path."""

    rollout: Rollout
    parent: Node | None = None
    depth: int = 0
    q: float = 0.0
    visits: int = 0
    expanded: bool = False
    children: list[Node] = field(default_factory=list)
    end_value: Literal[-1, 0, 1] = 0

    @property
    def path(self) -> list[Node]:
        """The chunks from the first to this one; the root, which is the prompt, is not one of them."""
        return [*self.parent.path, self] if self.parent is not None else []


@register("deepsearch")
@dataclass(frozen=True)
class Deepsearch(Independent):
    """DeepSearch: a tree of chunks of `chunk` tokens, n children each; the group is n paths that have come to
    an end and were backed up.

        priority (eq. 7) = quality tanh(q / N of its parent) + uncertainty H + depth_bonus sqrt(d / depth)

    H is the mean -log p of a node's tokens, d its depth, N the backups through it (1 where it did not end). A
    node is expanded, then the first of its children, until children end: at EOS, the length limit or `depth`.
    One end (correct before wrong, then least mean -log p) is backed up (eq. 3-5) and joins the group; then
    the open node of largest priority follows. VALUES has the value of every token's chunk. Without an open
    node other ends follow by the same rule.

    Attributes:
        chunk: 0: the length limit over `depth`, rounded up.
        overlong: DAPO's overlong penalty over this last share of the length limit (0: none) is taken off
            VALUES.
        cache: Correct solutions of a row with 0 < accuracy <= `cache` go into the run's history.
        replay: A row that has such solutions is not searched: n independent samples, of which the first are
            replaced by them (source "replay").
    """

    chunk: int = 256
    depth: int = 64
    quality: float = 0.4
    uncertainty: float = 0.0
    depth_bonus: float = 0.01
    overlong: float = 0.0
    cache: float = 0.0
    replay: bool = False
    provides = (VALUES,)
    requires = (CHUNK_ADVANTAGES,)

    def __post_init__(self) -> None:
        if self.chunk < 0 or self.depth < 1:
            raise ValueError(f"chunk={self.chunk} must be at least 0 and depth={self.depth} at least 1")
        if not (0 <= self.overlong < 1 and 0 <= self.cache < 1):
            raise ValueError(f"overlong={self.overlong} and cache={self.cache} must be in [0, 1)")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        cached = [
            run.history.get(prompt.row.id, {}).get(KEY, []) if self.replay and count else []
            for prompt, count in zip(prompts, counts)
        ]
        searches = {
            place: self.search(prompt, count, run)
            for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
            if count and not cached[place]
        }
        trees = run_in_rounds(run, searches)
        groups = [
            Group(prompt, [self.with_values(leaf, run) for leaf in trees.get(place, [])])
            for place, prompt in enumerate(prompts)
        ]
        known = [place for place, solutions in enumerate(cached) if solutions]
        for place, group in zip(
            known,
            super().__call__([prompts[p] for p in known], [counts[p] for p in known], run) if known else [],
        ):
            groups[place] = self.with_solutions(group, cached[place], run)
        return groups

    def search(
        self, prompt: Prompt, count: int, run: SamplingContext
    ) -> Generator[list[Request], list[Completion], list[Node]]:
        """Yields requests, is sent completions, returns the ends of the backed-up paths."""
        root = Node(Rollout(prompt, []))
        node: Node | None = root
        nodes: list[Node] = []
        waiting: list[Node] = []
        leaves: list[Node] = []
        while node is not None and len(leaves) < count:
            completions = yield [self.request(node, prompt, count, run)]
            ended = self.expand(node, completions, run)
            nodes += node.children
            waiting += ended
            if ended:
                leaves.append(best_end(ended))
                back_up(leaves[-1])
            going_on = [child for child in node.children if not child.end_value]
            frontier = [other for other in nodes if not other.expanded and not other.end_value]
            node = going_on[0] if going_on and not ended else max(frontier, key=self.priority, default=None)
        while len(leaves) < count and (rest := [leaf for leaf in waiting if leaf not in leaves]):
            leaves.append(best_end(rest))
            back_up(leaves[-1])
        return leaves

    def priority(self, node: Node) -> float:
        """Eq. 7."""
        parent = node.parent
        value = parent.q / parent.visits if parent is not None and parent.visits else 0.0
        begin = len(parent.rollout) if parent is not None else 0
        surprisal = mean_surprisal(node.rollout.logp[begin:]) if self.uncertainty else 0.0
        return (
            self.quality * math.tanh(value)
            + self.uncertainty * surprisal
            + self.depth_bonus * math.sqrt(node.depth / self.depth)
        )

    def request(self, node: Node, prompt: Prompt, count: int, run: SamplingContext) -> Request:
        """The request for the children of a node."""
        sampling, length = run.sampling(prompt, 0), len(node.rollout)
        chunk = self.chunk or math.ceil(sampling.max_tokens / self.depth)
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, length + chunk))
        return branch_request(node.rollout, length, sampling, self.seeds(run, prompt), count)

    def expand(self, node: Node, completions: Sequence[Completion], run: SamplingContext) -> list[Node]:
        """Add the children to a node; returns those that end a path, with their `end_value`. Ends that could
        not be scored are dropped."""
        limit = run.sampling(node.rollout.prompt, 0).max_tokens
        node.expanded = True
        for completion in completions:
            rollout = branch_rollout(run, completion, node.rollout, len(node.rollout), trained=True)
            node.children.append(Node(rollout, node, node.depth + 1))
        over = [
            c
            for c in node.children
            if c.rollout.finish != "length" or len(c.rollout) >= limit or c.depth >= self.depth
        ]
        judged = Group(node.rollout.prompt, [child.rollout for child in over])
        run.score([judged])
        scored = {id(rollout) for rollout in judged}
        node.children = [child for child in node.children if child not in over or id(child.rollout) in scored]
        ended = [child for child in over if id(child.rollout) in scored]
        for child in ended:
            child.end_value = 1 if child.rollout.correct else -1
        for child in node.children:
            child.visits += not child.end_value
        return ended

    def overlong_penalty(self, length: int, limit: int) -> float:
        """DAPO's soft overlong punishment, 0 to -1, over the last `overlong` share of the limit."""
        buffer = self.overlong * limit
        return min((limit - buffer - length) / buffer, 0.0) if buffer else 0.0

    def with_values(self, leaf: Node, run: SamplingContext) -> Rollout:
        """The whole path as a rollout, with the value of every token's chunk in VALUES: tanh q, and +-1 for
        the last chunk."""
        values: list[float] = []
        penalty = self.overlong_penalty(len(leaf.rollout), run.sampling(leaf.rollout.prompt, 0).max_tokens)
        for node in leaf.path:
            values += [(math.tanh(node.q) if node is not leaf else float(leaf.end_value)) + penalty] * (
                len(node.rollout) - len(values)
            )
        VALUES.set(leaf.rollout, values)
        return leaf.rollout

    def with_solutions(
        self, group: Group, solutions: Sequence[dict[str, Any]], run: SamplingContext
    ) -> Group:
        """A group whose first rollouts are replaced by cached solutions; all tokens of a rollout have its
        value, +-1."""
        spaces = tuple(run.policy.spaces(group.prompt))
        for place, item in enumerate(solutions[: len(group)]):
            group.rollouts[place] = Rollout(
                group.prompt, **deepcopy(item), source="replay", spaces=spaces, version=run.policy.version
            )
        run.score([group])
        for rollout in group:
            penalty = self.overlong_penalty(len(rollout), run.sampling(group.prompt, 0).max_tokens)
            VALUES.set(rollout, [(1.0 if rollout.correct else -1.0) + penalty] * len(rollout))
        return group

    def end_step(self, run: StepContext) -> None:
        for group in run.answered_groups if self.cache else ():
            correct = [rollout for rollout in group if rollout.correct and rollout.source == "policy"]
            if 0 < success_rate(group.rollouts) <= self.cache and correct:
                stored = [
                    {name: getattr(r, name) for name in ("ids", "text", "logp", "finish", "temperature")}
                    for r in correct
                ]
                run.history.setdefault(group.row.id, {})[KEY] = deepcopy(stored)


def best_end(ended: Sequence[Node]) -> Node:
    """A correct end before a wrong one, and among these the one with the least mean -log p."""
    return min(ended, key=lambda leaf: (-leaf.end_value, mean_surprisal(leaf.rollout.logp)))


def back_up(leaf: Node, min_gain: float = 0.1) -> None:
    """Eq. 3-5, for the root (i = 0) and the chunks i = 1 .. l of a path with l chunks and end value v, g =
    max((i + 1) / (l + 1), min_gain):

    q_i <- q_i + g v if q_i v >= 0, g v if v > 0, else q_i;  N_i <- N_i + 1.

    The end itself is i = l, whose g is 1.
    """
    node: Node | None = leaf
    while node is not None:
        gain = max((node.depth + 1) / (leaf.depth + 1), min_gain) * leaf.end_value
        node.q = node.q + gain if node.q * leaf.end_value >= 0 else gain if leaf.end_value > 0 else node.q
        node.visits += 1
        node = node.parent


def mean_surprisal(logp: Sequence[float]) -> float:
    """The mean -log p, in nats; 0 without tokens."""
    return -math.fsum(logp) / max(len(logp), 1)


@register("deepsearch.chunk_values")
@dataclass(frozen=True)
class DeepsearchChunkValues(AdvantageEstimator):
    """DeepSearch's advantage per token: the value of the token's chunk less the mean value of the tree's
    ends.

        A_t = q(s_t) - mu,  mu the mean over the group's rollouts of their last value (+1 correct, -1 not)

    Eq. 13-15 (no division by the standard deviation, as norm_adv_by_std_in_grpo False); q_max 1, temperature
    1. Edge: a chunk within a wrong path has a positive advantage where its value is above mu, as in the
    release; rollouts without VALUES have their reward as value.
    """

    provides = (TOKEN_ADVANTAGES, CHUNK_ADVANTAGES)
    requires = (VALUES,)

    def check(self, phase: PhaseContext) -> None:
        check_token_credit(phase, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        out = []
        for group in groups:
            values = [VALUES.get(rollout, [rollout.reward] * len(rollout)) for rollout in group]
            baseline = mean([row[-1] for row in values])
            rows = [[q - baseline for q in row] for row in values]
            for rollout, row in zip(group, rows, strict=True):
                TOKEN_ADVANTAGES.set(rollout, row)
            out.append([mean(row) for row in rows])
        return out
