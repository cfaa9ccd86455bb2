"""The trained policy's right answers are kept, and the policy goes back to where it began.

What an earlier phase kept, in place of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from vlrl.registry import ConfigError, register
from vlrl.stages import Callback, RolloutStrategy
from vlrl.types import Group, Prompt, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext

KEY = "re_distillation"


@register("re_distillation.keep_correct")
@dataclass(frozen=True)
class ReDistillationKeepCorrect(Callback):
    """The first right rollout of each prompt of the phase's last `last` steps goes into the run's history; `most` at most, 0 for all.

    `go_back`: after the phase's last step the policy has the weights that the phase began with. Strategy `kept` trains on what was kept.
    Paper: Chen et al. 2025 (Re-distillation), arXiv:2505.17988; checked against KK_re_distillation.py of the release: the last 11 steps' rollouts,
    the first right one per question, 1000 of them, then supervised training of the base model. Deviates: the first `most` instead of a random choice.
    Right means a reward above `threshold`. Every rank keeps what all ranks found. With `go_back` the weights at the beginning are held
    in memory. Raises ConfigError for adapters and for weights that are spread over ranks, which have no such copy.
    """

    last: int = 11
    most: int = 1000
    threshold: float = 0.5
    go_back: bool = True
    held: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        if not self.go_back:
            return
        if run.state_sharded or hasattr(run.policy.model, "disable_adapter"):
            raise ConfigError("callbacks: keep_right goes back to a copy of all weights, which neither adapters nor weights spread over ranks have; "
                              "set go_back: false and start a run of its own on what was kept")  # fmt: skip
        run.policy.keep_reference()
        self.held["policy"] = run.policy

    def state_dict(self) -> dict[str, Any]:
        return self.held["policy"].reference_state() if self.held else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.held:
            self.held["policy"].load_reference(state)

    def __call__(self, run: RunContext, groups: Sequence[Group]) -> dict[str, float]:
        left = run.settings.steps - run.phase_step  # this step included
        kept = sum(KEY in memory for memory in run.history.values())
        if left <= self.last:
            for group in groups:
                right = next((rollout for rollout in group if rollout.source == "policy" and rollout.reward > self.threshold), None)
                if right is not None and KEY not in run.history.get(group.row.id, {}) and (kept < self.most or not self.most):
                    run.history.setdefault(group.row.id, {})[KEY] = {"ids": list(right.ids), "text": right.text}
                    kept += 1
        if left <= 1 and self.go_back:
            with torch.no_grad():
                run.policy.model.load_state_dict(run.policy.reference_state()["weights"])
            run.engine.sync(run.policy)
        return {"kept": float(kept)}


@register("re_distillation")
@dataclass(frozen=True)
class ReDistillation(RolloutStrategy):
    """y = the rollout that callback `keep_right` kept of the row (source "kept"), one per prompt; no engine is asked.

    Paper: Chen et al. 2025 (Re-distillation), arXiv:2505.17988: fine-tuning on samples of the trained policy. It is scored like any rollout.
    Edge: a row of which nothing was kept gives an empty group, which is counted and replaced by the next row.
    """

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = []
        for prompt in prompts:
            item = run.history.get(prompt.row.id, {}).get(KEY)
            kept = [Rollout(prompt, list(item["ids"]), item["text"], source="kept", spaces=tuple(run.policy.spaces(prompt)))] if item else []
            groups.append(Group(prompt, kept))
        return groups
