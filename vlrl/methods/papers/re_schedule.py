"""Re-Schedule: a curriculum over prompts, ordered by how much their accuracy can gain from a few choices in a
tree of reasoning.

    re_schedule.reasoning_tree   rollout strategy of the measuring phase: the leaves of a tree of answers
    re_schedule.r_score          callback of the measuring phase: the reasoning score of each prompt goes into
    the run's history re_schedule                  token weight of the training phase: high r-scores first,
    low r-scores at the end

Paper: Wang et al. 2025 (Re-Schedule), arXiv:2510.24832, with released code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from vlrl.methods.common.branching import branch_request, branch_rollout
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import CallbackContext, PhaseContext, SamplingContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Callback, State, TokenWeight, transient
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, LossInputs, Prompt, Request, Rollout

KEY = "r_score"  # of a row's memory in the run's history
Path = tuple[int, ...]
Leaves = Mapping[Path, bool]  # path of each leaf -> whether it is correct

PATH: Annotation[list] = Annotation(
    "re_schedule.path",
    list,
    hint="rollout: {name: re_schedule.reasoning_tree}",
    doc="the branches, by number, that lead from the root of the tree to this leaf",
)


@register("re_schedule.reasoning_tree")
@dataclass(frozen=True)
class ReScheduleReasoningTree(Independent):
    """Re-Schedule's reasoning tree: `branch` answers of `interval` tokens, each continued `branch` times, and
    so on, `depth` levels deep.

    The last level is sampled to its end. The rollouts of a group are the leaves, at most branch^depth; PATH
    says by which branches one was reached. An answer that ends early is a leaf. Paper: Wang et al. 2025
    (Re-Schedule), arXiv:2510.24832; k = d = 4 and 100 tokens in the release (run_batch_vllm.sh). All tokens
    of a leaf are trained on, so a shared beginning counts once per leaf: made for phases that only measure
    (lr 0). Edge: a prompt with count 0 gives an empty group; other counts do not matter, and must be
    branch^depth. One engine call per level.
    """

    branch: int = 4
    depth: int = 4
    interval: int = 100
    provides = (PATH,)

    def __post_init__(self) -> None:
        if self.branch < 2 or self.depth < 2 or self.interval < 1:
            raise ConfigError(
                f"rollout: branch={self.branch} and depth={self.depth} must be at least 2, "
                f"interval={self.interval} at least 1"
            )

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if phase.group_size != self.branch**self.depth:
            raise ConfigError(
                f"rollout: 're_schedule.reasoning_tree' makes {self.branch}^{self.depth} rollouts, and "
                f"group_size is {phase.group_size}; "
                f"set group_size: {self.branch**self.depth}"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = [Group(prompt, []) for prompt in prompts]
        nodes: list[tuple[int, Path, Rollout]] = [
            (place, (), Rollout(prompt, []))
            for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
            if count
        ]
        for level in range(1, self.depth + 1):
            requests = [self.request(run, place, path, node, level) for place, path, node in nodes]
            children = []
            for completion in run.engine.generate(requests):
                place, path, parent = completion.request.tag
                child = branch_rollout(run, completion, parent, len(parent), trained=True)
                children.append(
                    (place, (*path, completion.index), child, completion.request.sampling.max_tokens)
                )
            nodes = []
            for place, path, child, limit in sorted(children, key=lambda node: node[:2]):
                max_tokens = run.sampling(child.prompt, 0).max_tokens
                if child.finish == "length" and limit < max_tokens:
                    nodes.append((place, path, child))
                else:
                    PATH.set(child, list(path))
                    groups[place].rollouts.append(child)
        for group in groups:
            group.rollouts.sort(key=PATH.__getitem__)
        return groups

    def request(self, run: SamplingContext, place: int, path: Path, node: Rollout, level: int) -> Request:
        """For the continuations of a node: up to the next branching, or to the end from the last level on."""
        sampling = run.sampling(node.prompt, 0)
        if level < self.depth:
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, len(node) + self.interval))
        return branch_request(
            node, len(node), sampling, self.seeds(run, node.prompt), self.branch, tag=(place, path, node)
        )


def accuracy(leaves: Leaves) -> float:
    """The share of correct leaves."""
    return sum(leaves.values()) / len(leaves)


def best_choice(leaves: Leaves, depth: int) -> dict[Path, bool]:
    """The leaves that remain when one inner node keeps only its best child, where that helps most; all of
    them where it helps nowhere.

    Inner nodes lie below the root and above the parents of leaves; of equal children the first is the best.
    """
    best, remaining = accuracy(leaves), dict(leaves)
    for level in range(1, depth - 1):
        for node in sorted({path[:level] for path in leaves}):
            below = {path: correct for path, correct in leaves.items() if path[:level] == node}
            children = sorted({path[: level + 1] for path in below})
            child = max(
                children,
                key=lambda child: accuracy(
                    {path: correct for path, correct in below.items() if path[: level + 1] == child}
                ),
            )
            left = {
                path: correct
                for path, correct in leaves.items()
                if path not in below or path[: level + 1] == child
            }
            if len(children) > 1 and accuracy(left) > best:
                best, remaining = accuracy(left), left
    return remaining


def r_score(leaves: Leaves, depth: int, edits: int) -> float:
    """The sum of the gains in accuracy of `edits` best choices, one after the other."""
    edited = dict(leaves)
    for _ in range(edits):
        edited = best_choice(edited, depth)
    return accuracy(edited) - accuracy(leaves)


def full(leaves: Leaves, branch: int, depth: int) -> dict[Path, bool]:
    """Leaves at full depth: an answer that ended early is repeated for all its possible continuations."""
    return {
        (*path, *rest): correct
        for path, correct in leaves.items()
        for rest in product(range(branch), repeat=depth - len(path))
    }


@register("re_schedule.r_score")
@dataclass(frozen=True)
class ReScheduleRScore(Callback):
    """Reasoning score: the accuracy that `edits` choices of a best child add to a prompt's tree, made one by
    one.

    It goes into the prompt's memory in the run's history, where token weight `re_schedule` reads it. Logs the
    mean of the step. Paper: Wang et al. 2025 (Re-Schedule), arXiv:2510.24832, reasoning score; checked
    against analyze_tree.py of the release (parent_selection_improvement_topM_sum, M 10): the choice that
    gains most is made first, nodes below the root and above the parents of leaves choose. Deviates: an answer
    that ends early stands for all its continuations. Every rank keeps what all ranks found.
    """

    edits: int = 10
    requires = (PATH,)

    def __post_init__(self) -> None:
        if self.edits < 1:
            raise ConfigError(
                f"callbacks: 're_schedule.r_score' has edits={self.edits}; at least 1 is needed"
            )

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        tree: Any = run.rollout  # whose fields `check` has looked for
        branch, depth = tree.branch, tree.depth
        scores = []
        for group in groups:
            leaves = {tuple(PATH[rollout]): rollout.correct for rollout in group if PATH.on(rollout)}
            if leaves:
                scores.append(r_score(full(leaves, branch, depth), depth, self.edits))
                run.history.setdefault(group.row.id, {})[KEY] = scores[-1]
        return {"mean": sum(scores) / len(scores)} if scores else {}


def ranks(scores: Mapping[str, float]) -> dict[str, float]:
    """0 for the highest score to 1 for the lowest, evenly, in two decimals; of equal scores the smaller id is
    first."""
    ordered = sorted(scores, key=lambda row: (-scores[row], row))
    return {row: round(place / max(len(ordered) - 1, 1), 2) for place, row in enumerate(ordered)}


@dataclass
class ReScheduleState(State):
    """Ranks of the rows by r-score, computed from the run's history when the phase begins."""

    ranks: dict[str, float] = transient(factory=dict)


@register("re_schedule")
@dataclass(frozen=True)
class ReSchedule(TokenWeight):
    """Re-Schedule's curriculum weights: w = low + (high - low) ((1 - a) (1 - rank) + a rank).

        a = t (`mode` linear) or 1 / (1 + e^(-k (t - 1/2))) (sigmoid),  t the share of the phase that is done

    rank: 0 for the prompt with the highest r-score, 1 for the lowest, 1/2 for one without an r-score.
    Paper: Wang et al. 2025 (Re-Schedule), arXiv:2510.24832: a curriculum from high to low r-scores as weights
    in the loss. Ranks as in add_metrics_to_dataset.py of the release, low 0.5, high 2, k 10 as in its
    scripts. The formula itself stands in a file that could not be read: how a and rank make the weight is
    ours. Reads what callback `re_schedule.r_score` kept in an earlier phase. Edge: before the plug-in is set
    up t is 0. Shapes: (B, 1).
    """

    state_class = ReScheduleState
    low: float = 0.5
    high: float = 2.0
    mode: Literal["linear", "sigmoid"] = "sigmoid"
    k: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high or self.high == 0:
            raise ConfigError(
                f"token_weights: 're_schedule' needs 0 <= low <= high and high above 0, got {self.low} and "
                f"{self.high}"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        scores = {row: memory[KEY] for row, memory in run.history.items() if KEY in memory}
        self.state.ranks = ranks(scores)
        if not scores:
            run.warn(
                "token_weights: 're_schedule' found no r-scores, so all prompts have the same weight; "
                "add callbacks: {r_score: {name: re_schedule.r_score}} to an earlier phase"
            )

    def alpha(self) -> float:
        """Progress of the schedule, 0 to 1."""
        t = min(self.run.phase_step / max(self.run.settings.steps, 1), 1.0) if self.is_set_up else 0.0
        return {"linear": t, "sigmoid": 1 / (1 + math.exp(-self.k * (t - 0.5)))}[self.mode]

    def __call__(self, x: LossInputs) -> Tensor:
        a, known = self.alpha(), self.state.ranks
        rank_B = torch.tensor(
            [known.get(rollout.row.id, 0.5) for rollout in x.batch.rollouts],
            dtype=x.logp_BT.dtype,
            device=x.logp_BT.device,
        )
        return (self.low + (self.high - self.low) * ((1 - a) * (1 - rank_B) + a * rank_B))[:, None]
