"""ERPO: residual prompts (all rollouts correct) keep a training signal, and are sampled at a higher
temperature the next time.

    erpo               sampling policy: the temperature of a prompt rises while it is residual
    erpo.reactivated   advantage: GRPO's, with a pseudo negative reward in groups that are all correct

Paper: Liu et al. 2025 (ERPO), arXiv:2511.04800: reactivated training signals of residual prompts, and a
history per prompt with a temperature that rises for prompts that were solved by all, up to a highest one. The
code that the paper names (DawnLIU35/ERPO) could not be had: that the rise is linear, its size, that a wrong
rollout sets the count back to 0, and one pseudo reward of 0 per group are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlrl.methods.core.advantage import GRPO
from vlrl.methods.core.sampling import Plain
from vlrl.plugins.contexts import StepContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import State, transient
from vlrl.services.lazy import torch
from vlrl.types import Group, Prompt, Sampling

KEY = "erpo"  # of a row's memory in the run's history: the count c


@dataclass
class ErpoState(State):
    """Of the last step: groups whose rollouts were all correct, and all groups."""

    residual: float = transient(0.0)
    groups: float = transient(0.0)


@register("erpo")
@dataclass(frozen=True)
class Erpo(Plain):
    """ERPO: the temperature of a prompt rises with the number of its visits in a row on which all rollouts
    were correct.

        T = min(temperature + rise c, max_temperature)

    c is in the run's history, so it survives a restart; all ranks count alike. Edge: several groups of a row
    in one step count once each; without a run (before `setup`) c is 0.
    """

    state_class = ErpoState
    rise: float = 0.1
    max_temperature: float = 1.5
    visits = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            not isinstance(self.temperature, (int, float))
            or not 0 < self.temperature <= self.max_temperature
            or self.rise <= 0
        ):
            raise ValueError(
                f"temperature={self.temperature}, max_temperature={self.max_temperature}, "
                f"rise={self.rise}: 0 < temperature <= max_temperature and "
                "0 < rise are needed"
            )

    def __call__(self, prompt: Prompt, attempt: int) -> Sampling:
        count = self.run.history.get(prompt.row.id, {}).get(KEY, 0) if self.is_set_up else 0
        plain = super().__call__(prompt, attempt)
        return replace(
            plain, temperature=min(plain.temperature_at(0) + self.rise * count, self.max_temperature)
        )

    def end_step(self, run: StepContext) -> None:
        state = self.state
        state.residual = state.groups = 0.0
        for group in run.answered_groups:
            own = [rollout.correct for rollout in group if rollout.source == "policy"]
            if own:
                memory = run.history.setdefault(group.row.id, {})
                memory[KEY] = memory.get(KEY, 0) + 1 if all(own) else 0
                state.residual += all(own)
                state.groups += 1

    def metrics(self) -> dict[str, tuple[float, float]]:
        """The share of the step's groups whose rollouts were all correct."""
        return {"erpo/residual": (self.state.residual, self.state.groups)}


@register("erpo.reactivated")
@dataclass(frozen=True)
class ErpoReactivated(GRPO):
    """ERPO's reactivated signal: GRPO's advantage; in a group whose rollouts are all correct, that of the
    rewards and a pseudo negative one.

        A_i = (r_i - mean R) / (std R + eps),  R = {r_1 .. r_n, pseudo}

    The pseudo reward has no rollout. A group filter must keep these groups (accuracy_range with high: 1).
    Paper: arXiv:2511.04800; the form is ours. Edge: groups of one rollout, and all other groups, are GRPO's.
    """

    pseudo: float = 0.0

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        advantages = super().__call__(groups)
        for place, group in enumerate(groups):
            if len(group) > 1 and all(rollout.correct for rollout in group):
                rewards = torch.tensor([*group.rewards, self.pseudo], dtype=torch.float64)
                scale = float(rewards.std(unbiased=self.unbiased)) + self.eps if self.scale != "none" else 1.0
                advantages[place] = [(reward - float(rewards.mean())) / scale for reward in group.rewards]
        return advantages
