"""A small head on the policy's hidden states: a critic, or a reward model of tokens.

Shape legend: N tokens, H hidden size.

A whole model that values tokens: a copy of the policy's with a scalar head, trained beside it.

Shape legend: B rollouts, T completion tokens, N scored tokens, H hidden size.

A small head on the policy's hidden states: a critic, or a reward model of tokens.

What a whole model makes of each token.

Trains the head that values tokens.

Trains a whole model to value tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from vlrl.functional import value_loss
from vlrl.registry import ConfigError, register
from vlrl.stages import AuxTensor, Callback
from vlrl.types import Group, Rollout, TokenBatch

if TYPE_CHECKING:
    from vlrl.context import RunContext


class Head(nn.Module):
    """V(h) = w2 . tanh(W1 norm(h)) + b, starting at 0 everywhere. Reads hidden states without sending gradients into them."""

    def __init__(self, size: int, width: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.norm = nn.LayerNorm(size, elementwise_affine=False)
            self.inner, self.outer = nn.Linear(size, width), nn.Linear(width, 1)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, hidden_NH: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(self.norm(hidden_NH.detach().float()))))[:, 0]


def critic_of(run: RunContext, width: int = 64) -> Head:
    """The run's head, made when it is first asked for."""
    if "critic" not in run.extras:
        size = run.policy.model.get_output_embeddings().weight.shape[-1]
        run.extras["critic"] = Head(size, width, run.seed).to(run.policy.device)
    return run.extras["critic"]


class Scalar(AuxTensor):
    """w . h_t + b, with gradient into the hidden states."""

    name = "scalar"
    in_forward = True
    reads_hidden = True

    def __init__(self, head: nn.Linear) -> None:
        self.head = head

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        return self.head(hidden_NH.float())[:, 0]


class CriticModel(nn.Module):
    """V(s_t) = w . h_t + b of a model that begins as a copy of the policy's; 0 everywhere at first."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(True)
        size = model.get_output_embeddings().weight.shape[-1]  # type: ignore[operator,union-attr]
        self.head = nn.Linear(size, 1).to(next(model.parameters()).device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def values(self, policy: Any, batch: TokenBatch) -> Tensor:
        """(B, T), zero outside the loss mask; honours the autograd mode. Prompts are laid out as for the policy."""
        return policy.with_model(self.model).forward(batch, [Scalar(self.head)])["scalar"]


def critic_model(run: RunContext) -> CriticModel:
    """The run's, made when it is first asked for."""
    if "critic_model" not in run.extras:
        run.extras["critic_model"] = CriticModel(run.policy.model)
    return run.extras["critic_model"]


@register("value")
@dataclass(frozen=True, kw_only=True)
class Value(AuxTensor):
    """V(s_t) of the head in `run.extras["critic"]`, in units of reward (a logit where the head learns outcomes).

    Paper: PPO's critic (arXiv:1707.06347); OREAL's token reward model (arXiv:2502.06781).  Deviates: a head on the policy's own states instead of
    a second model (that is field `model_value`).
    Shapes: (N, H) to (N,).  Callback `critic` trains it.
    """

    in_forward = True
    reads_hidden = True
    state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        self.state["head"] = critic_of(run)

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        return self.state["head"](hidden_NH)


@register("token_score")
@dataclass(frozen=True, kw_only=True)
class TokenScore(Value):
    """The head's logits, without gradient: their mean over a rollout learns whether it is right.

    Paper: Lyu et al. 2025 (OREAL), arXiv:2502.06781, sec. 3.3.  Shapes: (N, H) to (N,).
    """

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        return self.state["head"](hidden_NH).detach()


@register("model_value")
@dataclass(frozen=True, kw_only=True)
class ModelValue(AuxTensor):
    """V(s_t) of the model that callback `critic_model` trains, without gradient: reward to come, or a logit where it learns outcomes.

    Paper: PPO's critic (arXiv:1707.06347); Open-Reasoner-Zero (arXiv:2503.24290); OREAL's token reward model (arXiv:2502.06781).
    Edge: zero outside the loss mask.  Shapes: (B, T).
    """

    state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        self.state["critic"] = critic_model(run)

    def __call__(self, policy: Any, batch: TokenBatch) -> Tensor:
        with torch.no_grad():
            return self.state["critic"].values(policy, batch)


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

    def check(self, run: RunContext) -> None:
        if not {"value", "token_score"} & set(run.aux_tensors):
            raise ConfigError("callbacks: critic trains a head that nothing reads; use it with advantage gae or weight oreal")

        wanted = "value" if self.objective == "value" else "token_score"
        if wanted not in run.aux_tensors:
            raise ConfigError(
                f"callbacks: critic with objective {self.objective!r} trains what field {wanted} reads, and nothing needs it; use objective: value "
                "with advantage gae, outcome with weight oreal"
            )

    def setup(self, run: RunContext) -> None:
        self.state.update(run=run, optimizer=torch.optim.Adam(critic_of(run, self.width).parameters(), lr=self.lr))

    def __call__(self, run: RunContext, groups: Sequence[Group]) -> dict[str, float]:
        rollouts = [
            r for group in run.groups for r in group if r.source == "policy" and "hidden" in r.signals and (r.loss_mask is None or any(r.loss_mask))
        ]
        head, optimizer, loss = run.extras["critic"], self.state["optimizer"], 0.0
        for _ in range(self.epochs):
            total = self.loss(head, rollouts) if rollouts else sum(p.sum() for p in head.parameters()) * 0.0
            optimizer.zero_grad()
            total.backward()
            for p in head.parameters():
                p.grad = run.sum_tensor(p.grad) / run.ranks
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


@register("critic_model")
@dataclass(frozen=True)
class critic_model_CriticModel(Callback):
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

    def check(self, run: RunContext) -> None:
        if "model_value" not in run.aux_tensors:
            raise ConfigError(
                "callbacks: critic_model trains a model that nothing reads; use it with advantage: {name: gae, values: model_value}, or weights: "
                "{x: {name: oreal, scores: model_value}}"
            )

    def setup(self, run: RunContext) -> None:
        if run.state_sharded or hasattr(run.policy.model, "disable_adapter"):
            raise ConfigError("callbacks: critic_model copies the whole policy, which adapters and spread weights do not allow; use callback critic")
        self.state.update(run=run, optimizer=torch.optim.AdamW(critic_model(run).parameters(), lr=1e-6, weight_decay=0.0))

    def __call__(self, run: RunContext, groups: Sequence[Group]) -> dict[str, float | tuple[float, float]]:
        mine = [Group(g.prompt, kept, g.id) for g in run.groups if (kept := [r for r in g if r.source == "policy" and trained(r)])]
        model, optimizer = critic_model(run), self.state["optimizer"]
        count = max(run.gather([min(self.updates, len(mine))]))
        total = seen = 0.0
        for group in optimizer.param_groups:
            group["lr"] = self.rate * run.learning_rate
        for index in range(count):
            optimizer.zero_grad()
            items = 0
            for part in run.micro_batches(mine[index::count]):
                loss, number = self.loss(model, run.policy, run.batch(part))
                loss.backward()
                total, items = total + float(loss.detach()), items + number
            everywhere = max(sum(run.gather([items])), 1)
            for p in model.parameters():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad  # a rank without a picture, or without a rollout
                p.grad = run.sum_tensor(p.grad) / everywhere
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
