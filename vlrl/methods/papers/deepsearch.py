"""A tree of chunks of solutions, and what its chunks are worth.

A tree search in place of independent samples: chunks are expanded where they promise most, until a right answer is found.

What each chunk of a searched solution is worth, less what the search's solutions are worth on average.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from vlrl.functional.exact import mean
from vlrl.methods.common.branching import from_token, joined, together
from vlrl.methods.common.derived_prompts import accuracy
from vlrl.methods.core.advantage import check_credit
from vlrl.methods.core.rollout import Independent
from vlrl.registry import ConfigError, register
from vlrl.stages import AdvantageEstimator
from vlrl.types import Completion, Group, Prompt, Request, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


@dataclass(eq=False)
class Node:
    """A chunk of a solution: `rollout` is everything up to its end."""

    rollout: Rollout
    parent: Node | None = None
    depth: int = 0
    q: float = 0.0
    visits: int = 0
    children: list[Node] = field(default_factory=list)
    worth: Literal[-1, 0, 1] = 0  # 1: right, -1: wrong or without end, 0: goes on

    @property
    def path(self) -> list[Node]:
        """The chunks from the first to this one."""
        return [*self.parent.path, self] if self.parent is not None else []


def back_up(leaf: Node, least: float = 0.1) -> None:
    """Eq. 3-5: q_i <- q_i + g w if q_i w >= 0, g w if w > 0, else as it was, for the chunks before a leaf of worth w; g = max(i / l, least)."""
    path = leaf.path
    for i, node in enumerate(path[:-1], start=1):
        gain = max(i / len(path), least) * leaf.worth
        node.q = node.q + gain if node.q * leaf.worth >= 0 else gain if leaf.worth > 0 else node.q
        node.visits += 1


def surprise(rollout: Rollout) -> float:
    """The mean -log p of its tokens, in nats."""
    return -math.fsum(rollout.logp) / max(len(rollout.logp), 1)


def valued(leaf: Node) -> Rollout:
    """The whole path as a rollout, with the value of every token's chunk."""
    values: list[float] = []
    for node in leaf.path:
        values += [math.tanh(node.q) if node is not leaf else float(leaf.worth)] * (len(node.rollout) - len(values))
    leaf.rollout.info["q"] = values
    return leaf.rollout


@register("deepsearch")
@dataclass(frozen=True)
class Deepsearch(Independent):
    """A tree of chunks of `chunk` tokens, n children each; the group is every path that has come to an end.

    A round expands a node and the first child of what it made, and so on, until children end; from the second round on it begins at the open node of
    largest `quality` tanh(q / N of its parent) + `uncertainty` H + `deep` sqrt(depth / `depth`), H the mean -log p of its tokens. A right end, or the
    wrong one that the policy was surest of (least mean -log p), is backed up (eq. 3-5). The search stops with a round that finds a right end or
    after `rounds`. `info["q"]` is the value per token (tanh q of chunks, +-1 of the last one), for advantage `deepsearch`.
    Paper: Wu et al. 2025 (DeepSearch), arXiv:2509.25454, sec. 3 and app. A.2: 256 tokens, depth 64, 8 children, quality 0.4, no uncertainty,
    deep 0.01. Deviates: UCT among siblings has nothing to go by where all are new, so the first is taken; the number of rounds is ours (the paper
    counts some 190 on very hard problems); filtering the data between phases and cached solutions (sec. 4.1, 4.2) are left out.
    Edge: answers shorter than a chunk make it n independent samples. Groups are ragged.
    """

    chunk: int = 256
    depth: int = 64
    rounds: int = 8
    quality: float = 0.4
    uncertainty: float = 0.0
    deep: float = 0.01
    least: float = 0.5
    slot: str = ""

    def __post_init__(self) -> None:
        if min(self.chunk, self.depth, self.rounds) < 1:
            raise ValueError(f"chunk={self.chunk}, depth={self.depth} and rounds={self.rounds} must be at least 1")

    def check(self, run: RunContext) -> None:
        if run.advantage.name != "deepsearch.chunk_values":
            fix = "use advantage: {name: deepsearch}"
            raise ConfigError(f"strategy deepsearch values chunks, which advantage {run.advantage.name!r} does not read; {fix}")
        if self.slot and self.slot not in run.rewards:
            raise ConfigError(f"strategy.slot: no reward slot {self.slot!r}; known: {', '.join(run.rewards)}")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        works = {place: self.search(prompt, count, run) for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True)) if count}
        trees = together(run, works)
        return [Group(prompt, [valued(leaf) for leaf in trees.get(place, [])]) for place, prompt in enumerate(prompts)]

    def search(self, prompt: Prompt, count: int, run: RunContext) -> Generator[list[Request], list[Completion], list[Node]]:
        """Yields requests, is sent completions, returns the ends of all paths."""
        root = Node(Rollout(prompt, []))
        nodes, leaves = [root], []
        for _ in range(self.rounds):
            open_ = [node for node in nodes if not node.children and not node.worth]
            if not open_:
                break
            node, ended = max(open_, key=self.priority), []
            while node is not None and not ended:
                completions = yield [self.request(node, prompt, count, run)]
                ended = self.expand(node, completions, run)
                nodes += node.children
                node = node.children[0] if node.children else None
            leaves += ended
            if not ended:
                break  # nothing could be scored
            right = [leaf for leaf in ended if leaf.worth > 0]
            back_up(right[0] if right else min(ended, key=lambda leaf: surprise(leaf.rollout)))
            if right:
                break
        return leaves

    def priority(self, node: Node) -> float:
        """Eq. 7."""
        parent = node.parent
        value = parent.q / parent.visits if parent is not None and parent.visits else 0.0
        begin = len(parent.rollout) if parent is not None else 0
        unsure = surprise(replace(node.rollout, logp=node.rollout.logp[begin:])) if self.uncertainty else 0.0
        return self.quality * math.tanh(value) + self.uncertainty * unsure + self.deep * math.sqrt(node.depth / self.depth)

    def request(self, node: Node, prompt: Prompt, count: int, run: RunContext) -> Request:
        """For the children of a node."""
        sampling, length = run.sampling(prompt, 0), len(node.rollout)
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, length + self.chunk))
        return from_token(node.rollout, length, sampling, self.seeds(run, prompt), count)

    def expand(self, node: Node, completions: Sequence[Completion], run: RunContext) -> list[Node]:
        """Hang the children on a node; returns those that end a path, judged."""
        limit = run.sampling(node.rollout.prompt, 0).max_tokens
        for completion in completions:
            rollout = joined(run, completion, node.rollout, len(node.rollout), trained=True)
            node.children.append(Node(rollout, node, node.depth + 1))
        over = [c for c in node.children if c.rollout.finish != "length" or len(c.rollout) >= limit or c.depth >= self.depth]
        judged = Group(node.rollout.prompt, [child.rollout for child in over])
        run.score([judged])
        scored = {id(rollout) for rollout in judged}
        node.children = [child for child in node.children if child not in over or id(child.rollout) in scored]
        for child in (ended := [child for child in over if id(child.rollout) in scored]):
            child.worth = 1 if child.rollout.finish == "stop" and accuracy(run, child.rollout, self.slot) > self.least else -1
        return ended


@register("deepsearch.chunk_values")
@dataclass(frozen=True)
class DeepsearchChunkValues(AdvantageEstimator):
    """A_t = q(s_t) - mu: the value of the chunk that token t is in (strategy `deepsearch`), mu the mean of the tree's ends (+1 right, -1 not).

    Paper: Wu et al. 2025 (DeepSearch), arXiv:2509.25454, eq. 13-15 (no division by the standard deviation); q_max 1, temperature 1. For credit
    `per_token`. Edge: a wrong path's chunks that were never backed up have q 0, so that they gain where most ends are wrong;
    rollouts of no tree have their reward for a value.
    """

    writes_tokens = True

    def check(self, run: RunContext) -> None:
        if run.rollout.name != "deepsearch":
            raise ConfigError(
                f"advantage deepsearch reads values that strategy {run.rollout.name!r} does not leave; use strategy: {{name: deepsearch}}"
            )
        check_credit(run, "deepsearch")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        out = []
        for group in groups:
            values = [rollout.info.get("q", [rollout.reward] * len(rollout)) for rollout in group]
            usual = mean([row[-1] for row in values])
            for rollout, row in zip(group, values, strict=True):
                rollout.info["token_advantages"] = [q - usual for q in row]
            out.append([mean(rollout.info["token_advantages"]) for rollout in group])
        return out
