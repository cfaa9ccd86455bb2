"""Callbacks that act after a step: averages and resets of weights, reference and optimizer; evaluation;
diagnostics.

ema               exponential moving average of the weights
reference_ema     the KL reference as a moving average of the policy (T1)
reference_reset   resets the KL reference to the current policy (ProRL)
optimizer_reset   clears the optimizer's moments (Kimi k1.5)
engine_mismatch   how far the trainer's log-probs are from the engine's
eval              benchmark suites during training
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vlrl.functional import effective_sample_size
from vlrl.methods.common.correctness import check_heldout, heldout_accuracy
from vlrl.plugins.contexts import CallbackContext, PhaseContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Callback, State
from vlrl.services.lazy import no_grad, torch
from vlrl.types import Group


@dataclass
class AverageState(State):
    """The moving average by parameter name, float32."""

    average: dict[str, torch.Tensor] = field(default_factory=dict)


@register("ema")
@dataclass(frozen=True, kw_only=True)
class EMA(Callback):
    """Exponential moving average of the trained weights, after every step: theta_ema <- decay theta_ema + (1
    - decay) theta.

    The policy itself is not changed; `swap_at_end` puts the average into it after the last step of the phase,
    so that the final evaluation and checkpoint are of the average. Logs the distance between the two.
    Paper: Polyak and Juditsky 1992; as a training device arXiv:1703.01780, eq. 1. Edge: the average starts as
    the weights after the first step. Raises ConfigError for sharded weights. Shapes: as the weights, float32.
    State: the average.
    """

    state_class = AverageState
    decay: float = 0.99
    swap_at_end: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {self.decay}")

    def check(self, phase: PhaseContext) -> None:
        if self.swap_at_end and phase.settings.steps < 1:
            raise ConfigError(
                "callbacks: 'ema' with swap_at_end: true needs at least one step; set steps, or "
                "swap_at_end: false"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.params_sharded:
            raise ConfigError(
                "callbacks: 'ema' averages whole weights, and FSDP and ZeRO-3 shard them; use DDP or "
                "ZeRO-2, or drop the callback"
            )

    @no_grad
    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        average = self.state.average
        trained = {name: p for name, p in run.policy.model.named_parameters() if p.requires_grad}
        for name, parameter in trained.items():
            now = parameter.detach().float()
            average[name] = (
                now.clone()
                if name not in average
                else average[name].to(now.device).lerp_(now, 1 - self.decay)
            )
        distance = (
            sum(float((average[name] - p.float()).square().sum()) for name, p in trained.items()) ** 0.5
        )
        if self.swap_at_end and run.phase_step + 1 >= run.settings.steps:
            for name, parameter in trained.items():
                parameter.copy_(average[name])
            run.engine.sync(run.policy)
        return {"distance": distance}


@register("reference_ema")
@dataclass(frozen=True)
class ReferenceEMA(Callback):
    """T1's moving reference: theta_ref <- decay theta_ref + (1 - decay) theta after every step. Logs the
    distance of policy and reference.

    Paper: Hou et al. 2025 (T1), arXiv:2501.11651, from published notes on it (an exponential moving average
    as the reference); `decay` is ours. The average is kept in float32, because a reference in bfloat16 would
    not move by small steps. Raises ConfigError where nothing reads the reference, and for adapters and
    sharded weights, for which no copy is kept that could move. State: the average.
    """

    state_class = AverageState
    decay: float = 0.99

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay={self.decay} must be in [0, 1)")

    def check(self, phase: PhaseContext) -> None:
        if "ref_logp" not in phase.aux_tensors:
            raise ConfigError(
                "callbacks: 'reference_ema' moves the reference, but nothing reads it; add loss_terms: "
                "{kl: {name: kl}}, or drop the callback"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.state_sharded or run.policy.has_adapter:
            raise ConfigError(
                "callbacks: 'reference_ema' moves a copy of all weights, which neither adapters nor "
                "sharded weights have; train all weights, on each rank; for sharded weights reference_reset "
                "moves the reference as well"
            )

    @no_grad
    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        reference = run.policy.reference_state()["weights"]
        now, squares = run.policy.model.state_dict(), 0.0
        for name, weight in reference.items():
            if weight.is_floating_point():
                average = self.state.average.setdefault(name, weight.float().clone()).to(weight.device)
                self.state.average[name] = average.lerp_(now[name].float(), 1 - self.decay)
                weight.copy_(average)
                squares += float((now[name].float() - average).square().sum())
        return {"distance": squares**0.5}


@dataclass
class ReferenceResetState(State):
    """The best held-out accuracy since the last reset, None before the first evaluation, and the evaluations
    without a gain since."""

    best: float | None = None
    waited: int = 0


@register("reference_reset")
@dataclass(frozen=True)
class ReferenceReset(Callback):
    """ProRL's reference reset: pi_ref <- pi every `every` steps, or when the held-out accuracy has not risen
    in `patience` evaluations in a row; with `at_start` when the phase begins.

    The held-out accuracy is evaluated every `eval_every` steps and must exceed the best one since the last
    reset. 0 switches `every` or `eval_every` off. `reset_optimizer` clears the optimizer's moments too.
    Paper: Liu et al. 2025 (ProRL), arXiv:2505.24864, sec. 3.2: hard resets of the reference and of the
    optimizer when validation stalls. The pace is vlrl's: theirs were by hand. Edge: an
    evaluation in which no task could be scored is ignored; with an adapter nothing moves (a warning). Raises
    ConfigError where nothing reads the reference.
    """

    state_class = ReferenceResetState
    every: int = 0
    eval_every: int = 0
    patience: int = 2
    reset_optimizer: bool = True
    at_start: bool = False

    def check(self, phase: PhaseContext) -> None:
        if "ref_logp" not in phase.aux_tensors:
            raise ConfigError(
                "callbacks: 'reference_reset' resets the reference, but nothing reads it; add loss_terms: "
                "{kl: {name: kl}}, or drop the callback"
            )
        if not self.every and not self.eval_every and not self.at_start:
            raise ConfigError(
                "callbacks: 'reference_reset' with every: 0, eval_every: 0 and at_start: false never resets; "
                "set one of them"
            )
        if self.eval_every:
            check_heldout(phase, "callbacks: 'reference_reset'")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.policy.has_adapter:
            run.warn(
                "callbacks: 'reference_reset' moves no reference, which is the model without the adapter; "
                "train all weights (trainable.name=full), or merge the adapter between two runs"
            )
        if self.at_start:
            run.policy.keep_reference(renew=True)

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        state, steps = self.state, run.phase_step + 1
        due = bool(self.every) and steps % self.every == 0
        if self.eval_every and steps % self.eval_every == 0:
            accuracy = heldout_accuracy(run)
            if accuracy is not None:
                risen = state.best is None or accuracy > state.best
                state.best, state.waited = (accuracy, 0) if risen else (state.best, state.waited + 1)
            due = due or state.waited >= self.patience
        if due:
            run.policy.keep_reference(renew=True)
            state.best, state.waited = None, 0
            if self.reset_optimizer:
                run.optimizer.state.clear()
        return {"reset": float(due)}


@register("optimizer_reset")
@dataclass(frozen=True)
class OptimizerReset(Callback):
    """Kimi k1.5's optimizer reset: clears the optimizer's moments after every `every`-th step.

    Paper: Kimi Team 2025 (k1.5), arXiv:2501.12599, sec. 2.3.2: each iteration of mirror descent is a new
    problem.
    """

    every: int = 1

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        if (run.phase_step + 1) % max(self.every, 1) == 0:
            run.optimizer.state.clear()
        return {}


@register("engine_mismatch")
@dataclass(frozen=True)
class EngineMismatch(Callback):
    """The mismatch of trainer and engine: d_t = log pi_trainer(y_t) - log pi_engine(y_t) (nats), over the
    trained tokens of a step.

    Logs mean = mean |d|, max = max |d|, kl = mean(e^d - 1 - d) (the k3 estimate of KL(engine || trainer)),
    ess = (sum w)^2 / (n sum w^2) with w = e^d, in (0, 1]: the share of tokens that importance weighting would
    leave; seq_ess the same with w of whole rollouts. vlrl original (k3: Schulman 2020; effective sample size:
    Kong 1992). Edge: no numbers without rollouts of the engine. Costs one pass without gradient per step
    where old log-probs are not computed anyway.
    """

    needs = ("old_logp",)

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        rows = []
        for rollout in (
            r
            for group in groups
            for r in group
            if r.source == "policy" and r.logp and "old_logp" in r.signals
        ):
            gap_T = torch.tensor(rollout.signals["old_logp"], dtype=torch.float64) - torch.tensor(
                rollout.logp, dtype=torch.float64
            )
            rows.append(gap_T if rollout.loss_mask is None else gap_T[torch.tensor(rollout.loss_mask)])
        if not rows or not sum(map(len, rows)):
            return {}
        gap_N = torch.cat(rows)
        return {
            "mean": gap_N.abs().mean().item(),
            "max": gap_N.abs().max().item(),
            "kl": (torch.expm1(gap_N) - gap_N).mean().item(),
            "ess": effective_sample_size(gap_N).item(),
            "seq_ess": effective_sample_size(torch.stack([row.sum() for row in rows])).item(),
        }
