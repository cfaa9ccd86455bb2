"""Metric `calibration`: how well stated confidences agree with what is right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from vlrl.methods.core.metric import OutcomeMetric, correlation, mean
from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Group


@register("calibration")
@dataclass(frozen=True, kw_only=True)
class Calibration(OutcomeMetric):
    """Calibration of stated confidences p (last match of `pattern`; above 1 or with "%" it is percent)
    against being correct, y: ECE, ACE, Brier, AUROC, AUPRC.

        ECE = sum_b |b|/N |mean y_b - mean p_b| over `bins` bins of equal width;
        ACE = 1/bins sum_b |mean y_b - mean p_b| over bins of equal count
        Brier = mean (p - y)^2;  AUROC = P(p_correct > p_wrong) + P(equal)/2

    "auprc_correct" is the average precision of finding correct answers by high p, "auprc_wrong" of wrong ones
    by low p. "stated" is the share with a confidence, "abstained" the share that matches `abstain`, "length"
    the correlation of p with the tokens. Paper: ECE: Guo et al. 2017, arXiv:1706.04599, eq. 3; all of them:
    arXiv:2504.06564, sec. 3.4 (10 bins). Edge: confidences outside [0, 1] do not count as stated; what cannot
    be computed is left out; with fewer answers than bins each has a bin.
    """

    pattern: str = r"<confidence>\s*(\d+(?:\.\d+)?\s*%?)\s*</confidence>"
    abstain: str = r"\b(?:i (?:do not|don't) know|i am not sure|i'm not sure|cannot be determined)\b"
    bins: int = 10

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise ConfigError(f"metrics: 'calibration' bins: {self.bins} must be 1 or more")

    def abstains(self, text: str) -> bool:
        """Whether a text says that it does not know."""
        return bool(re.search(self.abstain, text, re.IGNORECASE))

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        pairs = [pair for members in self.judged(groups) for pair in members]
        if not pairs:
            return {}
        read = [
            (confidence_of(rollout.text, self.pattern), correct, rollout.sampled_tokens)
            for rollout, correct in pairs
        ]
        stated = [(p, float(correct), length) for p, correct, length in read if p is not None]
        abstained = [float(self.abstains(rollout.text)) for rollout, _ in pairs]
        out = {"stated": len(stated) / len(pairs), "abstained": mean(abstained)}
        if not stated:
            return out
        ps, ys = [p for p, _, _ in stated], [y for _, y, _ in stated]
        length = correlation(ps, [float(tokens) for _, _, tokens in stated])
        correct, wrong = (
            average_precision(ps, ys),
            average_precision([1 - p for p in ps], [1 - y for y in ys]),
        )
        extra = {"auroc": auroc(ps, ys), "length": length, "auprc_correct": correct, "auprc_wrong": wrong}
        out |= {
            "ece": ece(ps, ys, self.bins),
            "ace": ace(ps, ys, self.bins),
            "brier": mean([(p - y) ** 2 for p, y in zip(ps, ys)]),
            "confidence": mean(ps),
        }
        return {**out, **{name: value for name, value in extra.items() if value is not None}}


def confidence_of(text: str, pattern: str) -> float | None:
    """A confidence in [0, 1], or None."""
    found = re.findall(pattern, text)
    if not found:
        return None
    number = float(found[-1].rstrip("% "))
    value = number / 100 if "%" in found[-1] or number > 1 else number
    return value if 0 <= value <= 1 else None


def ece(ps: Sequence[float], ys: Sequence[float], bins: int) -> float:
    """Expected calibration error over equal bins of [0, 1]."""
    members: dict[int, list[tuple[float, float]]] = {}
    for p, y in zip(ps, ys):
        members.setdefault(min(int(p * bins), bins - 1), []).append((p, y))
    return sum(abs(sum(y - p for p, y in pairs)) for pairs in members.values()) / len(ps)


def ace(ps: Sequence[float], ys: Sequence[float], bins: int) -> float:
    """Adaptive calibration error: the mean gap over bins of equal count, in the order of confidence."""
    pairs, bins = sorted(zip(ps, ys)), min(bins, len(ps))
    cuts = [i * len(pairs) // bins for i in range(bins + 1)]
    return mean([abs(mean([y - p for p, y in pairs[a:b]])) for a, b in pairwise(cuts)])


def average_precision(scores: Sequence[float], ys: Sequence[float]) -> float | None:
    """Area under the precision-recall curve: sum of precision times gain in recall over falling scores, equal
    scores at once; None without both."""
    found, seen, area = 0.0, 0, 0.0
    if not 0 < sum(ys) < len(ys):
        return None
    for _, same in groupby(sorted(zip(scores, ys), reverse=True), key=lambda pair: pair[0]):
        hits = [y for _, y in same]
        found, seen = found + sum(hits), seen + len(hits)
        area += sum(hits) * found / seen
    return area / sum(ys)


def auroc(ps: Sequence[float], ys: Sequence[float]) -> float | None:
    """P(p of a correct one > p of a wrong one) + P(equal) / 2; None without both."""
    of_correct, of_wrong = [p for p, y in zip(ps, ys) if y], [p for p, y in zip(ps, ys) if not y]
    if not of_correct or not of_wrong:
        return None
    return mean([(p > q) + (p == q) / 2 for p in of_correct for q in of_wrong])
