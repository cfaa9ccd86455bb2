"""Whether a policy knows when it is right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.registry import ConfigError, register
from vlrl.types import Group

from ._judged import Judged, mean
from .lengths import correlation


@register("calibration")
@dataclass(frozen=True, kw_only=True)
class Calibration(Judged):
    """Of stated confidences p (last match of `pattern`; above 1 or with "%" it is percent) against being right y: ECE, Brier, AUROC.

    ECE = sum_b |b|/N * |mean y_b - mean p_b| over `bins` equal bins; Brier = mean (p - y)^2; AUROC = P(p_right > p_wrong) + P(equal)/2.
    "stated" is the share with a confidence, "abstained" the share that matches `abstain`, "length" the correlation of p with the number of tokens.
    Paper: ECE: Guo et al. 2017, arXiv:1706.04599, eq. 3; of reasoning models: arXiv:2504.06564. Edge: confidences outside [0, 1] after reading do
    not count as stated; AUROC needs both a right and a wrong one; what cannot be computed is left out.
    """

    pattern: str = r"<confidence>\s*(\d+(?:\.\d+)?\s*%?)\s*</confidence>"
    abstain: str = r"\b(?:i (?:do not|don't) know|i am not sure|i'm not sure|cannot be determined)\b"
    bins: int = 10

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise ConfigError(f"bins: {self.bins} must be 1 or more")

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        pairs = [pair for members in self.judged(groups) for pair in members]
        if not pairs:
            return {}
        read = [(confidence_of(rollout.text, self.pattern), right, len(rollout)) for rollout, right in pairs]
        stated = [(p, float(right), length) for p, right, length in read if p is not None]
        abstained = [float(bool(re.search(self.abstain, rollout.text, re.IGNORECASE))) for rollout, _ in pairs]
        out = {"stated": len(stated) / len(pairs), "abstained": mean(abstained)}
        if not stated:
            return out
        ps, ys = [p for p, _, _ in stated], [y for _, y, _ in stated]
        length = correlation(ps, [float(tokens) for _, _, tokens in stated])
        extra = {"auroc": auroc(ps, ys), "length": length}
        out |= {"ece": ece(ps, ys, self.bins), "brier": mean([(p - y) ** 2 for p, y in zip(ps, ys)]), "confidence": mean(ps)}
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


def auroc(ps: Sequence[float], ys: Sequence[float]) -> float | None:
    """P(p of a right one > p of a wrong one) + P(equal) / 2; None without both."""
    right, wrong = [p for p, y in zip(ps, ys) if y], [p for p, y in zip(ps, ys) if not y]
    if not right or not wrong:
        return None
    return mean([(p > q) + (p == q) / 2 for p in right for q in wrong])
