"""One-to-one matching of predictions with gold items (Hungarian, or greedy by confidence), and COCO average
precision."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from vlrl_rewards.boxes.geometry import matrix
from vlrl_rewards.boxes.reading import Box
from vlrl_rewards.recognition.classification import normal_label

COCO_THRESHOLDS = tuple(float(t) for t in np.linspace(0.5, 0.95, 10))
_RECALLS = np.linspace(0.0, 1.0, 101)

Pairs = list[tuple[int, int]]


def hungarian(score_NM: np.ndarray, minimum: float = 0.0) -> Pairs:
    """One-to-one (row, column) pairs of the largest total score (Hungarian algorithm). Pairs with a score of
    0 or below `minimum` are left out."""
    from scipy.optimize import (
        linear_sum_assignment,
    )  # half a second to import, which rewards without matching do not need

    allowed_NM = np.where((score_NM >= minimum) & (score_NM > 0), score_NM, 0.0)
    rows, columns = linear_sum_assignment(allowed_NM, maximize=True)
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True) if allowed_NM[i, j] > 0]


def by_confidence(score_NM: np.ndarray, confidences: Sequence[float], minimum: float = 0.0) -> Pairs:
    """Greedy one-to-one pairs: rows in order of falling confidence (ties as listed) each take the best free
    column of score >= `minimum` and > 0."""
    free = set(range(score_NM.shape[1]))
    pairs: Pairs = []
    for i in np.argsort(-np.asarray(confidences, dtype=float), kind="stable"):
        best = _best_column(score_NM[i], free)
        if best is not None and score_NM[i, best] >= minimum and score_NM[i, best] > 0:
            free.remove(best)
            pairs.append((int(i), int(best)))
    return pairs


def _best_column(score_M: np.ndarray, free: set[int]) -> int | None:
    """The free column with the largest score, among equal ones the first; None if no column is free."""
    return max(free, key=lambda j: (score_M[j], -j), default=None)


def label_mask(predicted: Sequence[Box], gold: Sequence[Box]) -> np.ndarray:
    """(N, M) booleans: whether the labels agree after normalisation. A gold box without a label agrees with
    any label."""
    plain = {label: normal_label(label) for label in {b.label for b in (*predicted, *gold)}}
    said, meant = [plain[b.label] for b in predicted], [plain[b.label] for b in gold]
    return np.array([[not m or s == m for m in meant] for s in said], dtype=bool).reshape(
        len(said), len(meant)
    )


def overlaps(predicted: Sequence[Box], gold: Sequence[Box], labels: bool, kind: str = "iou") -> np.ndarray:
    """(N, M) overlaps; with `labels`, 0 where the labels differ."""
    values_NM = matrix([b.xyxy for b in predicted], [b.xyxy for b in gold], kind)
    return np.where(label_mask(predicted, gold), values_NM, 0.0) if labels else values_NM


def ranked(boxes: Sequence[Box], rule: str) -> list[Box]:
    """Boxes by falling confidence: in the order listed (rule "order"), or by their stated confidence (rule
    "answer"; not stated: 1)."""
    return (
        list(boxes)
        if rule == "order"
        else sorted(boxes, key=lambda b: -(1.0 if b.score is None else b.score))
    )


def average_precision(
    predicted: Sequence[Box],
    gold: Sequence[Box],
    thresholds: Sequence[float] = COCO_THRESHOLDS,
    labels: bool = True,
    extra: str = "zero",
) -> float:
    """COCO average precision of one image, in [0, 1]: mean over categories and IoU thresholds of the
    101-point interpolated precision.

    Args:
        predicted: boxes in order of falling confidence; the first 100 of a category count.
        gold: the gold boxes. Without any, the result is 1 if nothing is predicted, else 0.
        thresholds: the IoU thresholds of a hit.
        labels: False puts all boxes into one category.
        extra: a predicted category without a gold box counts as an AP of 0 ("zero") or is left out ("ignore",
            as in COCO).
    Agrees with pycocotools (area "all", no crowds).
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


def _category(
    iou: Sequence[Sequence[float]], mine: Sequence[int], truth: Sequence[int], thresholds: Sequence[float]
) -> float:
    """Mean over thresholds of the 101-point average precision of one category."""
    lowest = min(*thresholds, 1 - 1e-10)
    near = [
        [(j, iou[i][j]) for j in truth if iou[i][j] >= lowest] for i in mine
    ]  # drops the pairs below every threshold once, for speed
    return sum(_precision(_hits(near, min(t, 1 - 1e-10)), len(truth)) for t in thresholds) / len(thresholds)


def _hits(near: Sequence[Sequence[tuple[int, float]]], threshold: float) -> list[int]:
    """The ranks (from 1) of the predictions that hit a free gold box; among equal overlaps a prediction takes
    the last box, as in COCO."""
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
    """Mean over 101 recall levels of the best precision at that recall or a larger one, from the ranks of the
    hits."""
    total, best = 0.0, 0.0
    for hits in range(len(ranks), 0, -1):
        best = max(best, hits / ranks[hits - 1])
        total += best * _recalls_reached(gold)[hits]
    return total / len(_RECALLS)


@lru_cache(maxsize=256)
def _recalls_reached(gold: int) -> list[int]:
    """For k = 0 .. gold, how many of the 101 recall levels need k hits. Recall 0 needs one hit, because
    precision is undefined without any."""
    needed = np.maximum(np.searchsorted(np.arange(gold + 1) / gold, _RECALLS, side="left"), 1)
    return np.bincount(needed, minlength=gold + 1).tolist()
