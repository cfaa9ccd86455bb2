"""A tree of rollouts that branches where the likely next tokens differ in meaning.

What each stretch of a rollout in a tree was worth, and less for right answers that take long.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlrl.functional.exact import mean
from vlrl.methods.common.branching import Branching, from_token, joined
from vlrl.methods.core.advantage import check_credit
from vlrl.registry import ConfigError, register
from vlrl.stages import AdvantageEstimator
from vlrl.types import Group, Prompt

if TYPE_CHECKING:
    from vlrl.context import RunContext

CHUNK = 256  # tokens whose alternatives are looked up at once


def semantic_entropy(known: Sequence[dict[int, float]], vectors_VH: Tensor) -> list[float]:
    """SE_t = H_t SD_t, H = -sum_i p_i log p_i, SD = -sum_{i != j} p_i p_j cos(e_i, e_j), over a token's alternatives; 0 where nothing is known."""
    out: list[float] = []
    width = max((len(token) for token in known), default=0)
    for start in range(0, len(known), CHUNK):
        part = [list(token.items()) for token in known[start : start + CHUNK]]
        ids_TK = torch.tensor([[i for i, _ in token] + [0] * (width - len(token)) for token in part], device=vectors_VH.device)
        logp_TK = torch.tensor([[v for _, v in token] + [float("-inf")] * (width - len(token)) for token in part], device=vectors_VH.device)
        p_TK = logp_TK.exp()
        entropy_T = -(p_TK * logp_TK.masked_fill(p_TK == 0, 0.0)).sum(-1)
        unit_TKH = torch.nn.functional.normalize(vectors_VH[ids_TK].float(), dim=-1)
        together_T = (p_TK[..., None] * unit_TKH).sum(1).square().sum(-1) - p_TK.square().sum(-1)
        out += (-together_T * entropy_T).tolist()
    return out


def descend(parents: Sequence[list[int]], parent: int, end: int) -> list[int]:
    """How many first tokens a new node shares with each older one, if it keeps `end` tokens of `parent` (-1: nothing)."""
    if parent < 0:
        return [0] * len(parents)
    row = [min(end, shared) for shared in parents[parent]] + [end]
    return row + [min(end, later[parent]) for later in parents[parent + 1 :]]


@register("rose")
@dataclass(frozen=True)
class Rose(Branching):
    """n rollouts, one after the other: with probability `epsilon` from the start, else from the token of highest semantic entropy among all so far.

    That token itself is drawn anew; SE_t = H_t SD_t with H the entropy of the alternatives (20, as the engine tells them) and
    SD = -sum_{i != j} p_i p_j cos(e_i, e_j) of their input embeddings. All tokens of every rollout are trained on, shared ones as often as they are
    shared. `info["tree"]` is (number, first tokens shared with each earlier rollout), for advantage `rose`.
    Paper: Zhao et al. 2026 (ROSE), arXiv:2601.05053; checked against vllm_rollout_spmd.py of the release (branch_metric cosine-entropy, epsilon 0.5).
    As there one place may be branched at again and again. n rounds of requests per step. Units: nats.
    """

    epsilon: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1 or self.alternatives < 2:
            raise ValueError(f"epsilon={self.epsilon} must be in [0, 1], alternatives={self.alternatives} at least 2")

    def check(self, run: RunContext) -> None:
        if self.epsilon < 1 and run.group_size < 2:
            raise ConfigError(f"strategy rose: group_size {run.group_size} makes no tree; use 2 or more")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = self.roots(prompts, [min(count, 1) for count in counts], run)
        vectors_VH = run.policy.model.get_input_embeddings().weight.detach()
        unsure: dict[int, list[list[float]]] = {id(group): [] for group in groups}
        for round_ in range(max(counts, default=0)):
            requests = []
            for group, count in zip(groups, counts, strict=True):
                if len(group) and round_ < count:
                    rows = unsure[id(group)]
                    rows += [semantic_entropy(self.known(rollout, run), vectors_VH) for rollout in group.rollouts[len(rows) :]]
                    if round_:
                        requests.append(self.branch(group, rows, round_, run))
            for completion in run.engine.generate(requests):
                group, parent, end = completion.request.tag
                source = group.rollouts[max(parent, 0)]
                rollout = joined(run, completion, source, end, trained=True)
                rollout.info["tree"] = (len(group), descend([other.info["tree"][1] for other in group], parent, end))
                group.rollouts.append(rollout)
            if not round_:
                for group in groups:
                    for rollout in group:
                        rollout.info["tree"] = (0, [])
        return self.forget(groups)

    def branch(self, group: Group, rows: Sequence[Sequence[float]], round_: int, run: RunContext) -> Any:
        """The request for the next rollout of a group."""
        seed = self.seeds(run, group.prompt)
        parent, end = -1, 0
        if random.Random(seed).random() >= self.epsilon:
            parent, end = max(((i, t) for i, row in enumerate(rows) for t in range(len(row))), key=lambda at: rows[at[0]][at[1]])
        sampling = self.seen(run.sampling(group.prompt, round_))
        return from_token(group.rollouts[max(parent, 0)], end, sampling, seed, tag=(group, parent, end))


def shared_tokens(group: Group) -> list[list[int]]:
    """[i][j]: how many first tokens rollouts i and j have in common by their places in the tree; with itself: all."""
    places = [rollout.info.get("tree", (i, [0] * i)) for i, rollout in enumerate(group)]
    return [
        [len(group.rollouts[i]) if i == j else (a[1][b[0]] if a[0] > b[0] else b[1][a[0]]) for j, b in enumerate(places)]
        for i, a in enumerate(places)
    ]


@register("rose.segment_values")
@dataclass(frozen=True)
class RoseSegmentValues(AdvantageEstimator):
    """A_t = V(b_k) - V(b_{k-1}) for tokens between branching points b_{k-1} and b_k; V(b) = the mean reward of all that share the first b tokens.

    V at the start is the group's mean, at the end the rollout's own reward. With `alpha` > 0, for a right rollout (reward above `threshold`) longer
    than the shortest right one, whose ways part after k tokens: A_t <- A_t - |A_t| (1 - ((L_short - k) / (L - k))^alpha) for t >= k.
    Paper: Zhao et al. 2026 (ROSE), arXiv:2601.05053, with Dr.GRPO's loss; checked against core_algos.py of the release, whose exponent stands inside
    (the printed formula has it around the difference; its alpha is one of 0.5, 1, 2, 3, the released script's 0).
    Deviates: the release takes all rollouts that branch after b tokens for one node, wherever they branch; here a node is a prefix. For strategy
    `rose` with credit `per_token`. Edge: a rollout without siblings in the tree has one stretch, reward less group mean.
    """

    writes_tokens = True
    alpha: float = 1.0
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise ValueError(f"alpha={self.alpha} must not be negative; 0 leaves long answers alone")

    def check(self, run: RunContext) -> None:
        if run.rollout.name != "rose":
            raise ConfigError(f"advantage rose reads a tree that strategy {run.rollout.name!r} does not grow; use strategy: {{name: rose}}")
        check_credit(run, "rose")

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        out = []
        for group in groups:
            shared = shared_tokens(group)
            rows = [self.segments(group, row, i) for i, row in enumerate(shared)]
            self.shorten(group, shared, rows)
            for rollout, row in zip(group, rows, strict=True):
                rollout.info["token_advantages"] = row
            out.append([mean(row) for row in rows])
        return out

    def segments(self, group: Group, shared: Sequence[int], i: int) -> list[float]:
        """The advantages of rollout i, by token."""
        length, rewards = len(group.rollouts[i]), group.rewards
        ends = sorted({0, length, *(s for s in shared if s < length)})
        values = [rewards[i] if end == length else mean([r for r, s in zip(rewards, shared, strict=True) if s >= end]) for end in ends]
        return [after - before for a, b, before, after in zip(ends, ends[1:], values, values[1:]) for _ in range(b - a)]

    def shorten(self, group: Group, shared: Sequence[Sequence[int]], rows: Sequence[list[float]]) -> None:
        """Take from the advantages of right rollouts that are longer than need be, in place."""
        right = [i for i, reward in enumerate(group.rewards) if reward > self.threshold]
        if not self.alpha or len(right) < 2:
            return
        short = min(right, key=lambda i: (len(rows[i]), i))
        for i in right:
            k = shared[i][short]
            if i != short and len(rows[i]) > len(rows[short]):
                less = 1 - ((len(rows[short]) - k) / (len(rows[i]) - k)) ** self.alpha
                rows[i][k:] = [a - abs(a) * less for a in rows[i][k:]]
