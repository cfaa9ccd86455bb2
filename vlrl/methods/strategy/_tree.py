"""A tree of chunks of solutions, and what its chunks are worth."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from vlrl.types import Rollout


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
