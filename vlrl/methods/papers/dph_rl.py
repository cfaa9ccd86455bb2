"""DPH-RL: a mass-covering f-divergence on samples of the base model, which keeps what the base model can do.

`dph_rl` is the replay buffer that collects the base model's correct completions in the first steps and
replays them; `dph_rl.f_divergence` is the loss term that learns from them. Each requires the other.

Paper: Li et al. 2025 (DPH-RL), arXiv:2509.07430, sec. 4 (D_pef and D_exp) and eq. 4-6; coefficients 0.01-0.05
(forward KL) and 0.05-0.2 (JS) in the release's README (its scripts: 0.01).
Checked against seamoke/DPH-RL 139a9b2: verl/trainer/ppo/core_algos.py and ray_trainer.py,
verl/workers/actor/dp_actor.py, scripts/llama, data/sql/process_data/exact_correct_id.py. Deviates: the base
model is sampled by the run's first steps, not by a run of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

from vlrl.methods.common.stored_groups import rows_of
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import StageContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import LossTerm, ReplayBuffer, State
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, LossInputs, Rollout, UnreducedLoss

BASE_ROLLOUTS = Capability("dph_rl.base_rollouts", hint="replay: {name: dph_rl}")
BASE_DIVERGENCE = Capability("dph_rl.base_divergence", hint="loss_terms: {f: {name: dph_rl.f_divergence}}")


@dataclass
class DphRlState(State):
    """The base model's correct completions (plain values) by row id; the same on all ranks."""

    store: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


@register("dph_rl")
@dataclass(frozen=True)
class DphRl(ReplayBuffer):
    """DPH-RL's D_pef: the first `steps` steps are not trained on; prompts that the base model solves are
    stored with its correct completions.

    Afterwards every step gets `added` stored groups per rank, in turn, and a fresh group of a stored prompt
    is replaced by the stored one (source "base"), whose tokens carry the base model's log-probs over the
    whole vocabulary. All its rewards are equal, so only the term `dph_rl.f_divergence` acts on it, and on
    nothing else. A prompt that is not drawn counts as D_exp. Released code: a batch of stored answers joins
    every batch; four of four completions must be correct and one is stored.

    Attributes:
        steps: 0 is one pass over all rows.
        rate: Success rate that a prompt needs, in its first `attempts` completions (0: in all).
        keep: Its first correct completions that are stored (0: all).
    """

    state_class = DphRlState
    steps: int = 2
    rate: float = 0.75
    added: int = 0
    attempts: int = 0
    keep: int = 0
    provides = (BASE_ROLLOUTS,)
    requires = (BASE_DIVERGENCE,)

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        store = self.state.store
        if self.run.phase_step < self.first_steps():
            store.update(self.run.gather(self.solved(groups)))
            return []
        mixed = [self.replayed(group) if group.row.id in store else group for group in groups]
        return mixed + self.further({group.row.id for group in groups})

    def first_steps(self) -> int:
        """The number of steps that only sample: `steps`, or one pass over all rows."""
        return self.steps or math.ceil(
            sum(map(len, self.run.rows.values())) / self.run.settings.prompts_per_step
        )

    def further(self, present: Collection[str]) -> list[Group]:
        """The next `added` stored groups, those of `present` rows left out."""
        run, names = self.run, sorted(self.state.store)
        if not self.added or not names:
            return []
        first = (run.phase_step * run.ranks + run.rank) * self.added
        chosen = dict.fromkeys(names[(first + i) % len(names)] for i in range(self.added))
        rows = rows_of(run, [name for name in chosen if name not in present])
        prompts = [run.prompt_template(row) for row in rows.values()]
        empty = [
            Group(
                prompt,
                [Rollout(prompt, [], spaces=tuple(run.policy.spaces(prompt)))],
                f"base/{prompt.row.id}",
            )
            for prompt in prompts
        ]
        return [self.replayed(group) for group in empty]

    def solved(self, groups: Sequence[Group]) -> list[tuple[str, list[dict[str, Any]]]]:
        """An entry of the store for each group that the base model solves."""
        found = [Group(group.prompt, kept, group.id) for group in groups if (kept := self.kept(group))]
        logps = full_logps(found, groups, self.run)
        names = ("ids", "text", "reward", "outcome", "correct", "temperature")
        return [
            (
                group.row.id,
                [{"logp": logps[id(r)], **{name: getattr(r, name) for name in names}} for r in group],
            )
            for group in found
        ]

    def kept(self, group: Group) -> list[Rollout]:
        """The correct completions that are stored; none of a prompt that the base model does not solve."""
        judged = group.rollouts[: self.attempts or None]
        solved = sum(rollout.correct for rollout in judged) >= self.rate * len(judged)
        return [rollout for rollout in group if rollout.correct][: self.keep or None] if solved else []

    def replayed(self, group: Group) -> Group:
        """The stored completions of the group's prompt, as a group of equal rewards."""
        stored = deepcopy(self.state.store[group.row.id])
        reward = max(item["reward"] for item in stored)
        rollouts = [
            Rollout(
                group.prompt, spaces=group.rollouts[0].spaces, source="base", **{**item, "reward": reward}
            )
            for item in stored
        ]
        return Group(group.prompt, rollouts, group.id, dict(group.info))


def full_logps(
    groups: Sequence[Group], present: Sequence[Group], run: StageContext
) -> dict[int, list[float]]:
    """The policy's log-probs of the rollouts of `groups`, by id, over the whole vocabulary: the sampler's are
    of what top_p left."""
    parts = run.micro_batches(groups) if groups else []
    if run.params_sharded:  # a forward pass is a collective: ranks with fewer parts repeat one of `present`
        spare = next(Group(group.prompt, [r], group.id) for group in present for r in group if r.ids)
        parts += [[spare]] * (max(run.gather([len(parts)])) - len(parts))
    found: dict[int, list[float]] = {}
    for part in parts:
        batch = run.batch(part)
        with torch.no_grad():
            logp_BT = run.policy.forward(batch)["logp"].float().cpu()
        for rollout, logp_T in zip(batch.rollouts, logp_BT, strict=True):
            found[id(rollout)] = logp_T[: len(rollout)].tolist()
    return found


@register("dph_rl.f_divergence")
@dataclass(frozen=True, kw_only=True)
class DphRlFDivergence(LossTerm):
    """DPH-RL's f-divergence from the base model, estimated on the base model's own samples.

        D_f(pi || pi_base) = E_base[f(u)],  u = pi / pi_base
        forward_kl: f(u) = -log u;  forward_kl_k3: f(u) = u - 1 - log u (the release's estimate of the same)
        js: f(u) = u log u - (u + 1) log((u + 1) / 2);  alpha: f(u) = (u^(1-a) - (1-a) u - a) / (a (a - 1))

    The sum is over the tokens of rollouts of `source`, whose log-probs are pi_base's; no reference model
    runs. log u is clamped to +-20. Edge: without such rollouts the loss is zero; a = `alpha` must not
    be 0 or 1.
    """

    coef: float = 0.02
    divergence: Literal["forward_kl", "forward_kl_k3", "js", "alpha"] = "forward_kl"
    alpha: float = 0.5
    source: str = "base"

    def __post_init__(self) -> None:
        if self.divergence == "alpha" and self.alpha in (0.0, 1.0):
            raise ValueError(
                f"alpha={self.alpha}: the divergence is defined there only as a limit; use divergence "
                "forward_kl"
            )

    @property
    def provides(self) -> tuple[Capability, ...]:
        return (BASE_DIVERGENCE,) if self.source == "base" else ()

    @property
    def requires(self) -> tuple[Capability, ...]:
        return (BASE_ROLLOUTS,) if self.source == "base" else ()

    def f(self, log_u: Tensor) -> Tensor:
        """The generator at u = exp(log_u)."""
        u, a = log_u.exp(), self.alpha
        if self.divergence == "forward_kl":
            return -log_u
        if self.divergence == "forward_kl_k3":
            return u - 1 - log_u
        if self.divergence == "js":
            return u * log_u - (u + 1) * ((u + 1) / 2).log()
        return (u.pow(1 - a) - (1 - a) * u - a) / (a * (a - 1))

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        keep_B = torch.tensor(
            [rollout.source == self.source for rollout in x.batch.rollouts], device=x.logp_BT.device
        )
        log_u_BT = ((x.logp_BT - x.sampled_logp_BT) * x.mask_BT * keep_B[:, None]).clamp(-20, 20)
        value_BT = torch.where(keep_B[:, None], self.f(log_u_BT), torch.zeros_like(log_u_BT))
        return UnreducedLoss(value_BT, {"f_divergence": value_BT.detach()})
