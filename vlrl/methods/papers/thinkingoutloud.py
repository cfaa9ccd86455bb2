"""Thinking out loud: do stated confidences agree with what is right, and are short answers the sure ones?

`thinkingoutloud` is a metric. Paper: Zeng et al. 2025, arXiv:2504.06564.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.core.calibration import Calibration
from vlrl.plugins.finding import PaperFinding, RunNumbers, moved, nothing
from vlrl.plugins.registry import register


@register("thinkingoutloud")
@dataclass(frozen=True, kw_only=True)
class Thinkingoutloud(Calibration):
    """Calibration of stated confidences.

    Its finding: training for reasoning lowers ECE, and sure answers are shorter ("length", the correlation of
    confidence and tokens, is below 0). Paper: Zeng et al. 2025, arXiv:2504.06564, sec. 3.4 (10 bins).
    """

    def finding(self, numbers: RunNumbers) -> PaperFinding | None:
        ece, length, stated = numbers.change("ece"), numbers.end("length"), numbers.end("stated")
        if ece is None:
            return nothing("no two steps in which an answer stated a confidence")
        extra = {"AUROC": numbers.end("auroc"), "confidence": numbers.end("confidence")}
        told = ", ".join(f"{name} {value:.3f}" for name, value in extra.items() if value is not None)
        sure = "" if length is None else f"; confidence and length correlate by {length:+.3f}"
        return PaperFinding(
            f"{moved('ECE', ece)} in {self.bins} bins ({stated or 0.0:.3f} of the answers state one; "
            f"{told}){sure}. The paper: training for reasoning lowers ECE, and sure answers are shorter.",
            ece[1] < ece[0] and (length is None or length < 0),
        )
