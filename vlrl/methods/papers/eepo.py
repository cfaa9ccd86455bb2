"""The direction in which likely tokens become less likely.

Shapes: B rollouts, T completion tokens.

Half of a group is sampled, then the sampler forgets some of it for a moment, then the other half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlrl.methods.common.branching import Branching, entropy
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Prompt

if TYPE_CHECKING:
    from vlrl.context import RunContext


def complementary(logp_BT: Tensor, mask_BT: Tensor, eps: float) -> Tensor:
    """(B,): mean_t -log(1 - min(pi_t, 1 - eps)), which is large for what is likely."""
    p_BT = logp_BT.exp().clamp(max=1 - eps)
    return torch.where(mask_BT, -torch.log1p(-p_BT), 0.0).sum(-1) / mask_BT.sum(-1).clamp(min=1)


def gradient(groups: Sequence[Group], weights: Sequence[Tensor], run: RunContext, eps: float) -> list[Tensor]:
    """d L / d weights, L the mean of `complementary` over the rollouts."""
    total = [torch.zeros_like(p) for p in weights]
    number = sum(map(len, groups))
    for part in run.micro_batches(groups):
        batch = run.batch(part)
        with torch.enable_grad():
            logp_BT = run.policy.forward(batch)["logp"]
            mask_BT = (batch.loss_mask_BT & batch.mask_BT).to(logp_BT.device)
            loss = complementary(logp_BT, mask_BT, eps).sum() / number
        for sum_, grad in zip(total, torch.autograd.grad(loss, weights, allow_unused=True), strict=True):
            if grad is not None:
                sum_ += grad
    return total


@register("eepo")
@dataclass(frozen=True)
class Eepo(Branching):
    """n - n // 2 samples; theta' = theta - rate grad L while the policy's entropy is low; n // 2 samples of theta'; theta is what it was.

    L = mean over the first samples of mean_t -log(1 - pi(y_t)), pi at most 1 - eps, so that likely tokens lose most. "Low": the mean over the last
    `window` steps (this one with it) of the samples' mean token entropy is below `below`. What theta' sampled keeps its log-probs: weight `tis`
    corrects for them.
    Paper: Chen et al. 2025 (EEPO), arXiv:2510.05837, as in published notes on it (complementary loss, one step without momentum, rate 3e-3, window 3,
    threshold 0.3); the code could not be read. Deviates: entropies are those of the `alternatives` likeliest tokens, as the engine tells them; each
    rank forgets its own samples. Edge: a clipped token (pi > 1 - eps) has no gradient. Two loads of the weights a step for an engine of its own.
    """

    rate: float = 3e-3
    below: float = 0.3
    window: int = 3
    eps: float = 1e-4
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"entropies": [], "step": -1, "active": 0.0}, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.window < 1 or not 0 < self.eps < 1:
            raise ValueError(f"rate={self.rate} must be above 0, window={self.window} at least 1, eps={self.eps} between 0 and 1")

    def check(self, run: RunContext) -> None:
        if run.settings.loop != "synchronous":
            raise ConfigError(f"strategy eepo changes weights while it samples, which loop {run.settings.loop!r} may be training; use synchronous")
        if run.group_size < 2:
            raise ConfigError(f"strategy eepo: group_size {run.group_size} has no second half; use 2 or more")

    def setup(self, run: RunContext) -> None:
        if run.state_sharded:
            raise ConfigError("strategy eepo changes the weights of one rank for a moment; spread weights do not allow it: use neither FSDP nor ZeRO")

    def state_dict(self) -> dict[str, Any]:
        return {"entropies": list(self.state["entropies"]), "step": self.state["step"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.update(state)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = self.roots(prompts, [count - count // 2 for count in counts], run)
        low = self.low(groups, run)
        later = [count // 2 for count in counts]
        if low and any(later):
            with self.forgetting(groups, run):
                second = self.roots(prompts, later, run)
        else:
            second = self.roots(prompts, later, run)
        self.state["active"] = float(low)
        for group, more in zip(groups, second, strict=True):
            for rollout in more:
                rollout.info["after"] = low
            group.rollouts += more.rollouts
        return self.forget(groups)

    def low(self, groups: Sequence[Group], run: RunContext) -> bool:
        """Whether the entropy of the last steps is low; notes this step's, once."""
        tokens = [entropy(token) for group in groups for rollout in group for token in self.known(rollout, run)]
        entropies = self.state["entropies"]
        if tokens and self.state["step"] != run.step:
            entropies.append(sum(tokens) / len(tokens))
            del entropies[: -self.window]
            self.state["step"] = run.step
        return bool(entropies) and sum(entropies) / len(entropies) < self.below

    @contextmanager
    def forgetting(self, groups: Sequence[Group], run: RunContext) -> Iterator[None]:
        """One step away from these rollouts; afterwards the weights are what they were, bit for bit."""
        weights = [p for p in run.policy.model.parameters() if p.requires_grad]
        before = [p.detach().clone() for p in weights]
        try:
            steps = gradient([group for group in groups if len(group)], weights, run, self.eps)
            with torch.no_grad():
                for p, step in zip(weights, steps, strict=True):
                    p.sub_(step.to(p), alpha=self.rate)
            self.load(run)
            yield
        finally:
            with torch.no_grad():
                for p, value in zip(weights, before, strict=True):
                    p.copy_(value)
            self.load(run)

    def load(self, run: RunContext) -> None:
        """The present weights into the engine, and out of autocast's memory."""
        torch.clear_autocast_cache()
        run.engine.sync(run.policy)

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        """Whether the last step forgot."""
        return {"eepo/active": self.state["active"]}
