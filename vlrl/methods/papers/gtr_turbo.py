"""GTR-Turbo: the merged checkpoints of the running training are a free teacher of thoughts.

    gtr_turbo           callback: merges the checkpoints into the KL reference, by TIES or by averages
    gtr_turbo.guidance  token credit: the advantage less the reverse KL of the thought to the teacher

Paper: Wei et al. 2025 (GTR-Turbo), arXiv:2512.13043, sec. 3.2 and 3.4, read in published notes that have its
equations; the authors' code could not be had. TIES: Yadav et al. 2023, arXiv:2306.01708.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from vlrl.methods.core.callback import AverageState, ReferenceEMA
from vlrl.methods.core.token_credit import PerToken
from vlrl.methods.papers.gtr import thought_tokens
from vlrl.plugins.contexts import CallbackContext
from vlrl.plugins.registry import register
from vlrl.services.lazy import Tensor, no_grad, torch
from vlrl.types import Group, Rollout


def trimmed(change: Tensor, density: float) -> Tensor:
    """TIES' trim: the share `density` of the entries that are largest in size, at least one; the others 0.

    >>> trimmed(torch.tensor([0.1, -3.0, 2.0, 0.5]), 0.5).tolist()
    [0.0, -3.0, 2.0, 0.0]
    """
    kept = max(1, round(density * change.numel()))
    flat = torch.zeros_like(change).flatten()
    places = change.abs().flatten().topk(kept).indices
    flat[places] = change.flatten()[places]
    return flat.view_as(change)


@dataclass
class Elected:
    """What TIES needs of all checkpoints of one weight: per entry, the sums and the numbers of trimmed
    changes above and below 0."""

    above: Tensor
    below: Tensor
    ups: Tensor
    downs: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> Elected:
        return cls(*(torch.zeros_like(weight, dtype=torch.float32) for _ in range(4)))

    def add(self, change: Tensor) -> None:
        """Count one checkpoint's trimmed change."""
        self.above += change.clamp(min=0)
        self.below += change.clamp(max=0)
        self.ups += change > 0
        self.downs += change < 0

    def merged(self) -> Tensor:
        """Elect sign and merge: the mean of the changes that have the sign of the sum of all; 0 where that is
        0."""
        total = self.above + self.below
        up, down = self.above / self.ups.clamp(min=1), self.below / self.downs.clamp(min=1)
        return torch.where(total > 0, up, torch.where(total < 0, down, torch.zeros_like(total)))


@dataclass
class GtrTurboState(AverageState):
    """The merged weights (TIES: those that the phase began with), how many checkpoints they hold, and for
    TIES the sums over them by weight."""

    checkpoints: int = 1
    elected: dict[str, list[Tensor]] = field(default_factory=dict)


@register("gtr_turbo")
@dataclass(frozen=True)
class GtrTurbo(ReferenceEMA):
    """GTR-Turbo's merged teacher: after every `every` steps the weights theta_k are merged into the KL
    reference m.

        ties:  m = theta_0 + scale * sum_k [s_k agrees] s_k / n
               s_k = trim(theta_k - theta_0), the largest `density` of a weight's entries
        mean:  m_k = m_(k-1) + (theta - m_(k-1)) / (k + 1),   m_0 = theta_0
        ema:   m_k = decay m_(k-1) + (1 - decay) theta

    theta_0: the weights that the phase began with. TIES takes, per entry, the mean over the n changes whose
    sign is that of the sum; sums and numbers of positive and negative changes are enough, exactly. Paper:
    arXiv:2512.13043, sec. 3.2; TIES: arXiv:2306.01708, alg. 1 (density 0.2, scale 1). Ours: trimmed per
    weight tensor; in TIES all checkpoints weigh alike. Edge: until the first merge the reference is the
    initial policy. Raises ConfigError as `reference_ema` does. Logs the distance of policy and teacher.
    State: the merged weights, for TIES four float32 copies more.
    """

    state_class = GtrTurboState
    every: int = 1
    merge: Literal["ties", "mean", "ema"] = "ties"
    density: float = 0.2
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1 or not 0 < self.density <= 1 or self.scale <= 0:
            raise ValueError(
                f"every={self.every} must be at least 1, density={self.density} in (0, 1] and "
                f"scale={self.scale} above 0"
            )

    @no_grad
    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        state: GtrTurboState = self.state
        reference, now = run.policy.reference_state()["weights"], run.policy.model.state_dict()
        due = (run.phase_step + 1) % self.every == 0
        state.checkpoints += due
        squares = 0.0
        for name, weight in reference.items():
            if weight.is_floating_point():
                kept = state.average.setdefault(name, weight.float().clone()).to(weight.device)
                if due:
                    weight.copy_(self.merged(name, kept, now[name].float()))
                squares += float((now[name].float() - weight.float()).square().sum())
        return {"distance": squares**0.5, "checkpoints": float(state.checkpoints)}

    def merged(self, name: str, kept: Tensor, now: Tensor) -> Tensor:
        """The teacher's weight after one more checkpoint; `kept` is theta_0 for TIES, else the teacher's
        weight so far."""
        state: GtrTurboState = self.state
        if self.merge == "ties":
            sums = state.elected.get(name)
            elected = Elected.of(kept) if sums is None else Elected(*(part.to(kept.device) for part in sums))
            elected.add(trimmed(now - kept, self.density))
            state.elected[name] = [elected.above, elected.below, elected.ups, elected.downs]
            state.average[name] = kept
            return kept + self.scale * elected.merged()
        state.average[name] = kept.lerp_(
            now, 1 / state.checkpoints if self.merge == "mean" else 1 - self.decay
        )
        return state.average[name]


@register("gtr_turbo.guidance")
@dataclass(frozen=True)
class GtrTurboGuidance(PerToken):
    """GTR-Turbo's guidance by the teacher's probabilities: A' = A - coef RevKL, on every token of a rollout.

        RevKL = mean over the thought's tokens of max(0, log pi(t) - log m(t))

    pi is the policy that sampled, m the merged teacher (callback `gtr_turbo`, or any KL reference). The
    thought ends with the first </think>; a rollout without it has RevKL 0. Only thoughts are guided: actions
    stay free.
    Paper: arXiv:2512.13043, sec. 3.4 (clipping at 0 was the best of its estimators). Ours: the clip is per
    token. Edge: on the teacher itself A' = A, and so before `setup`, without a tokenizer. Units: nats per
    token.
    """

    coef: float = 1.0
    needs = ("ref_logp",)

    def __post_init__(self) -> None:
        if self.coef < 0:
            raise ValueError(f"coef={self.coef} must not be negative")

    def __call__(self, group: Group, advantages: Sequence[float]) -> list[list[float]]:
        rows = super().__call__(group, advantages)
        return [
            [a - self.coef * cost for a in row]
            for row, cost in zip(rows, map(self.divergence, group), strict=True)
        ]

    def divergence(self, rollout: Rollout) -> float:
        """RevKL of a rollout's thought."""
        count = thought_tokens(rollout, self.run.policy) if self.is_set_up else 0
        pairs = list(zip(rollout.logp, rollout.signals["ref_logp"], rollout.trained_mask))[:count]
        gaps = [max(0.0, own - teacher) for own, teacher, trained in pairs if trained]
        return sum(gaps) / len(gaps) if gaps else 0.0
