"""EEPO: sample, then forget; temporarily unlearns the first half of a group before the second half is
sampled.

`eepo` is a rollout strategy; the token weight `tis` corrects for the difference between the sampling policy
of the second half and the trained one.

Paper: Chen et al. 2025 (EEPO), arXiv:2510.05837, as in published notes on it (complementary loss, one step
without momentum, rate 3e-3, window 3, threshold 0.3); the code could not be read.
Deviates: entropies are those of the `alternatives` likeliest tokens, as the engine reports them; each rank
unlearns its own samples.

Shapes: B rollouts, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from vlrl.methods.common.branching import Branching, entropy
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import PhaseContext, SamplingContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import State, transient
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, Prompt

SECOND_HALF: Annotation[bool] = Annotation(
    "eepo.second_half",
    bool,
    hint="rollout: {name: eepo}",
    doc="on rollouts of the second half: whether the weights had unlearned the first half",
)


@dataclass
class EepoState(State):
    """Mean token entropies (nats) of the last `window` steps, the step of the last one, and whether the last
    call unlearned."""

    entropies: list[float] = field(default_factory=list)
    step: int = -1
    active: float = transient(0.0)


@register("eepo")
@dataclass(frozen=True)
class Eepo(Branching):
    """EEPO: n - n // 2 samples of theta, then n // 2 samples of theta' while the policy's entropy is low;
    theta is restored bit for bit.

        theta' = theta - rate grad L,  L = mean over the first samples of mean_t -log(1 - min(pi(y_t), 1 -
        eps))

    Likely tokens lose most. The entropy is low if the mean over the last `window` steps (with this one) of
    the samples' mean token entropy is below `entropy_threshold`. Samples of theta' keep their log-probs, for
    which the weight `tis` corrects.
    Edge: a clipped token (pi > 1 - eps) has no gradient. An engine with weights of its own loads them twice a
    step.
    """

    state_class = EepoState
    rate: float = 3e-3
    entropy_threshold: float = 0.3
    window: int = 3
    eps: float = 1e-4
    provides = (SECOND_HALF,)

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.window < 1 or not 0 < self.eps < 1:
            raise ValueError(
                f"rate={self.rate} must be above 0, window={self.window} at least 1, eps={self.eps} "
                "between 0 and 1"
            )

    def check(self, phase: PhaseContext) -> None:
        if phase.settings.loop != "synchronous":
            raise ConfigError(
                f"rollout eepo changes weights while it samples, which loop {phase.settings.loop!r} may be "
                "training; use loop: synchronous"
            )
        if phase.group_size < 2:
            raise ConfigError(
                f"rollout eepo: group_size {phase.group_size} has no second half; use 2 or more"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.state_sharded:
            raise ConfigError(
                "rollout eepo changes the weights of each rank on its own, which sharded weights do not "
                "allow; use neither FSDP nor ZeRO"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = self.sample_roots(prompts, [count - count // 2 for count in counts], run)
        low = self.entropy_is_low(groups, run)
        later = [count // 2 for count in counts]
        if low and any(later):
            with self.unlearned(groups, run):
                second = self.sample_roots(prompts, later, run)
        else:
            second = self.sample_roots(prompts, later, run)
        self.state.active = float(low)
        for group, more in zip(groups, second, strict=True):
            for rollout in more:
                SECOND_HALF.set(rollout, low)
            group.rollouts += more.rollouts
        return self.drop_alternatives(groups)

    def entropy_is_low(self, groups: Sequence[Group], run: SamplingContext) -> bool:
        """Whether the mean entropy of the last steps is below the threshold; adds this step's entropy
        once."""
        state = self.state
        tokens = [
            entropy(token)
            for group in groups
            for rollout in group
            for token in self.alternatives_of(rollout, run)
        ]
        if tokens and state.step != run.step:
            state.entropies = [*state.entropies, sum(tokens) / len(tokens)][-self.window :]
            state.step = run.step
        return bool(state.entropies) and sum(state.entropies) / len(state.entropies) < self.entropy_threshold

    @contextmanager
    def unlearned(self, groups: Sequence[Group], run: SamplingContext) -> Iterator[None]:
        """Weights one descent step away from these rollouts, also in the engine; afterwards they are restored
        bit for bit."""
        weights = [p for p in run.policy.model.parameters() if p.requires_grad]
        before = [p.detach().clone() for p in weights]
        try:
            steps = gradient([group for group in groups if len(group)], weights, run, self.eps)
            with torch.no_grad():
                for p, step in zip(weights, steps, strict=True):
                    p.sub_(step.to(p), alpha=self.rate)
            sync_engine(run)
            yield
        finally:
            with torch.no_grad():
                for p, value in zip(weights, before, strict=True):
                    p.copy_(value)
            sync_engine(run)

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        """Whether the last step unlearned."""
        return {"eepo/active": self.state.active}


def sync_engine(run: SamplingContext) -> None:
    """Load the current weights into the engine, and drop autocast's copies of them."""
    torch.clear_autocast_cache()
    run.engine.sync(run.policy)


def complementary(logp_BT: Tensor, mask_BT: Tensor, eps: float) -> Tensor:
    """(B,): the complementary loss mean_t -log(1 - min(pi_t, 1 - eps)), large for likely tokens."""
    p_BT = logp_BT.exp().clamp(max=1 - eps)
    return torch.where(mask_BT, -torch.log1p(-p_BT), 0.0).sum(-1) / mask_BT.sum(-1).clamp(min=1)


def gradient(
    groups: Sequence[Group], weights: Sequence[Tensor], run: SamplingContext, eps: float
) -> list[Tensor]:
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
