"""A right and a wrong attempt of each prompt, kept to be judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.registry import register
from vlrl.stages import Callback
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run

KEY = "candidates"


@register("keep_candidates")
@dataclass(frozen=True)
class KeepCandidates(Callback):
    """The texts of a right and of a wrong rollout of each prompt that had both go into the run's history; later ones replace earlier ones.

    So labels are balanced, and no prompt is too easy or too hard. Sampler `judged` and scaffold `judge` make questions of them.
    Paper: Duo et al. 2026 (JudgeRLVR), arXiv:2601.08468: candidate solutions with verified labels. Deviates: they are the policy's own. Right means a
    reward above `threshold`; cut-off rollouts are not kept. Every rank keeps what all ranks found.
    """

    threshold: float = 0.5

    def __call__(self, run: Run, groups: Sequence[Group]) -> dict[str, float]:
        for group in groups:
            texts = {rollout.reward > self.threshold: rollout.text for rollout in group if rollout.source == "policy" and not rollout.truncated}
            if len(texts) == 2:
                run.history.setdefault(group.row.id, {})[KEY] = {"yes": texts[True], "no": texts[False]}
        return {"rows": float(sum(KEY in memory for memory in run.history.values()))}
