"""MENTOR: expert tokens at the places where the policy is uncertain, in a few rollouts of every prompt.

    mentor             rollout strategy: n rollouts of the policy, and `per_prompt` of a mixed policy
    mentor.advantage   advantage: GRPO's for the policy's own, max(R - mean, 0) w_t for the mixed ones

Paper: Selective Expert Guidance for Effective and Diverse Exploration in RL of LLMs (MENTOR),
arXiv:2510.04140. Numbers as in its release, by the catalogue of methods; the code itself could not be
opened, so the quantile and the cap are ours.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.methods.common.side_models import Continuation, SideModel, fitted
from vlrl.methods.core.advantage import GRPO
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import PhaseContext, SamplingContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import State, StepCounts, transient
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, Prompt, Request

MIXED: Annotation[bool] = Annotation(
    "mentor.mixed", bool, hint="rollout: {name: mentor}", doc="True on rollouts of the mixed policy"
)


@dataclass
class MentorState(StepCounts):
    """`entropies` are the last uncertain-or-not tokens' entropies (nats), for the quantile; `expert` is the
    expert."""

    entropies: list[float] = field(default_factory=list)
    expert: Any = transient()


@register("mentor")
@dataclass(frozen=True)
class Mentor(Independent):
    """MENTOR's mixed policy: z + strength (z_expert - z) at tokens whose entropy is above the larger of
    `floor` and the running `quantile` of the policy's entropies; z elsewhere.

    Each prompt has its own rollouts and `per_prompt` mixed ones, in one group, with the annotation MIXED.
    Their log-probs are the policy's old ones in the loss. Paper: arXiv:2510.04140, sec. 3: 8 and 4 rollouts;
    floor 1.5 nats. Deviates: quantile 0.95 over the last `window` tokens is ours. Logs the share of expert
    tokens, and `gain`, the mean of log p_expert - log p of the tokens drawn there (nats).

    Attributes:
        expert: A folder or hub id of a model with the policy's tokenizer; "start": the policy at the start
            of the phase.
    """

    state_class = MentorState
    expert: str = ""
    per_prompt: int = 4
    strength: float = 1.0
    floor: float = 1.5
    quantile: float = 0.95
    window: int = 4096
    provides = (MIXED,)

    def __post_init__(self) -> None:
        if self.per_prompt < 1 or not 0 <= self.quantile < 1 or self.window < 1:
            raise ValueError(
                f"per_prompt={self.per_prompt} and window={self.window} must be at least 1, "
                f"quantile={self.quantile} in [0, 1)"
            )

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if not self.expert:
            raise ConfigError(
                "rollout.expert: not set; name a model with the policy's tokenizer, or `start` for "
                "the policy at the "
                "start of the phase"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.expert = SideModel(run, self.expert, "rollout: 'mentor'")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        requests = []
        for place, prompt in enumerate(prompts):
            blend = Blend(self, Continuation(self.state.expert, prompt, run))
            sampling = replace(run.sampling(prompt, counts[place]), processors=(blend,))
            requests.append(Request(prompt, sampling, self.per_prompt, self.seeds(run, prompt), tag=place))
        for completion in sorted(run.engine.generate(requests), key=lambda one: one.index):
            rollout = run.make_rollout(completion)
            rollout.source = "mixed"
            MIXED.set(rollout, True)
            groups[completion.request.tag].rollouts.append(rollout)
        return groups

    def threshold(self) -> float:
        """The entropy (nats) above which the expert is asked."""
        known = sorted(self.state.entropies)
        return max(self.floor, known[int(self.quantile * len(known))] if known else 0.0)

    def metrics(self) -> dict[str, tuple[float, float]]:
        return {
            "mentor/expert_share": self.state.share("asked", "tokens"),
            "mentor/gain": self.state.share("gain", "drawn"),
        }


class Blend:
    """The logits processor of one prompt's mixed rollouts."""

    def __init__(self, settings: Mentor, expert: Continuation) -> None:
        self.settings, self.expert = settings, expert
        self.last: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, ids: Sequence[int], logits_V: Tensor) -> Tensor:
        state, key = self.settings.state, tuple(ids)
        if key and (gap_V := self.last.pop(key[:-1], None)) is not None:
            state.add(gain=float(gap_V[key[-1]]), drawn=1.0)
        own_V = torch.log_softmax(logits_V, -1)
        entropy = float(-torch.special.xlogy(own_V.exp(), own_V.exp()).sum())
        asked = entropy > self.settings.threshold()
        state.entropies = [*deque(state.entropies, self.settings.window - 1), entropy]
        state.add(tokens=1.0, asked=float(asked))
        if not asked:
            return logits_V
        expert_V = torch.log_softmax(fitted(self.expert(key), logits_V), -1)
        self.last[key] = expert_V - own_V
        return logits_V + self.settings.strength * (expert_V - own_V)


@dataclass
class MentorAdvantageState(State):
    """The number of steps so far."""

    steps: int = 0


@register("mentor.advantage")
@dataclass(frozen=True, kw_only=True)
class MentorAdvantage(GRPO):
    """MENTOR's advantage: A = (R - mean) / (std + eps) over the policy's own rollouts; of a mixed one
    max(R - mean, 0) w_t, mean over the policy's own, w_t = max(0, 1 - t / decay).

    The sum over a prompt's mixed rollouts is at most `cap` (scaled down above it). Paper: arXiv:2510.04140;
    w_t reaches 0 after 120 steps. Deviates: the cap's size is ours. Edge: a group without own rollouts has
    mean 0.
    """

    state_class = MentorAdvantageState
    decay: int = 120
    cap: float = 4.0
    requires = (MIXED,)

    def end_step(self, run: Any) -> None:
        super().end_step(run)
        self.state.steps += 1

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        weight = max(0.0, 1.0 - self.state.steps / self.decay)
        own = [[r for r in group if not MIXED.get(r)] for group in groups]
        plain = super().__call__([Group(group.prompt, rollouts) for group, rollouts in zip(groups, own)])
        out = []
        for group, rollouts, values in zip(groups, own, plain, strict=True):
            mean = sum(r.reward for r in rollouts) / len(rollouts) if rollouts else 0.0
            mixed = {id(r): max(r.reward - mean, 0.0) * weight for r in group if MIXED.get(r)}
            total = sum(mixed.values())
            scale = min(1.0, self.cap / total) if total else 1.0
            flat = iter(values)
            out.append([mixed[id(r)] * scale if MIXED.get(r) else next(flat) for r in group])
        return out
