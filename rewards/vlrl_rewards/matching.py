"""Who is matched with whom: one-to-one assignments between predictions and gold, and COCO average precision on top of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from vlrl_rewards.boxes import Box
from vlrl_rewards.classification import normal_label
from vlrl_rewards.geometry import matrix

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
    said, meant = [normal_label(b.label) for b in predicted], [normal_label(b.label) for b in gold]
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
    names = {normal_label(b.label) if labels else "" for b in gold}
    said = {normal_label(b.label) if labels else "" for b in predicted}
    values = []
    for name in names | (said if extra == "zero" else set()):
        mine = [b for b in predicted if not labels or normal_label(b.label) == name][:100]
        truth = [b for b in gold if not labels or normal_label(b.label) == name]
        iou_NM = matrix([b.xyxy for b in mine], [b.xyxy for b in truth])
        values.append(float(np.mean([_precision_at(iou_NM, t) for t in thresholds])) if truth else 0.0)
    return float(np.mean(values))


def _precision_at(iou_NM: np.ndarray, threshold: float) -> float:
    """101-point average precision of one category at one IoU threshold."""
    hits_N = _matched(iou_NM, min(threshold, 1 - 1e-10))
    if not len(hits_N):
        return 0.0
    true_N, false_N = np.cumsum(hits_N), np.cumsum(~hits_N)
    recall_N, precision_N = true_N / iou_NM.shape[1], true_N / (true_N + false_N)
    envelope_N = np.maximum.accumulate(precision_N[::-1])[::-1]
    at = np.searchsorted(recall_N, _RECALLS, side="left")
    return float(np.mean(np.where(at < len(envelope_N), envelope_N[np.minimum(at, len(envelope_N) - 1)], 0.0)))


def _matched(iou_NM: np.ndarray, threshold: float) -> np.ndarray:
    """(N,) whether each prediction, in order, finds a free gold box; of equal ones it takes the last, as COCO does."""
    taken = np.zeros(iou_NM.shape[1], dtype=bool)
    hits = np.zeros(iou_NM.shape[0], dtype=bool)
    for i, row in enumerate(iou_NM):
        open_row = np.where(taken, -1.0, row)
        best = len(row) - 1 - int(np.argmax(open_row[::-1])) if len(row) else 0
        if len(row) and open_row[best] >= threshold:
            taken[best] = hits[i] = True
    return hits
