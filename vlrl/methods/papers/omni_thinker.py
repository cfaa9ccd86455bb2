"""Omni-Thinker: multi-task RL in the order of how little each task is forgotten, measured as backward
transfer.

Paper: Omni-Thinker, arXiv:2507.14783, sec. 3.3: BWT_i = accuracy of task i after later tasks less that
right after its own; tasks are trained from the least to the most forgettable. No released code was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vlrl.methods.common.correctness import check_heldout
from vlrl.plugins.contexts import CallbackContext, PhaseContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Callback, State
from vlrl.types import Group


@dataclass
class OmniThinkerState(State):
    """Held-out accuracy by task: the one at the last evaluation in which the task was trained (`after`), and
    the last one (`now`); `trained` are the tasks since the last evaluation."""

    after: dict[str, float] = field(default_factory=dict)
    now: dict[str, float] = field(default_factory=dict)
    trained: list[str] = field(default_factory=list)


def transfer(after: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Backward transfer of each task that was trained: its accuracy now less that after its own training."""
    return {task: now[task] - value for task, value in after.items() if task in now}


def order(transfers: Mapping[str, float]) -> list[str]:
    """Tasks from the least forgotten to the most forgotten one; ties by name."""
    return sorted(transfers, key=lambda task: (-transfers[task], task))


@register("omni_thinker")
@dataclass(frozen=True, kw_only=True)
class OmniThinker(Callback):
    """Omni-Thinker's backward transfer: every `every` steps the held-out accuracy of each task, and its
    change since the task was trained last; at the phase's end the order in which the tasks should be
    trained.

    Paper: arXiv:2507.14783, sec. 3.3. Logs `<task>` for each task that was trained before. The order is a
    warning of the run: sources of data.train in that order, with prompt_sampler `levels`, are the curriculum.
    Edge: needs held-out rows. A collective.
    """

    state_class = OmniThinkerState
    every: int = 20

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every={self.every} must be at least 1")

    def check(self, phase: PhaseContext) -> None:
        check_heldout(phase, "callbacks: 'omni_thinker'")

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        state = self.state
        state.trained = sorted({*state.trained, *(group.row.task for group in groups)})
        last = run.phase_step + 1 >= run.settings.steps
        if (run.phase_step + 1) % self.every and not last:
            return {}
        state.now = run.accuracy()
        state.after |= {task: state.now[task] for task in state.trained if task in state.now}
        state.trained = []
        found = transfer(state.after, state.now)
        if last:
            told = ", ".join(f"{task} {found[task]:+.3f}" for task in order(found))
            run.warn(f"backward transfer, the least forgotten first: {told}; order data.train like that")
        return found
