"""RL against distillation: accuracy against capability, and which difficulties pay for it.

`rlvsdistill` is a callback. Paper: Kim et al. 2025, arXiv:2505.14216.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.core.base_comparison import BINS, BaseComparison
from vlrl.plugins.finding import PaperFinding, RunNumbers, nothing
from vlrl.plugins.registry import register


@register("rlvsdistill")
@dataclass(frozen=True, kw_only=True)
class Rlvsdistill(BaseComparison):
    """Success per question of the trained model against the base model, as `base_comparison` counts it, by
    the base model's success.

    Its finding: accuracy (pass@1) rises, capability (the share of questions solved at least once in
    `samples`) does not, and the hardest questions get worse. Paper: Kim et al. 2025, arXiv:2505.14216 (256
    samples a question there; the three bins of difficulty are ours).
    """

    def finding(self, numbers: RunNumbers) -> PaperFinding | None:
        k = self.samples
        pairs = [(numbers.last(f"base/{n}"), numbers.last(f"now/{n}")) for n in (1, k)]
        if k == 1 or any(value is None for pair in pairs for value in pair):
            return nothing(f"pass@1 and pass@{k} of both models are needed; raise samples")
        accuracy, capability = [(before or 0.0, after or 0.0) for before, after in pairs]
        changes = {name: numbers.last(f"change/{name}") for name in BINS}
        by_bin = ", ".join(f"{name} {value:+.3f}" for name, value in changes.items() if value is not None)
        hard = changes["hard"]
        shows = accuracy[1] > accuracy[0] and capability[1] <= capability[0] and hard is not None and hard < 0
        return PaperFinding(
            f"accuracy {accuracy[0]:.3f} -> {accuracy[1]:.3f}, capability (pass@{k}) {capability[0]:.3f} -> "
            f"{capability[1]:.3f}; change by the base model's success: {by_bin}. The paper: RLVR raises "
            "accuracy and not capability, at the cost of the hardest questions.",
            shows,
        )
