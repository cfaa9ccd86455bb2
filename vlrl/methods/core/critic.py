"""Critics: a value head on the policy's hidden states, or a separate value model. Each has an aux tensor to
read it and a callback to train it.

    critic         callback: trains the head          value, token_score   aux tensors: its outputs with and
    without gradient critic_model   callback: trains the separate model          model_value   aux tensor: its
    outputs

With objective "value" the outputs are values (units of reward), for advantage `gae`; with "outcome" they are
logits whose mean over a rollout predicts whether it is correct, for `oreal.decisive_tokens`.

Shapes: B rollouts, T completion tokens, N scored tokens, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vlrl.functional import value_clip_fraction, value_loss
from vlrl.plugins.capabilities import Annotation, Capability
from vlrl.plugins.contexts import CallbackContext, PhaseContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import AuxTensor, Callback, State, transient
from vlrl.plugins.views import PolicyView
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import Group, Rollout, TokenBatch

if TYPE_CHECKING:
    from vlrl.methods.common.value_networks import ValueHead, ValueModel

VALUE_CRITIC = Capability("critic.value", hint="callbacks: {critic: {name: critic}}")
OUTCOME_CRITIC = Capability("critic.outcome", hint="callbacks: {critic: {name: critic, objective: outcome}}")
VALUE_CRITIC_MODEL = Capability("critic_model.value", hint="callbacks: {critic: {name: critic_model}}")
OUTCOME_CRITIC_MODEL = Capability(
    "critic_model.outcome", hint="callbacks: {critic: {name: critic_model, objective: outcome}}"
)
RETURNS: Annotation[list] = Annotation(
    "gae.returns", list, hint="advantage: {name: gae}", doc="per token: A + V, which a critic regresses on"
)

CRITIC_WEIGHT: Annotation[float] = Annotation(
    "critic_model.weight",
    float,
    hint="token_weights: one that says how often a rollout counts",
    doc="the factor on a rollout in the loss of `critic_model`; 1 without it",
)


def value_head(run: StageContext, width: int = 64) -> ValueHead:
    """The run's value head, made at the first call."""
    from vlrl.methods.common.value_networks import ValueHead

    def make() -> ValueHead:
        size = run.policy.model.get_output_embeddings().weight.shape[-1]
        return ValueHead(size, width, run.seed).to(run.policy.device)

    return run.shared("critic", make)


def value_model(run: StageContext) -> ValueModel:
    """The run's value model, made at the first call."""
    from vlrl.methods.common.value_networks import ValueModel

    return run.shared("critic_model", lambda: ValueModel(run.policy.model))


@register("value")
@dataclass(frozen=True, kw_only=True)
class Value(AuxTensor):
    """V(s_t) of the value head that callback `critic` trains, in units of reward (a logit with objective
    "outcome").

    Paper: PPO's critic (arXiv:1707.06347); OREAL's token reward model (arXiv:2502.06781). Deviates: a head on
    the policy's own states instead of a second model (that is the aux tensor `model_value`). Shapes: (N, H)
    to (N,).
    """

    in_forward = True
    reads_hidden = True

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        value_head(run)

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        return value_head(self.run)(hidden_NH)


@register("token_score")
@dataclass(frozen=True, kw_only=True)
class TokenScore(Value):
    """The value head's logits, without gradient: their mean over a rollout learns whether it is correct
    (callback `critic`, objective "outcome").

    Paper: Lyu et al. 2025 (OREAL), arXiv:2502.06781, sec. 3.3. Shapes: (N, H) to (N,).
    """

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        return value_head(self.run)(hidden_NH).detach()


@register("model_value")
@dataclass(frozen=True, kw_only=True)
class ModelValue(AuxTensor):
    """V(s_t) of the model that callback `critic_model` trains, without gradient: reward to come, or a logit
    with objective "outcome".

    Paper: PPO's critic (arXiv:1707.06347); Open-Reasoner-Zero (arXiv:2503.24290); OREAL's token reward model
    (arXiv:2502.06781). Edge: zero outside the loss mask. Shapes: (B, T).
    """

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        value_model(run)

    def __call__(self, policy: PolicyView, batch: TokenBatch) -> Tensor:
        with torch.no_grad():
            return value_model(self.run).values(policy, batch)


@dataclass
class CriticState(State):
    """The trained module and its optimizer, both made by `setup`; saved are the weights and Adam's
    moments."""

    module: Any = transient()  # ValueHead or ValueModel
    optimizer: Any = transient()

    def state_dict(self) -> dict[str, Any]:
        if self.module is None:
            return {}
        moments = {str(k): dict(v) for k, v in self.optimizer.state_dict()["state"].items()}
        return {"weights": dict(self.module.state_dict()), "adam": moments}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        if values:
            self.module.load_state_dict(values["weights"])
            self.optimizer.load_state_dict(
                {**self.optimizer.state_dict(), "state": {int(k): v for k, v in values["adam"].items()}}
            )


def has_trained_tokens(rollout: Rollout) -> bool:
    """Whether the loss mask is True on any token."""
    return any(rollout.trained_mask)


@register("critic")
@dataclass(frozen=True)
class Critic(Callback):
    """PPO's critic as a head: after each step, `epochs` updates of the value head on the step's rollouts and
    their hidden states (`hidden`).

    "value" regresses on the targets that advantage `gae` writes (with value clipping `clip`, whose share of
    tokens is logged); "outcome" makes the mean of a rollout's token logits predict whether it is correct
    (cross-entropy).
    Paper: PPO with value clipping, arXiv:2005.12729, sec. 3; Open-Reasoner-Zero, arXiv:2503.24290 (12 critic
    steps per policy step, lr 5e-6); OREAL, arXiv:2502.06781, eq. 10 (outcome). The head has its own Adam
    optimizer; gradients are averaged over ranks. Hidden states are those of collection.
    """

    state_class = CriticState
    objective: Literal["value", "outcome"] = "value"
    lr: float = 1e-3
    epochs: int = 12
    clip: float = 0.0
    width: int = 64
    needs = ("hidden",)

    @property
    def provides(self) -> tuple[Capability, ...]:
        return (VALUE_CRITIC if self.objective == "value" else OUTCOME_CRITIC,)

    @property
    def requires(self) -> tuple[Capability, ...]:
        return (RETURNS,) if self.objective == "value" else ()

    def check(self, phase: PhaseContext) -> None:
        if not {"value", "token_score"} & set(phase.aux_tensors):
            raise ConfigError(
                "callbacks: 'critic' trains a head that nothing reads; use it with advantage gae or token "
                "weight oreal.decisive_tokens"
            )
        reader = "value" if self.objective == "value" else "token_score"
        if reader not in phase.aux_tensors:
            raise ConfigError(
                f"callbacks: 'critic' with objective {self.objective!r} trains what the aux tensor "
                f"{reader!r} reads, and nothing needs that; "
                "use objective: value with advantage gae, objective: outcome with token weight "
                "oreal.decisive_tokens"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.module = value_head(run, self.width)
        self.state.optimizer = torch.optim.Adam(self.state.module.parameters(), lr=self.lr)

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        rollouts = [
            r
            for group in run.groups
            for r in group
            if r.source == "policy" and "hidden" in r.signals and has_trained_tokens(r)
        ]
        head, optimizer, loss = self.state.module, self.state.optimizer, 0.0
        clipped = 0.0
        for _ in range(self.epochs):
            total, clipped = (
                self.loss(head, rollouts)
                if rollouts
                else (sum(p.sum() for p in head.parameters()) * 0.0, 0.0)
            )
            optimizer.zero_grad()
            total.backward()
            for p in head.parameters():
                p.grad = run.sum_tensor(p.grad) / run.ranks
            optimizer.step()
            loss = float(total.detach())
        return {"loss": loss, **({"clip_fraction": clipped} if self.clip else {})}

    def loss(self, head: nn.Module, rollouts: Sequence[Rollout]) -> tuple[Tensor, float]:
        """The mean over trained tokens (value) or rollouts (outcome), and the share of tokens whose loss is
        that of the clipped value."""
        device = next(head.parameters()).device

        def flat(rows: Iterable[Sequence[Any]]) -> Tensor:
            return torch.tensor(
                [v for r, row in zip(rollouts, rows) for v, trained in zip(row, r.trained_mask) if trained],
                device=device,
            )

        value_N = head(flat(r.signals["hidden"] for r in rollouts))
        if self.objective == "value":
            old_N, target_N = flat(r.signals["value"] for r in rollouts), flat(RETURNS[r] for r in rollouts)
            clipped = value_clip_fraction(value_N, old_N, target_N, self.clip).mean().item()
            return value_loss(value_N, old_N, target_N, self.clip).mean(), clipped
        correct_B = torch.tensor([float(r.correct) for r in rollouts], device=device)
        parts = value_N.split([r.trained_tokens for r in rollouts])
        return nn.functional.binary_cross_entropy_with_logits(
            torch.stack([part.mean() for part in parts]), correct_B
        ), 0.0


@register("critic_model")
@dataclass(frozen=True)
class CriticModel(Callback):
    """PPO's critic as a separate model: after each step, `epochs` passes over its rollouts of `updates`
    updates each, at `rate` times the policy's learning rate.

    "value" regresses on the targets that advantage `gae` writes (value clipping `clip`); "outcome" makes the
    mean of a rollout's token logits predict whether it is correct (cross-entropy). An update's mean is over
    all ranks. A rollout with CRITIC_WEIGHT counts so often.
    Paper: Open-Reasoner-Zero, arXiv:2503.24290 (12 updates, 5e-6 beside the policy's 1e-6); OREAL,
    arXiv:2502.06781, eq. 10 (outcome; 2e-6 beside 5e-7); value clipping: arXiv:2005.12729, sec. 3. Edge:
    groups are whole, so there are at most as many updates as groups. Memory: a second model of the policy's
    size with its optimizer.

    Attributes:
        mean: Of a value loss: over all "tokens" (verl), or over the tokens of each rollout and then over
            rollouts ("sequences", OpenRLHF).
        anew: Whether a phase begins with a new value model, from the policy's weights; else it goes on with
            that of the phase before.
        coef: Factor on the loss, which the clip of the norm sees (open_instruct's vf_coef).
        betas, weight_decay, max_grad_norm: Of its AdamW, as in `optimizer` (norm 0: no clip).
    """

    state_class = CriticState
    objective: Literal["value", "outcome"] = "value"
    rate: float = 5.0
    updates: int = 12
    epochs: int = 1
    clip: float = 0.0
    mean: Literal["tokens", "sequences"] = "tokens"
    anew: bool = False
    coef: float = 1.0
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0

    @property
    def provides(self) -> tuple[Capability, ...]:
        return (VALUE_CRITIC_MODEL if self.objective == "value" else OUTCOME_CRITIC_MODEL,)

    @property
    def requires(self) -> tuple[Capability, ...]:
        return (RETURNS,) if self.objective == "value" else ()

    def check(self, phase: PhaseContext) -> None:
        if "model_value" not in phase.aux_tensors:
            raise ConfigError(
                "callbacks: 'critic_model' trains a model that nothing reads; use it with advantage: "
                "{name: gae, values: model_value}, or "
                "token_weights: {tokens: {name: oreal.decisive_tokens, scores: model_value}}"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.state_sharded or run.policy.has_adapter:
            raise ConfigError(
                "callbacks: 'critic_model' copies the whole policy, which adapters and sharded weights do "
                "not allow; use 'critic'"
            )
        self.state.module = value_model(run)
        if self.anew:
            self.state.module.begin(run.policy.model)
        self.state.optimizer = torch.optim.AdamW(
            self.state.module.parameters(), lr=1e-6, betas=self.betas, weight_decay=self.weight_decay
        )

    def __call__(
        self, run: CallbackContext, groups: Sequence[Group]
    ) -> dict[str, float | tuple[float, float]]:
        own = [
            Group(g.prompt, kept, g.id)
            for g in run.groups
            if (kept := [r for r in g if r.source == "policy" and has_trained_tokens(r)])
        ]
        model, optimizer = self.state.module, self.state.optimizer
        updates = max(run.gather([min(self.updates, len(own))]))
        total = count = clipped = 0.0
        for group in optimizer.param_groups:
            group["lr"] = self.rate * run.learning_rate
        for index in [*range(updates)] * self.epochs:
            optimizer.zero_grad()
            items = 0
            for part in run.micro_batches(own[index::updates]):
                loss, number, held = self.loss(model, run.policy, run.batch(part))
                loss.backward()
                total, items, clipped = total + float(loss.detach()), items + number, clipped + held
            all_items = max(sum(run.gather([items])), 1)
            for p in model.parameters():
                p.grad = (
                    torch.zeros_like(p) if p.grad is None else p.grad
                )  # a rank without a picture, or without a rollout
                p.grad = run.sum_tensor(p.grad) * (self.coef / all_items)
            nn.utils.clip_grad_norm_(model.parameters(), self.max_grad_norm or math.inf)
            optimizer.step()
            count += items
        return {
            "loss": (total, float(count)),
            **({"clip_fraction": (clipped, float(count))} if self.clip else {}),
        }

    def loss(self, model: ValueModel, policy: PolicyView, batch: TokenBatch) -> tuple[Tensor, int, float]:
        """The sum over tokens or rollouts, as `mean` has it (outcome: rollouts), their number, and how many
        of them have the loss of the clipped value."""
        value_BT = model.values(policy, batch)
        mask_BT = (batch.loss_mask_BT & batch.mask_BT).to(value_BT.device)
        if self.objective == "outcome":
            correct_B = torch.tensor([float(r.correct) for r in batch.rollouts], device=value_BT.device)
            return (
                nn.functional.binary_cross_entropy_with_logits(
                    value_BT.sum(-1) / mask_BT.sum(-1), correct_B, reduction="sum"
                ),
                len(correct_B),
                0.0,
            )
        old_N = trained_values([r.signals["model_value"] for r in batch.rollouts], mask_BT)
        target_N = trained_values([RETURNS[r] for r in batch.rollouts], mask_BT)
        weight_B = [CRITIC_WEIGHT.get(r, 1.0) for r in batch.rollouts]
        weight_N = torch.tensor(weight_B, device=value_BT.device)[:, None].expand_as(value_BT)[mask_BT]
        share_BT, number = mask_BT.float(), int(mask_BT.sum())
        if self.mean == "sequences":
            share_BT, number = share_BT / mask_BT.sum(-1, keepdim=True).clamp(min=1), len(weight_B)
        share_N, value_N = share_BT[mask_BT], value_BT[mask_BT]
        clipped = (value_clip_fraction(value_N, old_N, target_N, self.clip) * share_N).sum().item()
        loss_N = value_loss(value_N, old_N, target_N, self.clip)
        return (loss_N * weight_N * share_N).sum(), number, clipped


def trained_values(rows: Sequence[Sequence[float]], mask_BT: Tensor) -> Tensor:
    """(N,): the values at the tokens of the mask, from one row of numbers per rollout."""
    out_BT = torch.zeros(mask_BT.shape)
    for b, row in enumerate(rows):
        out_BT[b, : len(row)] = torch.as_tensor(row)
    return out_BT.to(mask_BT.device)[mask_BT]
