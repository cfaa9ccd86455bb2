"""The limit of RLVR: pass@k of the trained model against that of its base model, over k.

`limit_of_rlvr` is a callback. Paper: Yue et al. 2025, arXiv:2504.13837.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.core.base_comparison import BaseComparison, attempts
from vlrl.plugins.finding import PaperFinding, RunNumbers, nothing
from vlrl.plugins.registry import register


@register("limit_of_rlvr")
@dataclass(frozen=True, kw_only=True)
class LimitOfRlvr(BaseComparison):
    """pass@k of the weights that the phase started with ("base/k") and of the trained ones ("now/k"), on the
    same training prompts.

    Its finding is the k at which the curves cross: the smallest k from which on the base model is above the
    trained one. Paper: Yue et al. 2025, arXiv:2504.13837: the trained model is better at k = 1 and the base
    model at the largest k (128 to 1,024 there), in every pair of models. Deviates: training prompts, and as
    many samples as `samples`, in place of benchmarks.
    """

    def finding(self, numbers: RunNumbers) -> PaperFinding | None:
        ks = [1, *attempts(self.samples)]
        curve = {k: (numbers.last(f"base/{k}"), numbers.last(f"now/{k}")) for k in ks}
        pairs = {k: (base, now) for k, (base, now) in curve.items() if base is not None and now is not None}
        if len(pairs) < 2:
            return nothing("pass@1 and pass@k of both models are needed; raise samples")
        first, largest = min(pairs), max(pairs)
        if not any(max(pair) for pair in pairs.values()):
            return nothing(f"neither model solved a problem in {largest} attempts")
        above = [k for k, (base, now) in pairs.items() if base > now]
        told = (
            f"pass@{first} went from {pairs[first][0]:.3f} (base) to {pairs[first][1]:.3f} (trained), "
            f"pass@{largest} from {pairs[largest][0]:.3f} to {pairs[largest][1]:.3f}: "
        )
        paper = " The paper: better at k = 1, overtaken by the base model at k of tens to hundreds."
        crosses = first not in above and largest in above
        if crosses:
            at = min(k for k in pairs if all(j in above for j in pairs if j >= k))
            return PaperFinding(
                told + f"the base model is above the trained one from k = {at} on." + paper, True
            )
        if largest not in above:
            return PaperFinding(
                told + f"the base model does not overtake up to k = {largest}." + paper, False
            )
        return PaperFinding(
            told + "the trained model is below the base model already at k = 1." + paper, False
        )
