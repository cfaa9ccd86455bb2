"""The invisible leash: which problems the trained model can still solve, which it has found, which it lost.

`invisible_leash` is a callback. Paper: Wu et al. 2025, arXiv:2507.14843.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.core.base_comparison import BaseComparison
from vlrl.plugins.finding import PaperFinding, RunNumbers, nothing
from vlrl.plugins.registry import register


@register("invisible_leash")
@dataclass(frozen=True, kw_only=True)
class InvisibleLeash(BaseComparison):
    """Support kept, found and lost, as `base_comparison` counts it: SRR is "kept", NDR "found", SDS "score",
    NSCR "net".

    Its finding is the sign of NSCR: below 0, more problems left the support than came in. Paper: Wu et al.
    2025, arXiv:2507.14843, sec. 3: pass@1 rises, while shrinkage outweighs expansion under large budgets (up
    to 16,384 samples a problem there; with the few of a lab run a lost problem is partly chance).
    """

    def finding(self, numbers: RunNumbers) -> PaperFinding | None:
        net, kept, found = (numbers.last(name) for name in ("net", "kept", "found"))
        before, after = numbers.last("base/1"), numbers.last("now/1")
        if net is None or before is None or after is None:
            return nothing("neither model solved a problem")
        shares = [
            f"{name} {value:.3f}" for name, value in (("SRR", kept), ("NDR", found)) if value is not None
        ]
        told = (
            f"pass@1 {before:.3f} -> {after:.3f}; with {self.samples} samples a problem "
            f"{', '.join([*shares, f'NSCR {net:+.3f}'])}: "
        )
        side = (
            "the support shrank more than it grew"
            if net < 0
            else "the support grew more than it shrank"
            if net > 0
            else "as many problems left the support as came in"
        )
        return PaperFinding(
            f"{told}{side}. The paper: pass@1 rises while NSCR is below 0.", bool(after > before and net < 0)
        )
