"""The RLVR tax: what accuracy costs in calibration and in abstentions.

`rlvr_tax_audit` is a metric. Paper: Tu et al. 2025, arXiv:2509.21882.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.core.calibration import Calibration
from vlrl.methods.core.metric import mean
from vlrl.plugins.finding import PaperFinding, RunNumbers, moved, nothing
from vlrl.plugins.registry import register
from vlrl.types import Group


@register("rlvr_tax_audit")
@dataclass(frozen=True, kw_only=True)
class RlvrTaxAudit(Calibration):
    """Calibration and abstention beside the accuracy that they are the price of, split by what became of
    abstentions.

    Logs what `calibration` does, "accuracy", and "attempted_wrong", the share of answers that are wrong and
    no abstention. Its finding is the tax: abstentions became attempts, wrong attempts or ECE rose. Paper: Tu
    et al. 2025, arXiv:2509.21882 (attempt inflation and calibration drift; no number divides tax from none: a
    change of `least` is ours).

    Attributes:
        least: A change of a share that counts.
    """

    least: float = 0.01

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        out = super().__call__(groups)
        pairs = [pair for members in self.judged(groups) for pair in members]
        if not pairs:
            return out
        wrong = [float(not correct and not self.abstains(rollout.text)) for rollout, correct in pairs]
        return {**out, "accuracy": mean([float(c) for _, c in pairs]), "attempted_wrong": mean(wrong)}

    def finding(self, numbers: RunNumbers) -> PaperFinding | None:
        accuracy, abstained, wrong, ece = (
            numbers.change(name) for name in ("accuracy", "abstained", "attempted_wrong", "ece")
        )
        if accuracy is None or abstained is None or wrong is None:
            return nothing("two steps with scored answers are needed")
        inflation = abstained[0] - abstained[1] >= self.least and wrong[1] - wrong[0] >= self.least
        drift = ece is not None and ece[1] - ece[0] >= self.least
        parts = [moved("accuracy", accuracy), moved("abstentions", abstained), moved("wrong attempts", wrong)]
        parts += [moved("ECE", ece)] if ece is not None else ["ECE unknown"]
        taxes = [
            name for name, paid in (("attempt inflation", inflation), ("calibration drift", drift)) if paid
        ]
        return PaperFinding(
            f"{', '.join(parts)} (a change of {self.least:g} counts): {' and '.join(taxes) or 'no tax'}. The "
            "paper: gains come with abstentions that became confident answers, and with a worse calibration.",
            bool(taxes),
        )
