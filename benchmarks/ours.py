"""One training step (forward and backward of all groups) of vlrl, on given completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vlrl.plugins.registry import build
from vlrl.plugins.stages import AdvantageEstimator, LossAggregation, PolicyLoss
from vlrl.policy import Policy
from vlrl.trainer.step.loss_inputs import denominators_of, make_batch, per_token, split_micro_batches
from vlrl.trainer.step.objective import Objective
from vlrl.types import Denominators, Group, LossInputs


class Ours:
    """TRL's conventions: unbiased std plus 1e-4, clip 0.2, mean over all tokens of the step."""

    def __init__(self, policy: Policy, groups: Sequence[Group], micro_tokens: int = 4096) -> None:
        self.policy, self.groups, self.micro_tokens = policy, list(groups), micro_tokens
        self.objective = Objective(
            build(PolicyLoss, {"name": "ppo_clip"}), build(LossAggregation, {"name": "token_mean"}), {}, {}
        )
        for group, values in zip(
            self.groups, build(AdvantageEstimator, {"name": "grpo", "eps": 1e-4})(self.groups)
        ):
            for rollout, value in zip(group, values):
                rollout.advantages = [value] * len(rollout)

    def step(self) -> float:
        """The loss; gradients are in the policy. No cache is kept between steps: images are decoded and
        processed again."""
        policy = self.policy
        policy.clear_caches()
        policy.counters.clear()
        totals = Denominators(*denominators_of(self.groups))
        loss_sum = 0.0
        for micro in split_micro_batches(self.groups, self.micro_tokens, self._cost):
            batch = make_batch(micro, policy.pad_id, policy.device)
            logp_BT = policy.forward(batch)["logp"]
            loss, _ = self.objective(self._inputs(batch, logp_BT), totals)
            loss.backward()
            loss_sum += loss.item()
        return loss_sum

    def _cost(self, group: Group) -> int:
        return len(self.policy.encode(group.prompt)) + sum(map(len, group))

    def _inputs(self, batch: Any, logp_BT: torch.Tensor) -> LossInputs:
        old_BT = logp_BT.detach()
        advantage_BT = per_token(batch.rollouts, lambda r: r.advantages, logp_BT, torch.zeros_like(old_BT))
        reward_B = torch.tensor([r.reward for r in batch.rollouts], device=old_BT.device)
        group_B = torch.tensor(
            [i for i, group in enumerate(batch.groups) for _ in group], device=old_BT.device
        )
        return LossInputs(
            batch, logp_BT, old_BT, old_BT, advantage_BT, reward_B, batch.loss_mask_BT.float(), group_B
        )

    def counters(self) -> dict[str, int]:
        """Counters of a step."""
        return {
            name: int(self.policy.counters[name]) for name in ("decoded", "processed", "patches", "head_rows")
        }
