"""ROSE: rollouts as a tree that branches where the likely next tokens differ in meaning, with credit by
segment and less for long correct rollouts.

    rose                  rollout strategy: semantic-entropy branching
    rose.segment_values   advantage: segment-level advantages from the values of the branching points, with a
    length penalty

Paper: Zhao et al. 2026 (ROSE), arXiv:2601.05053, with Dr.GRPO's loss; checked against vllm_rollout_spmd.py
and core_algos.py of the release.

Shapes: T tokens, K alternatives per token, V vocabulary, H embedding size.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.functional.exact import mean
from vlrl.methods.common.branching import Branching, branch_request, branch_rollout
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import PhaseContext, SamplingContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, AdvantageEstimator
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, Prompt, Request

CHUNK = 256  # tokens whose embeddings are compared at once

SHARED_PREFIXES: Annotation[tuple[int, list[int]]] = Annotation(
    "rose.shared_prefixes",
    (tuple, list),
    hint="rollout: {name: rose}",
    doc="(number of the rollout in its tree, first tokens that it shares with each earlier rollout)",
)


@register("rose")
@dataclass(frozen=True)
class Rose(Branching):
    """ROSE's rollouts: n one after the other, each from the start with probability `epsilon`, else branching
    at the highest semantic entropy so far.

        SE_t = H_t SD_t,   SD = -sum_{i != j} p_i p_j cos(e_i, e_j)

    H is the entropy (nats) of the alternatives (20, as the engine reports them), e their input embeddings.
    The token of highest SE among all rollouts of the group is itself sampled anew. All tokens of every
    rollout are trained on, shared ones as often as they are shared. SHARED_PREFIXES is the rollout's place in
    the tree, for advantage `rose.segment_values`. Paper: Zhao et al. 2026 (ROSE), arXiv:2601.05053; checked
    against vllm_rollout_spmd.py of the release (branch_metric cosine-entropy, epsilon 0.5). As there, the
    same token may be branched at repeatedly. n rounds of requests per step.
    """

    epsilon: float = 0.5
    provides = (SHARED_PREFIXES,)

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1 or self.alternatives < 2:
            raise ValueError(
                f"epsilon={self.epsilon} must be in [0, 1], alternatives={self.alternatives} at least 2"
            )

    def check(self, phase: PhaseContext) -> None:
        if self.epsilon < 1 and phase.group_size < 2:
            raise ConfigError(
                f"rollout: 'rose' makes no tree with group_size {phase.group_size}; use 2 or more"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = self.sample_roots(prompts, [min(count, 1) for count in counts], run)
        for group in groups:
            for rollout in group:
                SHARED_PREFIXES.set(rollout, (0, []))
        embedding: Any = run.policy.model.get_input_embeddings()
        vectors_VH = embedding.weight.detach()
        entropies: dict[int, list[list[float]]] = {id(group): [] for group in groups}
        for attempt in range(1, max(counts, default=0)):
            requests = []
            for group, count in zip(groups, counts, strict=True):
                if len(group) and attempt < count:
                    rows = entropies[id(group)]
                    rows += [
                        semantic_entropy(self.alternatives_of(rollout, run), vectors_VH)
                        for rollout in group.rollouts[len(rows) :]
                    ]
                    requests.append(self.branch(group, rows, attempt, run))
            for completion in run.engine.generate(requests):
                group, parent, end = completion.request.tag
                source = group.rollouts[max(parent, 0)]
                rollout = branch_rollout(run, completion, source, end, trained=True)
                SHARED_PREFIXES.set(
                    rollout,
                    (
                        len(group),
                        shared_prefixes([SHARED_PREFIXES[other][1] for other in group], parent, end),
                    ),
                )
                group.rollouts.append(rollout)
        return self.drop_alternatives(groups)

    def branch(
        self, group: Group, rows: Sequence[Sequence[float]], attempt: int, run: SamplingContext
    ) -> Request:
        """The request for the next rollout of a group; `rows` are the semantic entropies of its rollouts."""
        seed = self.seeds(run, group.prompt)
        parent, end = -1, 0
        if random.Random(seed).random() >= self.epsilon:
            parent, end = max(
                ((i, t) for i, row in enumerate(rows) for t in range(len(row))),
                key=lambda at: rows[at[0]][at[1]],
            )
        sampling = self.with_alternatives(run.sampling(group.prompt, attempt))
        return branch_request(group.rollouts[max(parent, 0)], end, sampling, seed, tag=(group, parent, end))


def semantic_entropy(known: Sequence[dict[int, float]], vectors_VH: Tensor) -> list[float]:
    """SE_t = H_t SD_t, H = -sum_i p_i log p_i, SD = -sum_{i != j} p_i p_j cos(e_i, e_j), over a token's
    alternatives; 0 for a token without any."""
    out: list[float] = []
    width = max((len(token) for token in known), default=0)
    for start in range(0, len(known), CHUNK):
        part = [list(token.items()) for token in known[start : start + CHUNK]]
        ids_TK = torch.tensor(
            [[i for i, _ in token] + [0] * (width - len(token)) for token in part], device=vectors_VH.device
        )
        logp_TK = torch.tensor(
            [[v for _, v in token] + [float("-inf")] * (width - len(token)) for token in part],
            device=vectors_VH.device,
        )
        p_TK = logp_TK.exp()
        entropy_T = -(p_TK * logp_TK.masked_fill(p_TK == 0, 0.0)).sum(-1)
        unit_TKH = torch.nn.functional.normalize(vectors_VH[ids_TK].float(), dim=-1)
        similarity_T = (p_TK[..., None] * unit_TKH).sum(1).square().sum(-1) - p_TK.square().sum(-1)
        out += (-similarity_T * entropy_T).tolist()
    return out


def shared_prefixes(parents: Sequence[list[int]], parent: int, end: int) -> list[int]:
    """First tokens that a new rollout shares with each older one, if it keeps `end` tokens of rollout
    `parent` (-1: it begins at the prompt)."""
    if parent < 0:
        return [0] * len(parents)
    row = [min(end, shared) for shared in parents[parent]] + [end]
    return row + [min(end, later[parent]) for later in parents[parent + 1 :]]


@register("rose.segment_values")
@dataclass(frozen=True)
class RoseSegmentValues(AdvantageEstimator):
    """ROSE's segment advantage: A_t = V(b_k) - V(b_{k-1}) for tokens between branching points b_{k-1} and
    b_k.

        V(b) = the mean reward of all rollouts that share the first b tokens
        length penalty: A_t <- A_t - |A_t| (1 - ((L_short - k) / (L - k))^alpha) for t >= k

    V at the start is the group's mean, at the end the rollout's own reward. The penalty (with `alpha` > 0)
    applies to a correct rollout of L tokens longer than the shortest correct one (L_short), from which it
    branches after k tokens. Paper: Zhao et al. 2026 (ROSE), arXiv:2601.05053, with Dr.GRPO's loss; checked
    against core_algos.py of the release, whose exponent stands inside (the printed formula: around the
    difference) and whose script has alpha 0. Deviates: the release treats all rollouts that branch after b
    tokens as one node; here a node is a prefix. With token credit `per_token`.
    """

    alpha: float = 1.0
    provides = (TOKEN_ADVANTAGES,)
    requires = (SHARED_PREFIXES,)

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise ValueError(f"alpha={self.alpha} must not be negative; 0 switches the length penalty off")

    def check(self, phase: PhaseContext) -> None:
        check_token_credit(phase, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        out = []
        for group in groups:
            shared = shared_tokens(group)
            rows = [self.segments(group, row, i) for i, row in enumerate(shared)]
            self.penalise_length(group, shared, rows)
            for rollout, row in zip(group, rows, strict=True):
                TOKEN_ADVANTAGES.set(rollout, row)
            out.append([mean(row) for row in rows])
        return out

    def segments(self, group: Group, shared: Sequence[int], i: int) -> list[float]:
        """The advantages of rollout i, by token."""
        length, rewards = len(group.rollouts[i]), group.rewards
        ends = sorted({0, length, *(s for s in shared if s < length)})
        values = [
            rewards[i]
            if end == length
            else mean([r for r, s in zip(rewards, shared, strict=True) if s >= end])
            for end in ends
        ]
        return [
            after - before
            for a, b, before, after in zip(ends, ends[1:], values, values[1:])
            for _ in range(b - a)
        ]

    def penalise_length(
        self, group: Group, shared: Sequence[Sequence[int]], rows: Sequence[list[float]]
    ) -> None:
        """Apply the length penalty to the advantages `rows`, in place."""
        correct = [i for i, rollout in enumerate(group) if rollout.correct]
        if not self.alpha or len(correct) < 2:
            return
        short = min(correct, key=lambda i: (len(rows[i]), i))
        for i in correct:
            k = shared[i][short]
            if i != short and len(rows[i]) > len(rows[short]):
                penalty = 1 - ((len(rows[short]) - k) / (len(rows[i]) - k)) ** self.alpha
                rows[i][k:] = [a - abs(a) * penalty for a in rows[i][k:]]


def shared_tokens(group: Group) -> list[list[int]]:
    """[i][j]: the number of first tokens that rollouts i and j share by their places in the tree; for i = j
    all tokens."""
    places = [SHARED_PREFIXES.get(rollout, (i, [0] * i)) for i, rollout in enumerate(group)]
    return [
        [
            len(group.rollouts[i]) if i == j else (a[1][b[0]] if a[0] > b[0] else b[1][a[0]])
            for j, b in enumerate(places)
        ]
        for i, a in enumerate(places)
    ]
