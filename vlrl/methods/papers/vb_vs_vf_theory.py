"""Verifier-based against verifier-free training: is the base policy heterogeneous, and are its rewards
anti-concentrated?

`vb_vs_vf_theory` is a metric. Paper: Setlur et al. 2025, arXiv:2502.12118.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.core.metric import Groups
from vlrl.plugins.finding import PaperFinding, RunNumbers, nothing
from vlrl.plugins.registry import register


@register("vb_vs_vf_theory")
@dataclass(frozen=True, kw_only=True)
class VbVsVfTheory(Groups):
    """Spread and anti-concentration of a group's rewards (see `groups`).

    Its finding reads the start of the run, the base policy: rewards of a prompt that vary (heterogeneous),
    with at least `least` of the mass above mean + margin * std (anti-concentrated), are what verifier-based
    training needs to outgrow cloning. Paper: Setlur et al. 2025, arXiv:2502.12118 (a constant above 0; the
    empirical form and the constant are ours).

    Attributes:
        least: The share that counts as anti-concentrated.
    """

    least: float = 0.05

    def finding(self, numbers: RunNumbers) -> PaperFinding | None:
        std, share, equal = (numbers.start(name) for name in ("std", "anticoncentration", "zero_variance"))
        if std is None or share is None or equal is None:
            return nothing("no groups were scored")
        met = std > 0 and share >= self.least
        return PaperFinding(
            f"at the start rewards of a prompt have a standard deviation of {std:.3f} (equal in {equal:.3f} "
            f"of the groups) and {share:.3f} of them lie above mean + {self.margin:g} std (threshold "
            f"{self.least:g}): the base policy is {'' if met else 'not '}heterogeneous and "
            "anti-concentrated. The paper: where it is, a verifier beats cloning, and the more so the "
            "longer answers may be.",
            met,
        )
