"""Trains a whole model to value tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from vlrl.methods._critic_model import critic_model
from vlrl.methods.callback.critic import value_loss
from vlrl.registry import ConfigError, register
from vlrl.stages import Callback
from vlrl.types import Group, Rollout, TokenBatch

if TYPE_CHECKING:
    from vlrl.run import Run


@register("critic_model")
@dataclass(frozen=True)
class TrainCriticModel(Callback):
    """After each step, one pass over its rollouts in `updates` updates of the model behind field `model_value`, at `rate` times the policy's rate.

    "value" regresses on the targets that advantage `gae` left (value clipping `clip`); "outcome" makes the mean of a rollout's token logits predict
    whether it is right (cross-entropy). AdamW without decay; an update's mean is over all ranks.
    Paper: Open-Reasoner-Zero, arXiv:2503.24290 (12 updates, 5e-6 beside the policy's 1e-6); OREAL, arXiv:2502.06781, eq. 10 (outcome; 2e-6 beside
    5e-7); value clipping: arXiv:2005.12729, sec. 3.  Edge: groups are whole, so there are at most as many updates as groups. A second model of the
    policy's size is held, with its optimizer.
    """

    objective: Literal["value", "outcome"] = "value"
    rate: float = 5.0
    updates: int = 12
    clip: float = 0.0
    threshold: float = 0.5
    state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def check(self, run: Run) -> None:
        if "model_value" not in run.fields:
            raise ConfigError(
                "callbacks: critic_model trains a model that nothing reads; use it with advantage: {name: gae, values: model_value}, or weights: "
                "{x: {name: oreal, scores: model_value}}"
            )

    def setup(self, run: Run) -> None:
        if run.sharded or hasattr(run.policy.model, "disable_adapter"):
            raise ConfigError("callbacks: critic_model copies the whole policy, which adapters and spread weights do not allow; use callback critic")
        self.state.update(run=run, optimizer=torch.optim.AdamW(critic_model(run).parameters(), lr=1e-6, weight_decay=0.0))

    def __call__(self, run: Run, groups: Sequence[Group]) -> dict[str, float | tuple[float, float]]:
        mine = [Group(g.prompt, kept, g.id) for g in run.groups if (kept := [r for r in g if r.source == "policy" and trained(r)])]
        model, optimizer = critic_model(run), self.state["optimizer"]
        count = max(run.gather([min(self.updates, len(mine))]))
        total = seen = 0.0
        for group in optimizer.param_groups:
            group["lr"] = self.rate * run.learning_rate
        for index in range(count):
            optimizer.zero_grad()
            items = 0
            for part in run.micros(mine[index::count]):
                loss, number = self.loss(model, run.policy, run.batch(part))
                loss.backward()
                total, items = total + float(loss.detach()), items + number
            everywhere = max(sum(run.gather([items])), 1)
            for p in model.parameters():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad  # a rank without a picture, or without a rollout
                p.grad = run.summed(p.grad) / everywhere
            optimizer.step()
            seen += items
        return {"loss": (total, float(seen))}

    def loss(self, model: Any, policy: Any, batch: TokenBatch) -> tuple[Tensor, int]:
        """The sum over tokens (value) or rollouts (outcome), and their number."""
        value_BT = model.values(policy, batch)
        mask_BT = (batch.loss_mask_BT & batch.mask_BT).to(value_BT.device)
        if self.objective == "outcome":
            right_B = torch.tensor([float(r.reward > self.threshold) for r in batch.rollouts], device=value_BT.device)
            return binary_cross_entropy_with_logits(value_BT.sum(-1) / mask_BT.sum(-1), right_B, reduction="sum"), len(right_B)
        old, target = (self.column(batch, key, mask_BT) for key in ("model_value", "targets"))
        return value_loss(value_BT[mask_BT], old, target, self.clip).sum(), int(mask_BT.sum())

    def column(self, batch: TokenBatch, key: str, mask_BT: Tensor) -> Tensor:
        """A rollout's numbers per token, of the trained tokens of the batch."""
        out_BT = torch.zeros(mask_BT.shape)
        for b, rollout in enumerate(batch.rollouts):
            out_BT[b, : len(rollout)] = torch.tensor(rollout.signals[key] if key in rollout.signals else rollout.info[key])
        return out_BT.to(mask_BT.device)[mask_BT]

    def state_dict(self) -> dict[str, Any]:
        moments = {str(k): dict(v) for k, v in self.state["optimizer"].state_dict()["state"].items()}
        return {"model": dict(critic_model(self.state["run"]).state_dict()), "adam": moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        critic_model(self.state["run"]).load_state_dict(state["model"])
        optimizer = self.state["optimizer"]
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {int(k): v for k, v in state["adam"].items()}})


def trained(rollout: Rollout) -> bool:
    """Whether any of its tokens is."""
    return rollout.loss_mask is None or any(rollout.loss_mask)
