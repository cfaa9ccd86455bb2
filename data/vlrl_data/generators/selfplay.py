"""Rows without questions, for self-play: what kind of task is to be proposed."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource

KINDS = ("deduction", "abduction", "induction")


@register("gen_selfplay")
@dataclass(frozen=True, kw_only=True)
class GenSelfplay(GeneratedSource):
    """Kinds of tasks in turn, for rollout strategy `absolute_zero`, which makes the questions: `meta.kind`
    is one of `kinds`.

    Paper: Absolute Zero, arXiv:2505.03335. There is nothing to hold out.
    """

    kinds: tuple[str, ...] = KINDS

    def row(self, index: int) -> Row:
        kind = self.kinds[index % len(self.kinds)]
        return Row(
            self.id(index),
            f"Propose a task ({kind}).",
            answer=kind,
            task="selfplay",
            meta={"kind": kind, "role": "propose"},
        )
