"""Behavior alignment reward functions (BARFI): how much a designer's heuristic counts is learned from what it
does to the task's own reward.

    behavior_alignment_reward    reward shaping: the task's reward and the heuristics, with learned weights

Paper: Gupta, Chandak, Jordan, Thomas and da Silva 2023, "Behavior Alignment via Reward Function
Optimization", arXiv:2310.19007.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.plugins.contexts import PhaseContext, StageContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RewardShaping, State
from vlrl.services.lazy import torch
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class BehaviorAlignmentState(State):
    """The weights of the heuristics by slot, and the last step's alignments."""

    weights: dict[str, float] = field(default_factory=dict)
    aligned: dict[str, float] = field(default_factory=dict)


@register("behavior_alignment_reward")
@dataclass(frozen=True)
class BehaviorAlignmentReward(RewardShaping):
    """BARFI's blend: R = R_primary + sum_k phi_k r_k over the heuristics `slots`, whose phi_k are learned:

        inner   the policy is trained on R
        outer   phi_k <- clip(phi_k + lr cos(grad J_primary, grad J_k), 0, most)

    since one step theta' = theta + a sum_k phi_k grad J_k has dJ_primary / dphi_k = a <grad J_primary, grad
    J_k>. J_primary is the reward without heuristics; grad J = sum_i (r_i - mean of the group) sum_t grad log
    pi, over the last `tensors` trained tensors of the policy. phi_k begins at the slot's `weight`.
    Paper: arXiv:2310.19007, eq. 5 to 7. Deviates: one unrolled step for the implicit gradient; its cosine for
    its size; no learned discount. Edge: without a gradient of both phi_k stays. Logs phi_k, the alignments.
    """

    state_class = BehaviorAlignmentState
    slots: tuple[str, ...] = ()
    lr: float = 0.1
    most: float = 1.0
    tensors: int = 8

    def __post_init__(self) -> None:
        if not self.slots or self.tensors < 1 or self.most <= 0:
            raise ValueError(
                f"slots={list(self.slots)} must name the heuristics, tensors={self.tensors} be at least 1, "
                f"most={self.most} above 0"
            )

    def check(self, phase: PhaseContext) -> None:
        for slot in self.slots:
            if slot not in phase.rewards:
                raise ConfigError(
                    f"reward_shaping: {self.name!r} blends the reward {slot!r}, which is not there. Known: "
                    f"{', '.join(phase.rewards)}."
                )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.params_sharded:
            raise ConfigError(
                f"reward_shaping: {self.name!r} reads gradients of single weights, and FSDP and ZeRO-3 shard "
                "them; use DDP or ZeRO-2"
            )
        for slot in self.slots:
            self.state.weights.setdefault(slot, run.rewards[slot].weight)

    def __call__(self, group: Group) -> list[float]:
        return [
            self.primary(rollout)
            + sum(phi * rollout.rewards.get(slot, 0.0) for slot, phi in self.state.weights.items())
            for rollout in group
        ]

    def primary(self, rollout: Rollout) -> float:
        """The rollout's reward without the heuristics."""
        own = self.run.rewards
        return rollout.reward - sum(own[s].weight * rollout.rewards.get(s, 0.0) for s in self.slots)

    # --- the outer problem ----------------------------------------------------------------------------------

    def end_step(self, run: StepContext) -> None:
        super().end_step(run)
        groups = [group for group in run.groups if any(any(r.trained_mask) for r in group)]
        sums = self.gradients(run, groups)
        primary = run.sum_tensor(sums[""])
        for slot in self.slots:
            own = run.sum_tensor(sums[slot])
            size = float(primary.norm() * own.norm())
            aligned = float(primary @ own) / size if size > 0 else 0.0
            self.state.aligned[slot] = aligned
            self.state.weights[slot] = min(max(self.state.weights[slot] + self.lr * aligned, 0.0), self.most)

    def gradients(self, run: StepContext, groups: Sequence[Group]) -> dict[str, Tensor]:
        """grad J of the primary reward ("") and of each heuristic, flat."""
        trained = [p for p in run.policy.model.parameters() if p.requires_grad][-self.tensors :]
        sums = {
            name: torch.zeros(sum(p.numel() for p in trained), device=trained[0].device)
            for name in ("", *self.slots)
        }
        for part in run.micro_batches(groups) if groups else []:
            batch = run.batch(part)
            with torch.enable_grad():
                logp_BT = run.policy.forward(batch)["logp"]
                mask_BT = (batch.loss_mask_BT & batch.mask_BT).to(logp_BT.device)
                logp_B = (logp_BT * mask_BT).sum(-1)
                for name, total in sums.items():
                    centred = {
                        id(rollout): value
                        for group in part
                        for rollout, value in zip(group, self.centred(group, name), strict=True)
                    }
                    weights = logp_B.new_tensor([centred[id(rollout)] for rollout in batch.rollouts])
                    if not weights.any():
                        continue
                    found = torch.autograd.grad(
                        (logp_B * weights).sum(), trained, retain_graph=True, allow_unused=True
                    )
                    total += torch.cat(
                        [
                            (torch.zeros_like(p) if g is None else g).flatten().float()
                            for p, g in zip(trained, found)
                        ]
                    )
        return sums

    def centred(self, group: Group, name: str) -> list[float]:
        """What a component pays each rollout, minus the group's mean."""
        if name:
            values = [rollout.rewards.get(name, 0.0) for rollout in group]
        else:  # what is left of the blended reward
            phi = self.state.weights
            values = [r.reward - sum(phi[s] * r.rewards.get(s, 0.0) for s in self.slots) for r in group]
        mean = statistics.fmean(values) if values else 0.0
        return [value - mean for value in values]

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        state = self.state
        return {f"behavior/{slot}": phi for slot, phi in state.weights.items()} | {
            f"behavior/{slot}_aligned": value for slot, value in state.aligned.items()
        }
