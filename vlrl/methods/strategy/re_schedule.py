"""A tree of answers: every so many tokens each of them goes on in several ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vlrl.methods.strategy._branch import from_token, joined
from vlrl.methods.strategy.independent import Independent
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Prompt, Request, Rollout

if TYPE_CHECKING:
    from vlrl.run import Run


@register("reasoning_tree")
@dataclass(frozen=True)
class ReasoningTree(Independent):
    """The leaves of a tree: `branch` answers of `interval` tokens, each continued `branch` times, and so on, `depth` levels deep, then to their end.

    A group has at most branch^depth rollouts; `rollout.info["path"]` says by which branches one was reached. An answer that ends early is a leaf.
    Paper: Wang et al. 2025 (Re-Schedule), arXiv:2510.24832: branching at the start and at every interval; k = d = 4 in the released example, the
    interval is ours. All tokens of a leaf are trained on, so a shared beginning counts once per leaf: made for phases that only measure (lr 0).
    Edge: a prompt with count 0 gives an empty group; other counts do not matter, and must be branch^depth. One engine call per level.
    """

    branch: int = 4
    depth: int = 4
    interval: int = 200

    def __post_init__(self) -> None:
        if self.branch < 2 or self.depth < 2 or self.interval < 1:
            raise ConfigError(f"strategy: branch={self.branch} and depth={self.depth} must be at least 2, interval={self.interval} at least 1")

    def check(self, run: Run) -> None:
        super().check(run)
        if run.group_size != self.branch**self.depth:
            raise ConfigError(f"strategy reasoning_tree makes {self.branch}^{self.depth} rollouts; set group_size: {self.branch**self.depth}")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        groups = [Group(prompt, []) for prompt in prompts]
        nodes = [(place, (), Rollout(prompt, [])) for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True)) if count]
        for level in range(1, self.depth + 1):
            requests = [self.ask(run, place, path, node, level) for place, path, node in nodes]
            below = []
            for completion in run.engine.generate(requests):
                place, path, parent = completion.request.tag
                child = joined(run, completion, parent, len(parent), trained=True)
                below.append((place, (*path, completion.index), child, completion.request.sampling.max_tokens))
            nodes = []
            for place, path, child, limit in sorted(below, key=lambda node: node[:2]):
                whole = run.decode(child.prompt, 0).max_tokens
                if child.finish == "length" and limit < whole:
                    nodes.append((place, path, child))
                else:
                    child.info["path"] = list(path)
                    groups[place].rollouts.append(child)
        for group in groups:
            group.rollouts.sort(key=lambda rollout: rollout.info["path"])
        return groups

    def ask(self, run: Run, place: int, path: tuple[int, ...], node: Rollout, level: int) -> Request:
        """The continuations of a node: up to the next branching, or to the end from the last level on."""
        sampling = run.decode(node.prompt, 0)
        if level < self.depth:
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, len(node) + self.interval))
        return from_token(node, len(node), sampling, self.seeds(run, node.prompt), self.branch, tag=(place, path, node))
