"""GUI-G1: a difficulty coefficient per question, which raises the loss of questions with small targets.

`gui_g1` is a token weight. Paper: GUI-G1, arXiv:2505.15810, sec. 4.3, with released code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import TokenWeight
from vlrl.services.lazy import Tensor, torch
from vlrl.types import LossInputs, Row


@register("gui_g1")
@dataclass(frozen=True)
class GuiG1(TokenWeight):
    """GUI-G1's difficulty coefficient: w = row.meta[key], the same for all tokens of a question.

    Paper: GUI-G1, arXiv:2505.15810, sec. 4.3 (a difficulty-aware factor on the objective, from the relative
    size of the target box). Released code: Yuqi-Zhou/GUI-G1,
    src/open-r1-multimodal/src/open_r1/trainer/grpo_trainer.py, commit e581fe9 (the loss of a rollout times
    the record's `rate`). How a rate follows from the box is the data's: the released example has rate 1;
    `gen_screen_grounding` writes mean area / area of the button. Edge: a row without the key has weight 1.
    Raises ValueError for a rate that is no finite number of at least 0. Shapes: (B, 1).
    """

    key: str = "rate"

    def rate(self, row: Row) -> float:
        """The coefficient of a row."""
        value = row.meta.get(self.key, 1.0)
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
            or value < 0
        ):
            raise ValueError(f"row {row.id!r}: meta.{self.key} must be a number of at least 0, got {value!r}")
        return float(value)

    def __call__(self, x: LossInputs) -> Tensor:
        rates = [self.rate(rollout.row) for rollout in x.batch.rollouts]
        return torch.tensor(rates, dtype=x.logp_BT.dtype, device=x.logp_BT.device)[:, None]
