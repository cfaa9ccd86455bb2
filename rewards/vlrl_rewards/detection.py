"""Rewards for many boxes: matched overlap that pays for misses and false alarms, and COCO AP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from vlrl.registry import register
from vlrl_rewards.boxes import Box
from vlrl_rewards.graded import Scene, judged
from vlrl_rewards.many_boxes import ManyBoxes, match, salience_of
from vlrl_rewards.matching import COCO_THRESHOLDS, average_precision, overlaps, ranked


@judged("boxes", "detection")
@register("detection")
@dataclass(frozen=True, kw_only=True)
class Detection(ManyBoxes):
    """r = sum of matched IoU / D, with D = max(n, m) ("max"), (n + m) / 2 ("f1"), or m ("recall"), for n boxes and m gold boxes.

        weighted ("recall" and "max" with `salience`): sum_k w_k IoU_k / (sum_k w_k + max(0, n - m) mean w)

    Paper: Visual-RFT, arXiv:2503.01785, eq. 3-4 (D = n; here a miss costs too); Perception-R1, arXiv:2504.07954, sec. 3.3 (Hungarian matching);
    GRiP, arXiv:2511.22172 (salience; the form is ours, from its abstract).
    Deviates: pairs below `iou_threshold`, or with different labels, count 0. Matching: "hungarian" (largest total) or "confidence" (surest box
    first).
    Edge: no gold boxes: 1 for "None" or "[]", else 0. Unreadable or empty answer: 0. Range [0, 1]. Units: pixels of the original.
    `salience` names the field of `row.meta` that holds one weight per gold box. "recall" does not punish false alarms: use it with `detection_map`.
    """

    matching: Literal["hungarian", "confidence"] = "hungarian"
    denominator: Literal["max", "f1", "recall"] = "max"
    salience: str = ""

    def score_boxes(self, boxes: list[Box], gold: list[Box], scene: Scene) -> float:
        iou_NM = overlaps(boxes, gold, self.with_labels(gold))
        pairs = match(iou_NM, boxes, self.matching, self.iou_threshold)
        if self.salience:
            weights = salience_of(scene, self.salience, len(gold))
            spurious = max(0, len(boxes) - len(gold)) * float(np.mean(weights)) if self.denominator != "recall" else 0.0
            return sum(weights[j] * float(iou_NM[i, j]) for i, j in pairs) / (sum(weights) + spurious)
        total = sum(float(iou_NM[i, j]) for i, j in pairs)
        table = {"max": max(len(boxes), len(gold)), "f1": (len(boxes) + len(gold)) / 2, "recall": len(gold)}
        return total / table[self.denominator]


@judged("boxes_map")
@register("detection_map")
@dataclass(frozen=True, kw_only=True)
class DetectionMap(ManyBoxes):
    """r = COCO AP (mean over IoU .50:.05:.95, or at 0.5) x (min(1, m / n) if `length_penalty`), for n boxes and m gold boxes.

    Paper: VLM-R1, arXiv:2504.07615, sec. 3 (odLength = mAP x length penalty); AP as in COCO, arXiv:1405.0312.
    Deviates: a predicted category without a gold box counts as AP 0 (the release drops it, so invented classes are free); `extra: ignore` restores
    that.
    Our own code, several times faster than pycocotools on one picture; equal to it within 1e-12 (`test_reference_boxes.py`).
    `ranking` declares the score rule: boxes as listed ("order", what equal scores give) or by stated confidence ("answer").
    Edge: as `detection`. AP forgives false alarms that come after the right boxes, so the length penalty is on by default. Range [0, 1].
    """

    metric: Literal["map", "ap50"] = "map"
    length_penalty: bool = True
    ranking: Literal["order", "answer"] = "order"
    extra: Literal["zero", "ignore"] = "zero"

    def score_boxes(self, boxes: list[Box], gold: list[Box], scene: Scene) -> float:
        thresholds = COCO_THRESHOLDS if self.metric == "map" else (0.5,)
        value = average_precision(ranked(boxes, self.ranking), gold, thresholds, self.with_labels(gold), self.extra)
        return value * min(1.0, len(gold) / len(boxes)) if self.length_penalty else value
