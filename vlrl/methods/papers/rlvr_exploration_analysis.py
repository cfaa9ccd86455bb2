"""Exploration in RLVR: how entropy is exchanged for performance, by stage, by instance and by token.

`rlvr_exploration_analysis` is a metric. Paper: Deng et al. 2025, arXiv:2508.07534.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.core.metric import Surprisal
from vlrl.plugins.finding import PaperFinding, RunNumbers, nothing
from vlrl.plugins.registry import register


@register("rlvr_exploration_analysis")
@dataclass(frozen=True, kw_only=True)
class RlvrExplorationAnalysis(Surprisal):
    """Surprisal by outcome, by position and by perplexity.

    Its finding has two parts, the stage and the instance: in the rising stage the entropy of wrong answers
    falls more than that of correct ones, and answers of low perplexity are correct more often. Paper: Deng et
    al. 2025, arXiv:2508.07534 (with arXiv:2508.02260, by the same authors); the comparison of the two falls
    and of the two halves is ours.
    """

    def finding(self, numbers: RunNumbers) -> PaperFinding | None:
        wrong, correct = numbers.change("wrong"), numbers.change("correct")
        likely, unlikely = numbers.end("accuracy/likely"), numbers.end("accuracy/unlikely")
        if wrong is None or correct is None or likely is None or unlikely is None:
            return nothing("correct and wrong answers with log-probs are needed in two steps")
        fall_wrong, fall_correct = wrong[0] - wrong[1], correct[0] - correct[1]
        parts = [numbers.end(f"part/{part + 1}") for part in range(self.parts)]
        known = [f"{value:.3f}" for value in parts if value is not None]
        stage = "" if fall_wrong > fall_correct and fall_wrong > 0 else "not "
        return PaperFinding(
            f"entropy of wrong answers {wrong[0]:.3f} -> {wrong[1]:.3f}, of correct ones {correct[0]:.3f} -> "
            f"{correct[1]:.3f} nats a token: {stage}the rising stage, in which that of wrong answers falls "
            f"more. At the end the half of low perplexity is right in {likely:.3f}, the other in "
            f"{unlikely:.3f}; entropy by part of the answer: {', '.join(known)}. The paper: the former is "
            "right more often.",
            not stage and likely > unlikely,
        )
