"""What no attempt solves is learned from a demonstration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.methods.common.stored_groups import rows_of
from vlrl.methods.core.rollout import written
from vlrl.methods.papers.luffy import demonstrations
from vlrl.registry import ConfigError, register
from vlrl.stages import ReplayBuffer
from vlrl.types import Group, Prompt

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("relift")
@dataclass(frozen=True)
class Relift(ReplayBuffer):
    """Prompts whose rollouts all have r <= threshold wait; once `size` of them do, their demonstrations join a step (source "expert") for term `nll`.

    A demonstration stands alone in its group, so its advantage is zero and only the term acts on it; the first `size` are used, the rest waits on.
    Paper: Ma et al. 2025 (ReLIFT), arXiv:2506.07527, algorithm 1; checked against relift/trainer.py (a buffer of all-failed prompts, cut to `size`,
    64 in the script). Deviates: the release takes a step of its own for them right after the step of reinforcement learning; here they share one,
    so that the term's coefficient sets their weight. The demonstration is the first that the row has.
    Edge: a failed row without a demonstration is counted and does not wait. Several ranks have buffers of their own, of ceil(size / ranks) each.
    State: the ids of the rows that wait, of the first rank.
    """

    size: int = 64
    threshold: float = 0.0
    waiting: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)  # row id -> its prompt, or None after a restart
    counts: dict[str, float] = field(init=False, default_factory=lambda: {"failed": 0.0, "without": 0.0, "used": 0.0}, repr=False, compare=False)
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size={self.size} must be at least 1: demonstrations per supervised step")

    def check(self, run: RunContext) -> None:
        if not any(term.name == "nll" for term in run.objective.loss_terms.values()):
            raise ConfigError("replay hard_buffer adds demonstrations, and nothing learns from them; add terms: {sft: {name: nll, source: expert}}")

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    @property
    def share(self) -> int:
        """This rank's part of `size`."""
        return -(-self.size // self.run.ranks)

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        self.wake()
        for group in groups:
            if len(group) and max(group.rewards) <= self.threshold:
                self.counts["failed"] += 1
                if demonstrations(group.row):
                    self.waiting[group.row.id] = group.prompt
                else:
                    self.counts["without"] += 1
        if len(self.waiting) < self.share:
            return list(groups)
        taken = [self.waiting.pop(key) for key in list(self.waiting)[: self.share]]
        self.counts["used"] += len(taken)
        return [*groups, *(self.demonstrated(prompt) for prompt in taken)]

    def demonstrated(self, prompt: Prompt) -> Group:
        """A group of a prompt's demonstration alone."""
        return Group(prompt, [written(prompt, demonstrations(prompt.row)[0], self.run)], id=f"{self.run.step}/hard/{prompt.row.id}")

    def wake(self) -> None:
        """Make the prompts of a checkpoint's rows again; rows that are gone are forgotten."""
        asleep = {key for key, prompt in self.waiting.items() if prompt is None}
        rows = rows_of(self.run, asleep) if asleep else {}
        for key in asleep:
            if key in rows:
                self.waiting[key] = self.run.prompt_template(rows[key])
            else:
                del self.waiting[key]

    def metrics(self) -> dict[str, tuple[float, float]]:
        """This step's failed groups, those among them without a demonstration, the demonstrations used, and what waits."""
        out = {f"hard/{name}": (value, 0.0) for name, value in self.counts.items()} | {"hard/waiting": (float(len(self.waiting)), 0.0)}
        self.counts.update(failed=0.0, without=0.0, used=0.0)
        return out

    def state_dict(self) -> dict[str, Any]:
        return {"waiting": list(self.waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waiting.clear()
        self.waiting.update(dict.fromkeys(state["waiting"]))
