"""Answers of the base model, kept to be remembered.

Divergences that cover what the base model could do.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from vlrl.registry import ConfigError, register
from vlrl.stages import LossTerm, ReplayBuffer
from vlrl.types import Group, LossInputs, PerToken, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("dph_rl")
@dataclass(frozen=True)
class DphRl(ReplayBuffer):
    """The first `steps` steps are not trained on: prompts that the base model solves with a rate of at least `rate` are stored with their right
    completions.

    Afterwards a fresh group of such a prompt is replaced by the stored one (source "base"), whose tokens carry the base model's log-probs; all its
    rewards are equal, so only term `f_divergence` acts on it, and it does so on nothing else.
    Paper: Li et al. 2025 (DPH-RL), arXiv:2509.07430, sec. 4: D_pef and D_exp.  Deviates: the base is sampled by the run's first steps, not
    beforehand, so a prompt that they do not draw counts as D_exp; stored and fresh groups share a batch.
    State: the stored token ids and log-probs by row id, the same on all ranks.
    """

    steps: int = 2
    rate: float = 0.75
    threshold: float = 0.5
    store: dict[str, list[dict[str, Any]]] = field(init=False, default_factory=dict, repr=False, compare=False)
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def check(self, run: RunContext) -> None:
        if not any(term.name == "dph_rl.f_divergence" for term in run.objective.loss_terms.values()):
            raise ConfigError(
                "replay dph_rl puts stored base samples in place of fresh ones, and nothing learns from them; add terms: {f: {name: f_divergence}}"
            )

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        if self.run.phase_step < self.steps:
            self.store.update(self.run.gather([item for group in groups for item in self.solved(group)]))
            return []
        return [self.replayed(group) if group.row.id in self.store else group for group in groups]

    def solved(self, group: Group) -> list[tuple[str, list[dict[str, Any]]]]:
        """A group that the base model solves, as an entry of the store."""
        right = [rollout for rollout in group if rollout.reward > self.threshold]
        return [(group.row.id, [self.packed(rollout) for rollout in right])] if right and len(right) >= self.rate * len(group) else []

    def packed(self, rollout: Rollout) -> dict[str, Any]:
        """What of a rollout survives a restart."""
        return {"ids": rollout.ids, "logp": rollout.logp, "text": rollout.text, "reward": rollout.reward, "temperature": rollout.temperature}

    def replayed(self, group: Group) -> Group:
        """The stored completions of a group's prompt, as a group."""
        stored = deepcopy(self.store[group.row.id])
        top = max(item["reward"] for item in stored)
        rollouts = [Rollout(group.prompt, spaces=group.rollouts[0].spaces, source="base", **{**item, "reward": top}) for item in stored]
        return Group(group.prompt, rollouts, group.id, dict(group.info))

    def state_dict(self) -> dict[str, Any]:
        return {"store": deepcopy(self.store)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.store.clear()
        self.store.update(state["store"])


@register("dph_rl.f_divergence")
@dataclass(frozen=True, kw_only=True)
class DphRlFDivergence(LossTerm):
    """D_f(pi || pi_base) = E_base[f(u)], u = pi / pi_base, on the tokens of rollouts of `source` (their own sampler's log-probs are pi_base).

    forward KL f(u) = -log u;  JS f(u) = u log u - (u + 1) log((u + 1) / 2);  alpha f(u) = (u^(1-a) - (1-a) u - a) / (a (a - 1)).

    Paper: Li et al. 2025 (DPH-RL), arXiv:2509.07430, eq. 4-6; coefficients 0.01-0.05 (forward KL) and 0.05-0.2 (JS) in the released scripts.
    No reference model runs. log u is held in +-20.  Edge: no such rollouts: zero; alpha must not be 0 or 1.
    """

    coef: float = 0.02
    kind: Literal["forward_kl", "js", "alpha"] = "forward_kl"
    alpha: float = 0.5
    source: str = "base"

    def __post_init__(self) -> None:
        if self.kind == "alpha" and self.alpha in (0.0, 1.0):
            raise ValueError(f"alpha={self.alpha}: the divergence is defined there only as a limit; use kind forward_kl")

    def check(self, run: RunContext) -> None:
        if self.source == "base" and getattr(run.replay, "name", "") != "dph_rl":
            raise ConfigError('loss_terms: f_divergence learns from rollouts of source "base", which nothing makes here; add replay: {name: dph_rl}')

    def f(self, log_u: torch.Tensor) -> torch.Tensor:
        """The generator at u = exp(log_u)."""
        u, a = log_u.exp(), self.alpha
        if self.kind == "forward_kl":
            return -log_u
        if self.kind == "js":
            return u * log_u - (u + 1) * ((u + 1) / 2).log()
        return (u.pow(1 - a) - (1 - a) * u - a) / (a * (a - 1))

    def __call__(self, x: LossInputs) -> PerToken:
        keep_B = torch.tensor([rollout.source == self.source for rollout in x.batch.rollouts], device=x.logp_BT.device)
        log_u_BT = ((x.logp_BT - x.sampled_logp_BT) * x.mask_BT * keep_B[:, None]).clamp(-20, 20)
        value_BT = torch.where(keep_B[:, None], self.f(log_u_BT), torch.zeros_like(log_u_BT))
        return PerToken(value_BT, {"f_divergence": value_BT.detach()})
