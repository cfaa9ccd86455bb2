"""A slowly moving average of the weights.

Benchmark suites while training runs.

How far the trainer's log-probs are from the engine's, in numbers for the log.

An optimizer without a past.

A reference that moves on.

A reference that follows the policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from vlrl.functional import effective_sample_size
from vlrl.methods.common.held_out import accuracy, check_heldout
from vlrl.registry import ConfigError, register
from vlrl.stages import Callback
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("ema")
@dataclass(frozen=True, kw_only=True)
class EMA(Callback):
    """theta_ema <- decay theta_ema + (1 - decay) theta, after every step, over the trained weights; the policy itself is not changed.

    Paper: Polyak and Juditsky 1992; as a training device arXiv:1703.01780, eq. 1. `swap_at_end` puts the average into the policy after the
    last step of the phase, so that the final evaluation and checkpoint are of the average. Edge: the average starts as the weights after the
    first step. Raises ConfigError for weights spread over ranks. Shapes: as the weights, float32. It survives a restart.
    """

    decay: float = 0.99
    swap_at_end: bool = True
    average: dict[str, torch.Tensor] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {self.decay}")

    def check(self, run: Any) -> None:
        if self.swap_at_end and run.settings.steps < 1:
            raise ConfigError("callbacks.ema: swap_at_end needs at least one step")

    def setup(self, run: Any) -> None:
        if run.params_sharded:
            raise ConfigError(
                "callbacks: ema averages whole weights, and FSDP and ZeRO-3 spread them over ranks; use DDP or ZeRO-2, or drop the callback"
            )

    @torch.no_grad()
    def __call__(self, run: Any, groups: Sequence[Group]) -> dict[str, float]:
        trained = {name: p for name, p in run.policy.model.named_parameters() if p.requires_grad}
        for name, parameter in trained.items():
            now = parameter.detach().float()
            self.average[name] = now.clone() if name not in self.average else self.average[name].to(now.device).lerp_(now, 1 - self.decay)
        far = sum(float((self.average[name] - p.float()).square().sum()) for name, p in trained.items()) ** 0.5
        if self.swap_at_end and run.phase_step + 1 >= run.settings.steps:
            for name, parameter in trained.items():
                parameter.copy_(self.average[name])
            run.engine.sync(run.policy)
        return {"ema/distance": far}

    def state_dict(self) -> dict[str, Any]:
        return {"average": dict(self.average)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average.clear()
        self.average.update(state["average"])


@register("eval")
@dataclass(frozen=True)
class Eval(Callback):
    """After every `every`-th step (counted over all phases), draws responses to `suites` with the run's engine and scores them by `profiles`.

    Metrics: <suite>/<profile>, with /low and /high of its interval; figures and responses go to `<output>/eval/step-<n>`. What a step's
    journal holds is not drawn again, so a restart in the middle goes on. All processes draw, each its share.
    vlrl original. `data`, `limit`, `max_tokens`, `protocol` as in `vlrl eval`; `samples` above 1 need a `temperature`. Edge: a row whose
    media are broken counts as wrong. Units: scores in [0, 1].
    """

    suites: tuple[str, ...] = ()
    every: int = 50
    profiles: tuple[str, ...] = ("official", "vlrl")
    data: str = "auto"
    media: str = ""
    limit: int = 0
    samples: int = 1
    temperature: float = 0.0
    max_tokens: int = 0
    protocol: str = "direct"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.suites:
            raise ConfigError("callbacks.eval.suites: name at least one suite (`vlrl eval suites` lists them)")
        if self.every < 1:
            raise ConfigError(f"callbacks.eval.every: {self.every} must be at least 1")

    def check(self, run: RunContext) -> None:
        run.suites.check(self)  # unknown suites, profiles and unreadable data stop the run before it starts

    def __call__(self, run: RunContext, groups: Sequence[Group]) -> dict[str, float]:
        if run.step % self.every:
            return {}
        return run.suites.evaluate(self, run)


@register("engine_mismatch")
@dataclass(frozen=True)
class EngineMismatch(Callback):
    """d_t = log pi_trainer(y_t) - log pi_engine(y_t) (nats), over the trained tokens of a step.

    mean = mean |d|, max = max |d|, kl = mean(e^d - 1 - d) (the k3 estimate of KL(engine || trainer)), ess = (sum w)^2 / (n sum w^2) with w = e^d,
    in (0, 1]: the share of tokens that importance weighting would leave; seq_ess the same with w of whole rollouts.
    vlrl original (k3: Schulman 2020; effective sample size: Kong 1992). Edge: nothing sampled by an engine gives no numbers.
    Costs one pass without gradient per step where old log-probs are not computed anyway.
    """

    needs = ("old_logp",)

    def __call__(self, run: RunContext, groups: Sequence[Group]) -> dict[str, float]:
        rows = []
        for rollout in (r for group in groups for r in group if r.source == "policy" and r.logp and "old_logp" in r.signals):
            gap_T = torch.tensor(rollout.signals["old_logp"], dtype=torch.float64) - torch.tensor(rollout.logp, dtype=torch.float64)
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


@register("optimizer_reset")
@dataclass(frozen=True)
class OptimizerReset(Callback):
    """Forgets the optimizer's moments after every `every`-th step.

    Paper: Kimi Team 2025 (k1.5), arXiv:2501.12599, sec. 2.3.2: each iteration of mirror descent is a new problem.
    """

    every: int = 1

    def __call__(self, run: RunContext, groups: Sequence[Group]) -> dict[str, float]:
        due = (run.phase_step + 1) % max(self.every, 1) == 0
        if due:
            run.optimizer.state.clear()
        return {}


@register("reference_reset")
@dataclass(frozen=True)
class ReferenceReset(Callback):
    """pi_ref <- pi every `every` steps, and where the held-out accuracy, looked at every `look` steps, has not risen for `patience` looks in a row.

    0 switches either off. Risen is above the best since the last reset. `reset_optimizer` forgets the optimizer's moments too.
    Paper: Liu et al. 2025 (ProRL), arXiv:2505.24864, sec. 3.2: hard resets of the reference and of the optimizer when validation stalls.  The pace
    is vlrl's: the paper's resets were made by hand.  Raises ConfigError where nothing reads the reference.
    """

    every: int = 0
    look: int = 0
    patience: int = 2
    reset_optimizer: bool = True
    state: dict[str, float] = field(init=False, default_factory=lambda: {"best": -math.inf, "waited": 0}, repr=False, compare=False)

    def check(self, run: RunContext) -> None:
        if "ref_logp" not in run.aux_tensors:
            raise ConfigError(
                "callbacks: reference_reset moves the reference, but nothing reads it; add a term: {kl: {name: kl}}, or drop the callback"
            )
        if not self.every and not self.look:
            raise ConfigError("callbacks: reference_reset with every: 0 and look: 0 never resets; give one of them")
        if self.look:
            check_heldout(run, "callbacks: reference_reset")

    def __call__(self, run: RunContext, groups: Sequence[Group]) -> dict[str, float]:
        done = run.phase_step + 1
        due = bool(self.every) and done % self.every == 0
        if self.look and done % self.look == 0:
            now = accuracy(run)
            better = now > self.state["best"]
            self.state.update(best=max(now, self.state["best"]), waited=0 if better else self.state["waited"] + 1)
            due = due or self.state["waited"] >= self.patience
        if due:
            run.policy.keep_reference(renew=True)
            self.state.update(best=-math.inf, waited=0)
            if self.reset_optimizer:
                run.optimizer.state.clear()
        return {"reset": float(due)}

    def state_dict(self) -> dict[str, Any]:
        return {"best": None if self.state["best"] == -math.inf else self.state["best"], "waited": self.state["waited"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.update(best=-math.inf if state["best"] is None else state["best"], waited=state["waited"])


@register("reference_ema")
@dataclass(frozen=True)
class ReferenceEMA(Callback):
    """theta_ref <- decay theta_ref + (1 - decay) theta after every step: the KL is to where the policy was of late.

    Paper: Hou et al. 2025 (T1), arXiv:2501.11651, from published notes on it (an exponential moving average as the reference); `decay` is ours. The
    average is kept in float32, so that a reference in bfloat16 does not stand still. Raises ConfigError where nothing reads the reference, and for
    adapters and weights spread over ranks, which have no copy of their own to move. State: the average.
    """

    decay: float = 0.99
    average: dict[str, torch.Tensor] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay={self.decay} must be in [0, 1)")

    def check(self, run: RunContext) -> None:
        if "ref_logp" not in run.aux_tensors:
            raise ConfigError(
                "callbacks: reference_ema moves the reference, but nothing reads it; add a term: {kl: {name: kl}}, or drop the callback"
            )

    def setup(self, run: RunContext) -> None:
        if run.state_sharded or hasattr(run.policy.model, "disable_adapter"):
            raise ConfigError(
                "callbacks: reference_ema moves a copy of all weights, which neither adapters nor weights spread over ranks have; "
                "use reference_reset, or train all weights on each rank"
            )

    @torch.no_grad()
    def __call__(self, run: RunContext, groups: Sequence[Group]) -> dict[str, float]:
        reference = run.policy.reference_state()["weights"]
        now, far = run.policy.model.state_dict(), 0.0
        for name, held in reference.items():
            if held.is_floating_point():
                average = self.average.setdefault(name, held.float().clone()).to(held.device)
                self.average[name] = average.lerp_(now[name].float(), 1 - self.decay)
                held.copy_(average)
                far += float((now[name].float() - average).square().sum())
        return {"distance": far**0.5}

    def state_dict(self) -> dict[str, Any]:
        return {"average": dict(self.average)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average.clear()
        self.average.update(state["average"])
