"""Re-distillation: supervised training of the original policy on correct samples of the policy that
reinforcement learning made of it.

    re_distillation.keep_correct   callback of the RL phase: keeps correct rollouts in the run's history, and
    restores the phase's first weights re_distillation                rollout strategy of the next phase: the
    kept rollouts in place of samples

Paper: Chen et al. 2025 (Re-distillation), arXiv:2505.17988; checked against KK_re_distillation.py of the
release: the last 11 steps' rollouts, the first correct one per question, 1000 of them, then supervised
training of the base model. Deviates: the first `max_rows` instead of a random choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.contexts import CallbackContext, SamplingContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Callback, RolloutStrategy, State, transient
from vlrl.services.lazy import torch
from vlrl.types import Group, Prompt, Rollout

# in a row's memory (`run.history`): {"ids": completion tokens, "text": text} of the kept rollout
KEY = "re_distillation"


@dataclass
class KeepCorrectState(State):
    """The policy that holds the phase's first weights as its reference; None where they are not restored.
    Saved are these weights."""

    policy: Any = transient()

    def state_dict(self) -> dict[str, Any]:
        return self.policy.reference_state() if self.policy is not None else {}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        if self.policy is not None:
            self.policy.load_reference(values)


@register("re_distillation.keep_correct")
@dataclass(frozen=True)
class ReDistillationKeepCorrect(Callback):
    """Keeps the first correct rollout of each prompt of the phase's last `last` steps in the run's history,
    of at most `max_rows` rows (0: all).

    `go_back`: after the phase's last step the policy gets the weights that the phase began with. Rollout
    strategy `re_distillation` trains on what was kept. Every rank keeps what all ranks found. Logs the number
    of rows with a kept rollout. With `go_back` the first weights are held in memory. Paper: Chen et al. 2025
    (Re-distillation), arXiv:2505.17988. Raises ConfigError for `go_back` with adapters or sharded weights,
    which have no such copy.
    """

    state_class = KeepCorrectState
    last: int = 11
    max_rows: int = 1000
    go_back: bool = True

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if not self.go_back:
            return
        if run.state_sharded or run.policy.has_adapter:
            raise ConfigError(
                "callbacks: 're_distillation.keep_correct' restores a copy of all weights, which neither "
                "adapters nor sharded weights have; "
                "set go_back: false, and train on the kept rollouts in a run of its own"
            )
        run.policy.keep_reference()
        self.state.policy = run.policy

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, float]:
        remaining = run.settings.steps - run.phase_step  # this step included
        kept = sum(KEY in memory for memory in run.history.values())
        if remaining <= self.last:
            for group in groups:
                correct = next(
                    (rollout for rollout in group if rollout.source == "policy" and rollout.correct), None
                )
                if (
                    correct is not None
                    and KEY not in run.history.get(group.row.id, {})
                    and (kept < self.max_rows or not self.max_rows)
                ):
                    run.history.setdefault(group.row.id, {})[KEY] = {
                        "ids": list(correct.ids),
                        "text": correct.text,
                    }
                    kept += 1
        if remaining <= 1 and self.go_back:
            with torch.no_grad():
                run.policy.model.load_state_dict(run.policy.reference_state()["weights"])
            run.engine.sync(run.policy)
        return {"kept": float(kept)}


@register("re_distillation")
@dataclass(frozen=True)
class ReDistillation(RolloutStrategy):
    """Re-distillation's data: the rollout that `re_distillation.keep_correct` kept of each row (source
    "kept"), one per prompt; the engine is not used.

    Paper: Chen et al. 2025 (Re-distillation), arXiv:2505.17988: fine-tuning on samples of the trained policy.
    It is scored like any rollout. Edge: a row without a kept rollout gives an empty group, which is counted
    and replaced by the next row.
    """

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = []
        for prompt in prompts:
            item = run.history.get(prompt.row.id, {}).get(KEY)
            kept = (
                [
                    Rollout(
                        prompt,
                        list(item["ids"]),
                        item["text"],
                        source="kept",
                        spaces=tuple(run.policy.spaces(prompt)),
                    )
                ]
                if item
                else []
            )
            groups.append(Group(prompt, kept))
        return groups
