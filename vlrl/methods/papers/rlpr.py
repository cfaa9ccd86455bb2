"""A reward without a verifier: how likely the policy finds the reference answer after its own reasoning.

Prompts whose rewards differ enough, by the standard of the last steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vlrl.functional.exact import mean, std
from vlrl.registry import register
from vlrl.stages import GroupFilter, RewardShaping
from vlrl.types import FilterDecision, Group, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


def reasoning(ids: Sequence[int], tokenizer: Any, opening: str) -> list[int] | None:
    """The tokens up to and with the last `opening`; None if there is none. A token that reaches beyond it is written anew."""
    text, ends, found = "", [], None
    for token in ids:
        before, text = text, text + tokenizer.decode([token])
        ends.append(len(text))
        if text.count(opening, max(0, len(before) - len(opening) + 1)) > 0:
            found = text.rfind(opening) + len(opening)
    if found is None:
        return None
    whole = sum(end <= found for end in ends)
    at = ends[whole - 1] if whole else 0
    rest = tokenizer.encode(text[at:found], add_special_tokens=False) if at < found else []
    return [*ids[:whole], *rest]


def reflection(logps: Sequence[Sequence[float]], base: Sequence[float]) -> list[float]:
    """sum_j w_j (log p_ij - log p0_j) for every rollout i, w_j the spread of log p_j over rollouts divided by the sum of all tokens' spreads."""
    logps_GM = np.asarray(logps)
    spread_M = logps_GM.std(axis=0)
    return [float(value) for value in (logps_GM - np.asarray(base)) @ spread_M / (spread_M.sum() or 1.0)]


@register("rlpr")
@dataclass(frozen=True)
class Rlpr(RewardShaping):
    """total = f(p_1 .. p_m), p_j = pi(y*_j | x, z, y*_<j): the policy's probabilities of the reference answer y* after a rollout's reasoning z.

    form "mean": the mean of p_j;  "product": their product;  "reflection": sum_j w_j (log p_j - log p0_j), w_j ~ std of log p_j over the group,
    less `verbosity` ||y*| - |y|| / |y*| for the rollout's own answer y. p0 is p without reasoning; `debias` subtracts f(p0) and cuts to [0, 1].
    z ends with the last `opening`; what follows is the answer. `splice` puts y* and `closing` in the place of the rollout's own answer, so that
    credit `verifree` trains on them. The verifiers' rewards stay in the log.
    Paper: RLPR, arXiv:2506.18254, eq. 2 and 4 (mean, debias); VeriFree, arXiv:2505.21493 (product, splice; released code scores `closing` too);
    DRO, arXiv:2506.13351, sec. 4.1.3 (reflection). Deviates: DRO leaves w open: shares of the summed spreads are ours, and its masked reasoning is
    none at all here. Edge: no `opening`: 0, or the group's least if that is below; several references: the first. Probabilities at temperature 1.
    """

    form: Literal["mean", "product", "reflection"] = "mean"
    debias: bool = False
    splice: bool = False
    verbosity: float = 0.0
    opening: str = "<answer>"
    closing: str = "</answer>"
    held: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.opening:
            raise ValueError("opening: what the answer begins with, for instance <answer>")

    def setup(self, run: RunContext) -> None:
        self.held["run"] = run

    def __call__(self, group: Group) -> list[float]:
        run = self.held["run"]
        tokenizer = run.policy.tokenizer
        gold = self.reference(group, tokenizer)
        starts = [reasoning(rollout.ids, tokenizer, self.opening) for rollout in group]
        thoughts = [(rollout, start) for rollout, start in zip(group, starts) if start is not None]
        if not thoughts:
            return [0.0] * len(group)
        bare = tokenizer.encode(self.opening, add_special_tokens=False)
        pairs = [(group.prompt, [*bare, *gold]), *((rollout.prompt, [*start, *gold]) for rollout, start in thoughts)]
        base, *logps = (values[-len(gold) :] for values in run.engine.score_all(pairs))
        scores = iter(self.scores(base, logps, [self.own_length(r, s, tokenizer) for r, s in thoughts], len(gold)))
        found = [None if start is None else next(scores) for start in starts]
        least = min(0.0, *(value for value in found if value is not None), 0.0)
        for rollout, start in thoughts if self.splice else ():
            self.put_in(rollout, start, gold, tokenizer)
        return [least if value is None else value for value in found]

    def reference(self, group: Group, tokenizer: Any) -> list[int]:
        """The tokens of y*, with `closing` where they are trained on. Raises ValueError for a row without an answer."""
        gold = group.row.answer[0] if isinstance(group.row.answer, (list, tuple)) and group.row.answer else group.row.answer
        text = "" if gold is None else str(gold)
        if not text:
            raise ValueError(f"row {group.row.id!r}: no reference answer whose probability could be the reward")
        return tokenizer.encode(text + self.closing * self.splice, add_special_tokens=False)

    def scores(self, base: Sequence[float], logps: Sequence[Sequence[float]], lengths: Sequence[int], m: int) -> list[float]:
        """f of every rollout that has an answer."""
        if self.form == "reflection":
            return [value - self.verbosity * abs(m - n) / m for value, n in zip(reflection(logps, base), lengths, strict=True)]
        f = (lambda row: math.exp(math.fsum(row))) if self.form == "product" else (lambda row: math.fsum(map(math.exp, row)) / len(row))
        return [min(1.0, max(0.0, f(row) - f(base))) if self.debias else f(row) for row in logps]

    def own_length(self, rollout: Rollout, start: Sequence[int], tokenizer: Any) -> int:
        """Tokens of the rollout's own answer."""
        if not self.verbosity:
            return 0
        text = "".join(tokenizer.decode([token]) for token in rollout.ids).rpartition(self.opening)[2]
        return len(tokenizer.encode(text.partition(self.closing)[0], add_special_tokens=False))

    def put_in(self, rollout: Rollout, start: list[int], gold: list[int], tokenizer: Any) -> None:
        """The rollout that is trained on: its own reasoning, then the reference. It has no sampler's log-probs any more."""
        rollout.info["reference_at"] = (len(start), len(start) + len(gold))
        rollout.ids, rollout.logp, rollout.loss_mask, rollout.finish = [*start, *gold], [], None, "stop"
        rollout.signals.clear()


@register("rlpr.std_filter")
@dataclass(frozen=True)
class RlprStdFilter(GroupFilter):
    """Keeps a group with std r >= scale * m, m <- decay m + (1 - decay) (mean std r of a step's groups), as it stood before the step.

    Paper: RLPR, arXiv:2506.18254, sec. 2.4 (threshold from the moving average of the steps' mean std), sec. 3.1: scale 0.5. Deviates: decay is ours;
    each rank goes by its own groups. Edge: in the first step all are kept, also groups of equal rewards.
    """

    scale: float = 0.5
    decay: float = 0.9
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"mean": None, "step": -1, "stds": []}, repr=False, compare=False)
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1 or self.scale < 0:
            raise ValueError(f"decay, scale: must be in [0, 1) and at least 0, got {self.decay} and {self.scale}")

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, group: Group) -> FilterDecision:
        step = self.run.step if self.run is not None else 0
        if step != self.state["step"]:
            self.learn(step)
        found = std(group.rewards)
        self.state["stds"].append(found)
        least = self.scale * (self.state["mean"] or 0.0)
        return FilterDecision(True) if found >= least else FilterDecision(False, "rewards too alike")

    def learn(self, step: int) -> None:
        """The last step's mean spread joins the moving average."""
        if self.state["stds"]:
            now, before = mean(self.state["stds"]), self.state["mean"]
            self.state["mean"] = now if before is None else self.decay * before + (1 - self.decay) * now
        self.state.update(step=step, stds=[])

    def metrics(self) -> dict[str, float]:
        return {"spread_range/least": self.scale * (self.state["mean"] or 0.0)}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.update(state)
