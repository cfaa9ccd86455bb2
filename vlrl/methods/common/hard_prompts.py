"""Prompts that all rollouts fail, and their demonstrations: a replay buffer, and what other buffers of such
prompts share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.methods.common.correctness import success_rate
from vlrl.methods.common.demonstrations import demonstrations, expert_rollout
from vlrl.methods.common.stored_groups import rows_of
from vlrl.methods.core.loss_term import NLL
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import ReplayBuffer, StepCounts
from vlrl.types import Group, Prompt


def demonstration_group(prompt: Prompt, run: StageContext) -> Group:
    """A group of a prompt's first demonstration alone."""
    return Group(
        prompt,
        [expert_rollout(prompt, demonstrations(prompt.row)[0], run)],
        id=f"{run.step}/hard/{prompt.row.id}",
    )


def restore_prompts(waiting: dict[str, Prompt | None], run: StageContext) -> None:
    """After a restart: make the prompts of the saved rows (None) again; rows that are no longer in the data
    leave the buffer."""
    saved = {key for key, prompt in waiting.items() if prompt is None}
    rows = rows_of(run, saved) if saved else {}
    for key in saved:
        if key in rows:
            waiting[key] = run.prompt_template(rows[key])
        else:
            del waiting[key]


@dataclass
class HardPromptsState(StepCounts):
    """The waiting prompts by row id (None: after a restart, until the prompt is made again). Saved are the
    row ids."""

    waiting: dict[str, Prompt | None] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        return {"waiting": list(self.waiting)}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        self.waiting = dict.fromkeys(values["waiting"])


@dataclass(frozen=True)
class HardPrompts(ReplayBuffer):
    """Buffer of hard prompts: once `size` prompts have failed, their demonstrations join a step (source
    "expert").

    A prompt has failed if none of its rollouts is correct. A demonstration is alone in its group, so its
    advantage is zero and only the loss term acts on it. It is the first that the row has. The first `size`
    prompts are used, the rest stays in the buffer.
    Edge: a failed row without a demonstration is counted and does not enter the buffer. Each rank has its own
    buffer, of ceil(size / ranks) prompts. State: the row ids of the buffer, of the first rank.
    """

    state_class = HardPromptsState
    size: int = 64

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size={self.size} must be at least 1: demonstrations per supervised step")

    def check(self, phase: PhaseContext) -> None:
        if not any(isinstance(term, NLL) for term in phase.objective.loss_terms.values()):
            raise ConfigError(
                f"replay: {self.name!r} adds demonstrations, and no loss term trains on them; add "
                f"loss_terms: {{sft: {{name: nll, source: expert}}}}"
            )

    @property
    def rank_size(self) -> int:
        """This rank's part of `size`."""
        return -(-self.size // self.run.ranks)

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        restore_prompts(self.state.waiting, self.run)
        state: HardPromptsState = self.state
        for group in groups:
            if len(group) and not success_rate(group.rollouts):
                state.add(failed=1)
                if demonstrations(group.row):
                    state.waiting[group.row.id] = group.prompt
                else:
                    state.add(without=1)
        if len(state.waiting) < self.rank_size:
            return list(groups)
        used = [state.waiting.pop(key) for key in list(state.waiting)[: self.rank_size]]
        state.add(used=len(used))
        return [*groups, *(demonstration_group(prompt, self.run) for prompt in used if prompt is not None)]

    def metrics(self) -> dict[str, tuple[float, float]]:
        """The step's failed groups, those of them without a demonstration, the demonstrations used, and the
        prompts in the buffer."""
        waiting = (float(len(self.state.waiting)), 0.0)
        return {**self.state.totals("hard", "failed", "without", "used"), "hard/waiting": waiting}
