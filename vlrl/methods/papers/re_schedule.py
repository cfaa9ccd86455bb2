"""A tree of answers: every so many tokens each of them goes on in several ways.

How much a prompt's accuracy can gain by a few choices in the tree of its answers.

Prompts with a simple tree of answers count more at first, those with a hard one at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from vlrl.methods.common.branching import from_token, joined
from vlrl.methods.common.correctness import accuracies, slots_of
from vlrl.methods.core.rollout import Independent
from vlrl.registry import ConfigError, register
from vlrl.stages import Callback, TokenWeight
from vlrl.types import Group, LossInputs, Prompt, Request, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("re_schedule.reasoning_tree")
@dataclass(frozen=True)
class ReScheduleReasoningTree(Independent):
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
            raise ConfigError(f"rollout: branch={self.branch} and depth={self.depth} must be at least 2, interval={self.interval} at least 1")

    def check(self, run: RunContext) -> None:
        super().check(run)
        if run.group_size != self.branch**self.depth:
            raise ConfigError(f"strategy reasoning_tree makes {self.branch}^{self.depth} rollouts; set group_size: {self.branch**self.depth}")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
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
                whole = run.sampling(child.prompt, 0).max_tokens
                if child.finish == "length" and limit < whole:
                    nodes.append((place, path, child))
                else:
                    child.info["path"] = list(path)
                    groups[place].rollouts.append(child)
        for group in groups:
            group.rollouts.sort(key=lambda rollout: rollout.info["path"])
        return groups

    def ask(self, run: RunContext, place: int, path: tuple[int, ...], node: Rollout, level: int) -> Request:
        """The continuations of a node: up to the next branching, or to the end from the last level on."""
        sampling = run.sampling(node.prompt, 0)
        if level < self.depth:
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, len(node) + self.interval))
        return from_token(node, len(node), sampling, self.seeds(run, node.prompt), self.branch, tag=(place, path, node))


KEY = "r_score"
Path = tuple[int, ...]
Leaves = Mapping[Path, bool]


def accuracy(leaves: Leaves) -> float:
    """The share of right leaves."""
    return sum(leaves.values()) / len(leaves)


def best_choice(leaves: Leaves, depth: int) -> dict[Path, bool]:
    """The leaves that remain when one inner node keeps only its best child, where that helps most; all of them where it helps nowhere.

    Inner nodes lie below the root and above the parents of leaves; of equal children the first is the best.
    """
    best, remaining = accuracy(leaves), dict(leaves)
    for level in range(1, depth - 1):
        for node in sorted({path[:level] for path in leaves}):
            below = {path: right for path, right in leaves.items() if path[:level] == node}
            children = sorted({path[: level + 1] for path in below})
            child = max(children, key=lambda child: accuracy({path: right for path, right in below.items() if path[: level + 1] == child}))
            left = {path: right for path, right in leaves.items() if path not in below or path[: level + 1] == child}
            if len(children) > 1 and accuracy(left) > best:
                best, remaining = accuracy(left), left
    return remaining


def r_score(leaves: Leaves, depth: int, edits: int) -> float:
    """The sum of the gains in accuracy of `edits` best choices, one after the other."""
    now = dict(leaves)
    for _ in range(edits):
        now = best_choice(now, depth)
    return accuracy(now) - accuracy(leaves)


def full(paths: Mapping[Path, bool], branch: int, depth: int) -> dict[Path, bool]:
    """Leaves at full depth: an answer that ended early stands for all that would have gone on from it."""
    return {(*path, *rest): right for path, right in paths.items() for rest in product(range(branch), repeat=depth - len(path))}


@register("re_schedule.r_score")
@dataclass(frozen=True)
class ReScheduleRScore(Callback):
    """The r-score of each prompt joins its memory in the run's history: the accuracy that `edits` choices of a best child add, made one by one.

    Paper: Wang et al. 2025 (Re-Schedule), arXiv:2510.24832, reasoning score; checked against analyze_tree.py of the release
    (parent_selection_improvement_topM_sum, M 5): the choice that gains most is made first, nodes below the root and above the parents of leaves
    choose. Deviates: an answer that ends early stands for all its continuations. Right is an accuracy above `threshold`. Reads what strategy
    `reasoning_tree` leaves; every rank keeps what all ranks found. Weight `scheduled` reads it.
    """

    edits: int = 5
    slot: str = ""
    threshold: float = 0.5
    slots: list[str] = field(init=False, default_factory=list, repr=False, compare=False)

    def check(self, run: RunContext) -> None:
        if run.rollout.name != "re_schedule.reasoning_tree" or self.edits < 1:
            raise ConfigError("callbacks: r_score needs strategy: {name: reasoning_tree} and at least 1 edit")

    def setup(self, run: RunContext) -> None:
        self.slots[:] = slots_of(run)

    def __call__(self, run: RunContext, groups: Sequence[Group]) -> dict[str, float]:
        branch, depth = run.rollout.branch, run.rollout.depth  # type: ignore[attr-defined]
        found = []
        for group in groups:
            right = zip(group, accuracies(group, self.slot, self.slots))
            paths = {tuple(rollout.info["path"]): value > self.threshold for rollout, value in right if "path" in rollout.info}
            if paths:
                found.append(r_score(full(paths, branch, depth), depth, self.edits))
                run.history.setdefault(group.row.id, {})[KEY] = found[-1]
        return {"mean": sum(found) / len(found)} if found else {}


def ranks(scores: dict[str, float]) -> dict[str, float]:
    """0 for the highest score to 1 for the lowest, evenly, in two decimals; of equal scores the smaller id is first."""
    ordered = sorted(scores, key=lambda row: (-scores[row], row))
    return {row: round(place / max(len(ordered) - 1, 1), 2) for place, row in enumerate(ordered)}


@register("re_schedule")
@dataclass(frozen=True)
class ReSchedule(TokenWeight):
    """w = low + (high - low) ((1 - a) (1 - rank) + a rank),  a = t (linear) or 1 / (1 + e^(-k (t - 1/2))) (sigmoid), t the share of the phase done.

    rank: 0 for the prompt with the highest r-score, 1 for the lowest, 1/2 for one without.
    Paper: Wang et al. 2025 (Re-Schedule), arXiv:2510.24832: a curriculum from high to low r-scores as weights in the loss. Ranks as in
    add_metrics_to_dataset.py of the release, low 0.5, high 2, k 10 as in its scripts. The formula itself stands in a file that could not be read:
    how a and rank make the weight is ours. Reads what callback `r_score` kept in an earlier phase. Shapes: (B, 1).
    """

    low: float = 0.5
    high: float = 2.0
    mode: Literal["linear", "sigmoid"] = "sigmoid"
    k: float = 10.0
    state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high or self.high == 0:
            raise ConfigError(f"token_weights: scheduled needs 0 <= low <= high and high above 0, got {self.low} and {self.high}")

    def setup(self, run: RunContext) -> None:
        scores = {row: memory[KEY] for row, memory in run.history.items() if KEY in memory}
        self.state.update(run=run, ranks=ranks(scores))
        if not scores:
            run.warn("token_weights: scheduled finds no r-scores, so all prompts count alike; make them with callback r_score in an earlier phase")

    def alpha(self) -> float:
        """How far the schedule has gone, 0 to 1."""
        run = self.state.get("run")
        t = min(run.phase_step / max(run.settings.steps, 1), 1.0) if run is not None else 0.0
        return {"linear": t, "sigmoid": 1 / (1 + math.exp(-self.k * (t - 0.5)))}[self.mode]

    def __call__(self, x: LossInputs) -> Tensor:
        a, known = self.alpha(), self.state.get("ranks", {})
        rank_B = torch.tensor([known.get(rollout.row.id, 0.5) for rollout in x.batch.rollouts], dtype=x.logp_BT.dtype, device=x.logp_BT.device)
        return (self.low + (self.high - self.low) * ((1 - a) * (1 - rank_B) + a * rank_B))[:, None]
