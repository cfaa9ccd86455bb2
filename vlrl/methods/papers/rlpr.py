"""RLPR: the policy's own probability of the reference answer as reward, without a verifier; also VeriFree's
and DRO's forms of that reward.

    rlpr              reward shaping: replaces the total reward by the probability of the reference answer
    after the rollout's reasoning rlpr.std_filter   group filter: drops groups whose rewards differ little, by
    a moving average

Papers: RLPR, arXiv:2506.18254; Zhou et al. 2025 (VeriFree), arXiv:2505.21493, with released code; DRO,
arXiv:2506.13351.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from vlrl.functional.exact import mean, std
from vlrl.plugins.capabilities import Annotation, Capability
from vlrl.plugins.registry import register
from vlrl.plugins.stages import GroupFilter, RewardShaping, State
from vlrl.plugins.views import PolicyView
from vlrl.types import FilterDecision, Group, Rollout

SPLICED_REFERENCE: Annotation[tuple[int, int]] = Annotation(
    "rlpr.spliced_reference",
    (tuple, list),
    hint="reward_shaping: {reference: {name: rlpr, splice: true}}",
    doc="(start, end) of the tokens of the reference answer that replaced the rollout's own one",
)


@register("rlpr")
@dataclass(frozen=True)
class Rlpr(RewardShaping):
    """Reference-probability reward: total = f(p_1 .. p_m), p_j = pi(y*_j | x, z, y*_<j) for the reference
    answer y* after a rollout's reasoning z.

        mean: the mean of p_j;   product: their product
        reflection: sum_j w_j (log p_j - log p0_j) - verbosity ||y*| - |y|| / |y*|,  w_j ~ std of log p_j over
        the group, y the rollout's own answer, p0 = p without reasoning

    The verifiers' rewards stay in the log. Paper: RLPR, arXiv:2506.18254, eq. 2 and 4 (mean, debias);
    VeriFree, arXiv:2505.21493 (product, splice; released code scores `closing` too); DRO, arXiv:2506.13351,
    sec. 4.1.3 (reflection). Deviates: DRO leaves w open: shares of the summed stds are ours, and its masked
    reasoning is no reasoning at all here. Edge: no `opening`: 0, or the group's smallest value if that is
    negative; several references: the first. Probabilities at temperature 1.

    Attributes:
        form: f: "mean", "product" or "reflection".
        debias: Subtracts f(p0) and clips to [0, 1].
        opening: z ends with its last occurrence; what follows is the answer.
        first: z ends with the first occurrence of `opening` (VeriFree's release).
        finished: A rollout cut at the limit of tokens earns 0 (VeriFree's release).
        splice: Replaces the rollout's own answer by y* and `closing`, so that token credit `verifree` trains
            on them.
    """

    form: Literal["mean", "product", "reflection"] = "mean"
    debias: bool = False
    splice: bool = False
    verbosity: float = 0.0
    opening: str = "<answer>"
    closing: str = "</answer>"
    first: bool = False
    finished: bool = False

    def __post_init__(self) -> None:
        if not self.opening:
            raise ValueError(
                "opening must not be empty: it is the text that the answer begins with, for instance <answer>"
            )

    @property
    def provides(self) -> tuple[Capability, ...]:
        return (SPLICED_REFERENCE,) if self.splice else ()

    def __call__(self, group: Group) -> list[float]:
        policy = self.run.policy
        gold = self.reference(group)
        reasonings = [reasoning(rollout.ids, policy, self.opening, self.first) for rollout in group]
        answered = [(rollout, start) for rollout, start in zip(group, reasonings) if start is not None]
        if not answered:
            return [0.0] * len(group)
        bare = policy.encode_text(self.opening)
        pairs = [
            (group.prompt, [*bare, *gold]),
            *((rollout.prompt, [*start, *gold]) for rollout, start in answered),
        ]
        base, *logps = (values[-len(gold) :] for values in self.run.engine.score_all(pairs))
        scores = iter(
            self.scores(base, logps, [self.answer_length(rollout) for rollout, _ in answered], len(gold))
        )
        values = [None if start is None else next(scores) for start in reasonings]
        if self.finished:
            values = [
                0.0 if rollout.truncated else value for rollout, value in zip(group, values, strict=True)
            ]
        lowest = min(0.0, *(value for value in values if value is not None), 0.0)
        for rollout, start in answered if self.splice else ():
            splice_reference(rollout, start, gold)
        return [lowest if value is None else value for value in values]

    def reference(self, group: Group) -> list[int]:
        """The tokens of y*, with `closing` where they are trained on. Raises ValueError for a row without an
        answer."""
        gold = (
            group.row.answer[0]
            if isinstance(group.row.answer, (list, tuple)) and group.row.answer
            else group.row.answer
        )
        text = "" if gold is None else str(gold)
        if not text:
            raise ValueError(
                f"row {group.row.id!r} has no reference answer, whose probability 'rlpr' needs; give the "
                "row an `answer`"
            )
        return self.run.policy.encode_text(text + self.closing * self.splice)

    def scores(
        self, base: Sequence[float], logps: Sequence[Sequence[float]], lengths: Sequence[int], m: int
    ) -> list[float]:
        """f of every rollout that has an answer: `base` is log p0, `logps` log p per rollout, `lengths` |y|
        in tokens, `m` |y*|."""
        if self.form == "reflection":
            return [
                value - self.verbosity * abs(m - n) / m
                for value, n in zip(reflection(logps, base), lengths, strict=True)
            ]
        f = (
            (lambda row: math.exp(math.fsum(row)))
            if self.form == "product"
            else (lambda row: math.fsum(map(math.exp, row)) / len(row))
        )
        return [min(1.0, max(0.0, f(row) - f(base))) if self.debias else f(row) for row in logps]

    def answer_length(self, rollout: Rollout) -> int:
        """Tokens of the rollout's own answer; 0 where `verbosity` does not need it."""
        if not self.verbosity:
            return 0
        policy = self.run.policy
        text = "".join(policy.tokenizer.decode([token]) for token in rollout.ids).rpartition(self.opening)[2]
        return len(policy.encode_text(text.partition(self.closing)[0]))


def reasoning(ids: Sequence[int], policy: PolicyView, opening: str, first: bool = False) -> list[int] | None:
    """The tokens up to and with the last (or `first`) `opening`; None if there is none. A token that reaches
    beyond it is encoded anew."""
    text, ends, end = "", [], None
    for token in ids:
        before, text = text, text + policy.tokenizer.decode([token])
        ends.append(len(text))
        if text.count(opening, max(0, len(before) - len(opening) + 1)) > 0:
            end = (text.find(opening) if first else text.rfind(opening)) + len(opening)
    if end is None:
        return None
    whole = sum(token_end <= end for token_end in ends)
    at = ends[whole - 1] if whole else 0
    rest = policy.encode_text(text[at:end]) if at < end else []
    return [*ids[:whole], *rest]


def reflection(logps: Sequence[Sequence[float]], base: Sequence[float]) -> list[float]:
    """sum_j w_j (log p_ij - log p0_j) for every rollout i, w_j the std of log p_j over rollouts divided by
    the sum of all tokens' stds."""
    logps_GM = np.asarray(logps)
    std_M = logps_GM.std(axis=0)
    return [float(value) for value in (logps_GM - np.asarray(base)) @ std_M / (std_M.sum() or 1.0)]


def splice_reference(rollout: Rollout, start: list[int], gold: list[int]) -> None:
    """Make the rollout its own reasoning, then the reference. The sampler's log-probs no longer apply and are
    dropped."""
    SPLICED_REFERENCE.set(rollout, (len(start), len(start) + len(gold)))
    rollout.ids, rollout.logp, rollout.finish = [*start, *gold], [], "stop"
    rollout.loss_mask = rollout.sampled_mask = None
    rollout.signals.clear()


@dataclass
class RlprStdFilterState(State):
    """`mean` is the moving average m (None before the second step), `stds` are those of the groups seen in
    step `step`."""

    mean: float | None = None
    step: int = -1
    stds: list[float] = field(default_factory=list)


@register("rlpr.std_filter")
@dataclass(frozen=True)
class RlprStdFilter(GroupFilter):
    """RLPR's std filtering: keeps a group with std r >= scale m, m <- decay m + (1 - decay) (mean std r of a
    step's groups).

    m is its value before the step. Paper: RLPR, arXiv:2506.18254, sec. 2.4 (threshold from the moving average
    of the steps' mean std), sec. 3.1: scale 0.5. Deviates: decay is ours; each rank uses its own groups.
    Edge: in the first step all are kept, also groups of equal rewards.
    """

    state_class = RlprStdFilterState
    scale: float = 0.5
    decay: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1 or self.scale < 0:
            raise ValueError(f"decay={self.decay} must be in [0, 1) and scale={self.scale} at least 0")

    @property
    def min_std(self) -> float:
        """The smallest std that is kept now."""
        return self.scale * (self.state.mean or 0.0)

    def __call__(self, group: Group) -> FilterDecision:
        if self.run.step != self.state.step:
            self.update_mean(self.run.step)
        group_std = std(group.rewards)
        self.state.stds.append(group_std)
        return (
            FilterDecision(True) if group_std >= self.min_std else FilterDecision(False, "rewards too alike")
        )

    def update_mean(self, step: int) -> None:
        """Add the last step's mean std to the moving average, and begin `step`."""
        state = self.state
        if state.stds:
            last = mean(state.stds)
            state.mean = last if state.mean is None else self.decay * state.mean + (1 - self.decay) * last
        state.step, state.stds = step, []

    def metrics(self) -> dict[str, float]:
        return {"rlpr/min_std": self.min_std}
