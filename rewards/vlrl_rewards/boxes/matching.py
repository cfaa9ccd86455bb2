"""Who is matched with whom: one-to-one assignments between predictions and gold, and COCO average precision on top of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.optimize import linear_sum_assignment

from vlrl_rewards.boxes.geometry import matrix
from vlrl_rewards.boxes.reading import Box
from vlrl_rewards.recognition.classification import normal_label

COCO_THRESHOLDS = tuple(float(t) for t in np.linspace(0.5, 0.95, 10))
_RECALLS = np.linspace(0.0, 1.0, 101)

Pairs = list[tuple[int, int]]


def hungarian(score_NM: np.ndarray, minimum: float = 0.0) -> Pairs:
    """One-to-one (row, column) pairs with the largest total score; pairs of 0 or below `minimum` are left out."""
    useful_NM = np.where((score_NM >= minimum) & (score_NM > 0), score_NM, 0.0)
    rows, columns = linear_sum_assignment(useful_NM, maximize=True)
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True) if useful_NM[i, j] > 0]


def by_confidence(score_NM: np.ndarray, confidences: Sequence[float], minimum: float = 0.0) -> Pairs:
    """Rows in order of falling confidence (ties in the order written) each take the best free column with a score of at least `minimum`."""
    free = set(range(score_NM.shape[1]))
    pairs: Pairs = []
    for i in np.argsort(-np.asarray(confidences, dtype=float), kind="stable"):
        best = max(free, key=lambda j, i=i: (score_NM[i, j], -j), default=None)
        if best is not None and score_NM[i, best] >= minimum and score_NM[i, best] > 0:
            free.remove(best)
            pairs.append((int(i), int(best)))
    return pairs


def label_mask(predicted: Sequence[Box], gold: Sequence[Box]) -> np.ndarray:
    """(N, M) booleans: labels agree after normalisation. A gold box without a label takes any."""
    plain = {label: normal_label(label) for label in {b.label for b in (*predicted, *gold)}}
    said, meant = [plain[b.label] for b in predicted], [plain[b.label] for b in gold]
    return np.array([[not m or s == m for m in meant] for s in said], dtype=bool).reshape(len(said), len(meant))


def overlaps(predicted: Sequence[Box], gold: Sequence[Box], labels: bool, kind: str = "iou") -> np.ndarray:
    """(N, M) overlaps, zero where `labels` are compared and differ."""
    values_NM = matrix([b.xyxy for b in predicted], [b.xyxy for b in gold], kind)
    return np.where(label_mask(predicted, gold), values_NM, 0.0) if labels else values_NM


def ranked(boxes: Sequence[Box], rule: str) -> list[Box]:
    """Boxes from the surest to the least sure: as they are listed ("order"), or by their stated confidence ("answer"; none stated: 1)."""
    return list(boxes) if rule == "order" else sorted(boxes, key=lambda b: -(1.0 if b.score is None else b.score))


def average_precision(
    predicted: Sequence[Box], gold: Sequence[Box], thresholds: Sequence[float] = COCO_THRESHOLDS, labels: bool = True, extra: str = "zero"
) -> float:
    """COCO AP of one picture, in [0, 1]: mean over categories and IoU thresholds of the 101-point interpolated precision.

    `predicted` comes in order of falling confidence; the first 100 of a category count. `extra`: a predicted category that has no gold box counts as
    an AP of 0 ("zero") or not at all ("ignore", as COCO does). Without gold: 1 if nothing was predicted, else 0. `labels` False: one category.
    Agrees with pycocotools (area "all", no crowds), without its prints and its index.
    """
    if not gold:
        return float(not predicted)
    plain = {label: normal_label(label) if labels else "" for label in {b.label for b in (*predicted, *gold)}}
    said, meant = ([plain[b.label] for b in boxes] for boxes in (predicted, gold))
    iou = matrix([b.xyxy for b in predicted], [b.xyxy for b in gold]).tolist()
    values = []
    for name in dict.fromkeys([*meant, *(said if extra == "zero" else ())]):
        mine = [i for i, label in enumerate(said) if label == name][:100]
        truth = [j for j, label in enumerate(meant) if label == name]
        values.append(_category(iou, mine, truth, thresholds) if truth else 0.0)
    return sum(values) / len(values)


def _category(iou: Sequence[Sequence[float]], mine: Sequence[int], truth: Sequence[int], thresholds: Sequence[float]) -> float:
    """Mean over thresholds of the 101-point average precision of one category."""
    least = min(*thresholds, 1 - 1e-10)
    near = [[(j, iou[i][j]) for j in truth if iou[i][j] >= least] for i in mine]  # few pairs overlap by half: the rest is never looked at again
    return sum(_precision(_hits(near, min(t, 1 - 1e-10)), len(truth)) for t in thresholds) / len(thresholds)


def _hits(near: Sequence[Sequence[tuple[int, float]]], threshold: float) -> list[int]:
    """The ranks (from 1) of the predictions that find a free gold box; of equal ones each takes the last, as COCO does."""
    taken: set[int] = set()
    ranks = []
    for rank, pairs in enumerate(near, 1):
        best, pick = threshold, -1
        for j, value in pairs:
            if value >= best and j not in taken:
                best, pick = value, j
        if pick >= 0:
            taken.add(pick)
            ranks.append(rank)
    return ranks


def _precision(ranks: Sequence[int], gold: int) -> float:
    """Mean over 101 recalls of the best precision at that recall or a larger one, from the ranks of the hits."""
    total, best = 0.0, 0.0
    for hits in range(len(ranks), 0, -1):
        best = max(best, hits / ranks[hits - 1])
        total += best * _recalls_reached(gold)[hits]
    return total / len(_RECALLS)


@lru_cache(maxsize=256)
def _recalls_reached(gold: int) -> list[int]:
    """How many of the 101 recalls need k hits of `gold`, for k = 0 .. gold (recall 0 needs one, for without a hit there is no precision)."""
    needed = np.maximum(np.searchsorted(np.arange(gold + 1) / gold, _RECALLS, side="left"), 1)
    return np.bincount(needed, minlength=gold + 1).tolist()
