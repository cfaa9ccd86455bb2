"""Published mixtures of overlap, labels and completeness, and of confidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vlrl.registry import register
from vlrl_rewards.boxes import Box
from vlrl_rewards.graded import Scene, judged
from vlrl_rewards.many_boxes import ManyBoxes, confidence
from vlrl_rewards.matching import by_confidence, hungarian, label_mask, overlaps


@judged("boxes_weighted")
@register("detection_weighted")
@dataclass(frozen=True, kw_only=True)
class DetectionWeighted(ManyBoxes):
    """r = a sum IoU / max(n, m) + b (right labels) / max(n, m) + c (1 - (miss rate + false alarm rate) / 2), over Hungarian pairs of IoU >=
    threshold.

    Paper: VLM-R1, arXiv:2504.07615 (weighted_sum of the release: a 0.7, b 0.0, c 0.3).
    Deviates: the release divides by the gold count m alone, so that 600 boxes around a right pair still earn 0.85; Hungarian instead of greedy
    matching; a box without a label is a wrong label, not an error; the weights must sum to 1.
    Edge: as `detection`. A pair with another label gives no IoU and is still "found". Without any pair the reward is 0. Range [0, 1].
    """

    position: float = 0.7
    label: float = 0.0
    completeness: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if abs(self.position + self.label + self.completeness - 1) > 1e-9 or min(self.position, self.label, self.completeness) < 0:
            raise ValueError(f"position, label, completeness: must be >= 0 and sum to 1, got {self.position}, {self.label}, {self.completeness}")

    def score_boxes(self, boxes: list[Box], gold: list[Box], scene: Scene) -> float:
        iou_NM = overlaps(boxes, gold, labels=False)
        same_NM = label_mask(boxes, gold) if self.with_labels(gold) else np.ones_like(iou_NM, dtype=bool)
        # A tiny bonus makes the matching prefer a right label among equal overlaps.
        pairs = [(i, j) for i, j in hungarian(np.where(iou_NM >= self.iou_threshold, iou_NM + 1e-6 * same_NM, 0.0))]
        if not pairs:
            return 0.0
        right = [(i, j) for i, j in pairs if same_NM[i, j]]
        miss, alarm = 1 - len(pairs) / len(gold), 1 - len(pairs) / len(boxes)
        most = max(len(gold), len(boxes))
        place = sum(float(iou_NM[i, j]) for i, j in right) / most
        return self.position * place + self.label * len(right) / most + self.completeness * (1 - (miss + alarm) / 2)


@judged("boxes_confidence")
@register("detection_confidence")
@dataclass(frozen=True, kw_only=True)
class DetectionConfidence(ManyBoxes):
    """r = mean over boxes of (c if matched else 1 - c), for stated confidences c.

    Paper: Visual-RFT, arXiv:2503.01785, eq. 5-6. Deviates: at least one box must be matched, and misses count 0 in the mean over max(n, m): else
    far-off boxes of confidence 0 earn everything. A missing confidence is 1. Edge: as `detection`. Range [0, 1]. Matching: surest box first.
    """

    def score_boxes(self, boxes: list[Box], gold: list[Box], scene: Scene) -> float:
        pairs = by_confidence(overlaps(boxes, gold, self.with_labels(gold)), [confidence(b) for b in boxes], self.iou_threshold)
        hit = {i for i, _ in pairs}
        missed = max(0, len(gold) - len(pairs))
        gained = sum(confidence(b) if i in hit else 1 - confidence(b) for i, b in enumerate(boxes))
        return gained / (len(boxes) + missed) if pairs else 0.0
