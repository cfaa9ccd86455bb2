"""DeepSearch: tree search over chunks of solutions in place of independent samples; every chunk has its own value.

`deepsearch` is the rollout strategy that searches, `deepsearch.chunk_values` the advantage estimator per token, for `token_credit: {name:
per_token}`. Each requires the other.

Paper: Wu et al. 2025 (DeepSearch), arXiv:2509.25454, sec. 3 and app. A.2: 256 tokens, depth 64, 8 children, quality 0.4, no uncertainty, depth bonus
0.01; eq. 3-7 (search), 13-15 (advantages).
Deviates: UCT among siblings has nothing to compare where all are new, so the first is taken; the number of rounds is ours (the paper counts some 190
on very hard problems); filtering the data between phases and cached solutions (sec. 4.1, 4.2) are left out.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from vlrl.capabilities import Annotation, Capability
from vlrl.context import RunContext
from vlrl.functional.exact import mean
from vlrl.methods.common.branching import branch_request, branch_rollout, run_in_rounds
from vlrl.methods.core.rollout import Independent
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.registry import register
from vlrl.stages import TOKEN_ADVANTAGES, AdvantageEstimator
from vlrl.types import Completion, Group, Prompt, Request, Rollout

VALUES: Annotation[list[float]] = Annotation(
    "deepsearch.values", list, hint="rollout: {name: deepsearch}", doc="value of each token's chunk: tanh q, and +-1 for the last chunk of a path"
)
CHUNK_ADVANTAGES = Capability("deepsearch.chunk_advantages", hint="advantage: {name: deepsearch.chunk_values}")


@dataclass(eq=False)
class Node:
    """A chunk of a solution. `rollout` is the solution up to its end, `end_value` is 1 for a correct end, -1 for another end, 0 within a path."""

    rollout: Rollout
    parent: Node | None = None
    depth: int = 0
    q: float = 0.0
    visits: int = 0
    children: list[Node] = field(default_factory=list)
    end_value: Literal[-1, 0, 1] = 0

    @property
    def path(self) -> list[Node]:
        """The chunks from the first to this one."""
        return [*self.parent.path, self] if self.parent is not None else []


@register("deepsearch")
@dataclass(frozen=True)
class Deepsearch(Independent):
    """DeepSearch: a tree of chunks of `chunk` tokens, n children each; the group is every path that has come to an end.

    A round expands a node, then the first child of the expansion, and so on, until children end. From the second round on it begins at the open node
    with the largest priority (eq. 7):

        quality tanh(q / N of its parent) + uncertainty H + depth_bonus sqrt(d / depth),  H the mean -log p of its tokens, d its depth

    A correct end, or the wrong one with the least mean -log p, is backed up (eq. 3-5). The search stops with a round that finds a correct end, or
    after `rounds`; a path ends at EOS, at the length limit or at the depth `depth`. The annotation VALUES has the value of every token's chunk. Edge:
    answers shorter than a chunk make it n independent samples. Groups are ragged.
    """

    chunk: int = 256
    depth: int = 64
    rounds: int = 8
    quality: float = 0.4
    uncertainty: float = 0.0
    depth_bonus: float = 0.01
    provides = (VALUES,)
    requires = (CHUNK_ADVANTAGES,)

    def __post_init__(self) -> None:
        if min(self.chunk, self.depth, self.rounds) < 1:
            raise ValueError(f"chunk={self.chunk}, depth={self.depth} and rounds={self.rounds} must be at least 1")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        searches = {place: self.search(prompt, count, run) for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True)) if count}
        trees = run_in_rounds(run, searches)
        return [Group(prompt, [with_values(leaf) for leaf in trees.get(place, [])]) for place, prompt in enumerate(prompts)]

    def search(self, prompt: Prompt, count: int, run: RunContext) -> Generator[list[Request], list[Completion], list[Node]]:
        """Yields requests, is sent completions, returns the ends of all paths."""
        nodes, leaves = [Node(Rollout(prompt, []))], []
        for _ in range(self.rounds):
            frontier = [node for node in nodes if not node.children and not node.end_value]
            if not frontier:
                break
            node: Node | None = max(frontier, key=self.priority)
            ended: list[Node] = []
            while node is not None and not ended:
                completions = yield [self.request(node, prompt, count, run)]
                ended = self.expand(node, completions, run)
                nodes += node.children
                node = node.children[0] if node.children else None
            leaves += ended
            if not ended:
                break  # nothing could be scored
            correct = [leaf for leaf in ended if leaf.end_value > 0]
            back_up(correct[0] if correct else min(ended, key=lambda leaf: mean_surprisal(leaf.rollout.logp)))
            if correct:
                break
        return leaves

    def priority(self, node: Node) -> float:
        """Eq. 7."""
        parent = node.parent
        value = parent.q / parent.visits if parent is not None and parent.visits else 0.0
        begin = len(parent.rollout) if parent is not None else 0
        surprisal = mean_surprisal(node.rollout.logp[begin:]) if self.uncertainty else 0.0
        return self.quality * math.tanh(value) + self.uncertainty * surprisal + self.depth_bonus * math.sqrt(node.depth / self.depth)

    def request(self, node: Node, prompt: Prompt, count: int, run: RunContext) -> Request:
        """The request for the children of a node."""
        sampling, length = run.sampling(prompt, 0), len(node.rollout)
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, length + self.chunk))
        return branch_request(node.rollout, length, sampling, self.seeds(run, prompt), count)

    def expand(self, node: Node, completions: Sequence[Completion], run: RunContext) -> list[Node]:
        """Add the children to a node; returns those that end a path, with their `end_value`. Ends that could not be scored are dropped."""
        limit = run.sampling(node.rollout.prompt, 0).max_tokens
        for completion in completions:
            rollout = branch_rollout(run, completion, node.rollout, len(node.rollout), trained=True)
            node.children.append(Node(rollout, node, node.depth + 1))
        over = [c for c in node.children if c.rollout.finish != "length" or len(c.rollout) >= limit or c.depth >= self.depth]
        judged = Group(node.rollout.prompt, [child.rollout for child in over])
        run.score([judged])
        scored = {id(rollout) for rollout in judged}
        node.children = [child for child in node.children if child not in over or id(child.rollout) in scored]
        ended = [child for child in over if id(child.rollout) in scored]
        for child in ended:
            child.end_value = 1 if child.rollout.finish == "stop" and child.rollout.correct else -1
        return ended


def back_up(leaf: Node, min_gain: float = 0.1) -> None:
    """Eq. 3-5, for the chunks i = 1 .. l - 1 before a leaf at place l with end value v, g = max(i / l, min_gain):

    q_i <- q_i + g v if q_i v >= 0, g v if v > 0, else q_i.
    """
    path = leaf.path
    for i, node in enumerate(path[:-1], start=1):
        gain = max(i / len(path), min_gain) * leaf.end_value
        node.q = node.q + gain if node.q * leaf.end_value >= 0 else gain if leaf.end_value > 0 else node.q
        node.visits += 1


def mean_surprisal(logp: Sequence[float]) -> float:
    """The mean -log p, in nats; 0 without tokens."""
    return -math.fsum(logp) / max(len(logp), 1)


def with_values(leaf: Node) -> Rollout:
    """The whole path as a rollout, with the value of every token's chunk in VALUES."""
    values: list[float] = []
    for node in leaf.path:
        values += [math.tanh(node.q) if node is not leaf else float(leaf.end_value)] * (len(node.rollout) - len(values))
    VALUES.set(leaf.rollout, values)
    return leaf.rollout


@register("deepsearch.chunk_values")
@dataclass(frozen=True)
class DeepsearchChunkValues(AdvantageEstimator):
    """DeepSearch's advantage per token: the value of the token's chunk less the mean value of the tree's ends.

        A_t = q(s_t) - mu,  mu the mean over the group's rollouts of their last value (+1 correct, -1 not)

    Eq. 13-15 (no division by the standard deviation); q_max 1, temperature 1. Edge: chunks of a wrong path that were never backed up have q 0, so
    that their advantage is positive where most ends are wrong; rollouts of no tree have their reward as value.
    """

    provides = (TOKEN_ADVANTAGES, CHUNK_ADVANTAGES)
    requires = (VALUES,)

    def check(self, run: RunContext) -> None:
        check_token_credit(run, self.name)

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
