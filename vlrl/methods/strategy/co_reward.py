"""Each question and its paraphrase, so that they can vote for each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from vlrl.methods.strategy._second_view import SecondView
from vlrl.registry import register
from vlrl.types import Row


@register("co_reward")
@dataclass(frozen=True)
class Paraphrased(SecondView):
    """G rollouts of every prompt, and G more of its paraphrase `row.meta[key]`, in the same group of 2 G; these carry `info["paraphrased"]`.

    Paper: Zhang et al. 2025 (Co-Reward), arXiv:2508.00410: two groups, as in the released code; advantage `co_reward` keeps them apart.
    Edge: a row without a paraphrase is asked twice as it is: its two halves vote for each other.
    """

    mark: ClassVar[str] = "paraphrased"
    key: str = "paraphrase"

    def view(self, row: Row) -> Row:
        return replace(row, id=f"{row.id}/paraphrased", question=str(row.meta.get(self.key, row.question)))
