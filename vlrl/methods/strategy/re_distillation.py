"""What an earlier phase kept, in place of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.methods.callback.re_distillation import KEY
from vlrl.registry import register
from vlrl.stages import Strategy
from vlrl.types import Group, Prompt, Rollout

if TYPE_CHECKING:
    from vlrl.run import Run


@register("kept")
@dataclass(frozen=True)
class Kept(Strategy):
    """y = the rollout that callback `keep_right` kept of the row (source "kept"), one per prompt; no engine is asked.

    Paper: Chen et al. 2025 (Re-distillation), arXiv:2505.17988: fine-tuning on samples of the trained policy. It is scored like any rollout.
    Edge: a row of which nothing was kept gives an empty group, which is counted and replaced by the next row.
    """

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        groups = []
        for prompt in prompts:
            item = run.history.get(prompt.row.id, {}).get(KEY)
            kept = [Rollout(prompt, list(item["ids"]), item["text"], source="kept", spaces=tuple(run.policy.spaces(prompt)))] if item else []
            groups.append(Group(prompt, kept))
        return groups
