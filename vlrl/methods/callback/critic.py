"""Trains the head that values tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from vlrl.methods._critic import critic_of
from vlrl.registry import ConfigError, register
from vlrl.stages import Callback
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from vlrl.run import Run


def value_loss(value_N: Tensor, old_N: Tensor, target_N: Tensor, clip: float = 0.0) -> Tensor:
    """Per token: 0.5 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2); without the second where c is 0."""
    plain = (value_N - target_N).square()
    if not clip:
        return 0.5 * plain
    bounded = old_N + (value_N - old_N).clamp(-clip, clip)
    return 0.5 * torch.maximum(plain, (bounded - target_N).square())


@register("critic")
@dataclass(frozen=True)
class Critic(Callback):
    """After each step, `epochs` updates of the head in `run.extras["critic"]` on the step's rollouts and their hidden states (field `hidden`).

    "value" regresses on the targets that advantage `gae` left (with value clipping `clip`); "outcome" makes the mean of a rollout's token logits
    predict whether it is right (cross-entropy).
    Paper: PPO with value clipping, arXiv:2005.12729, sec. 3; Open-Reasoner-Zero, arXiv:2503.24290 (12 critic steps per policy step, lr 5e-6);
    OREAL, arXiv:2502.06781, eq. 10 (outcome).  The head has an Adam of its own; gradients are averaged over ranks. Hidden states are those of
    collection.
    """

    objective: Literal["value", "outcome"] = "value"
    lr: float = 1e-3
    epochs: int = 12
    clip: float = 0.0
    threshold: float = 0.5
    width: int = 64
    needs = ("hidden",)
    state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def check(self, run: Run) -> None:
        if not {"value", "token_score"} & set(run.fields):
            raise ConfigError("callbacks: critic trains a head that nothing reads; use it with advantage gae or weight oreal")

        wanted = "value" if self.objective == "value" else "token_score"
        if wanted not in run.fields:
            raise ConfigError(
                f"callbacks: critic with objective {self.objective!r} trains what field {wanted} reads, and nothing needs it; use objective: value "
                "with advantage gae, outcome with weight oreal"
            )

    def setup(self, run: Run) -> None:
        self.state.update(run=run, optimizer=torch.optim.Adam(critic_of(run, self.width).parameters(), lr=self.lr))

    def __call__(self, run: Run, groups: Sequence[Group]) -> dict[str, float]:
        rollouts = [
            r for group in run.groups for r in group if r.source == "policy" and "hidden" in r.signals and (r.loss_mask is None or any(r.loss_mask))
        ]
        head, optimizer, loss = run.extras["critic"], self.state["optimizer"], 0.0
        for _ in range(self.epochs):
            total = self.loss(head, rollouts) if rollouts else sum(p.sum() for p in head.parameters()) * 0.0
            optimizer.zero_grad()
            total.backward()
            for p in head.parameters():
                p.grad = run.summed(p.grad) / run.ranks
            optimizer.step()
            loss = float(total.detach())
        return {"loss": loss}

    def loss(self, head: torch.nn.Module, rollouts: Sequence[Rollout]) -> Tensor:
        """The mean over tokens (value) or rollouts (outcome)."""
        device = next(head.parameters()).device
        lengths = [len(rollout) for rollout in rollouts]
        value_N = head(torch.tensor([h for r in rollouts for h in r.signals["hidden"]], device=device))

        def column(rows: list[list[float]]) -> Tensor:
            return torch.tensor([v for row in rows for v in row], device=device)

        if self.objective == "value":
            return value_loss(
                value_N, column([r.signals["value"] for r in rollouts]), column([r.info["targets"] for r in rollouts]), self.clip
            ).mean()
        right = torch.tensor([float(r.reward > self.threshold) for r in rollouts], device=device)
        return binary_cross_entropy_with_logits(torch.stack([part.mean() for part in value_N.split(lengths)]), right)

    def state_dict(self) -> dict[str, Any]:
        head = self.state["run"].extras["critic"]
        moments = {str(k): dict(v) for k, v in self.state["optimizer"].state_dict()["state"].items()}
        return {"head": dict(head.state_dict()), "adam": moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state["run"].extras["critic"].load_state_dict(state["head"])
        optimizer = self.state["optimizer"]
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {int(k): v for k, v in state["adam"].items()}})
