"""Object detection rewards for many boxes: matched overlap, COCO average precision, and the published
mixtures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Verdict
from vlrl.types import Row
from vlrl_rewards.boxes.matching import (
    COCO_THRESHOLDS,
    Pairs,
    average_precision,
    by_confidence,
    hungarian,
    label_mask,
    overlaps,
    ranked,
)
from vlrl_rewards.boxes.reading import Box, beyond_limits, gold_boxes, read_boxes
from vlrl_rewards.graded import Graded, unreadable
from vlrl_rewards.kinds import verifier


def confidence(box: Box) -> float:
    """The stated confidence, clipped to [0, 1]; 1 where none is stated."""
    return 1.0 if box.score is None else min(max(box.score, 0.0), 1.0)


@dataclass(frozen=True, kw_only=True)
class ManyBoxes(Graded):
    """Base class of the rewards for many boxes.

    picture: number of the image that the boxes are on (`row.meta["picture"]` overrides it). layout: order of
    four bare numbers in the answer. labels: whether the labels must agree ("auto": where a gold box has one).
    iou_threshold: the IoU from which on a pair is a match. Limits: an answer of more than 20,000 characters,
    or with more than 1,000 boxes, has no boxes.
    duplicates: equal boxes count each, or the first alone ("drop").
    correct_at: the score from which on the answer counts as correct. A verdict of `verify` is stricter: it is
    correct if every gold box is matched and no other box is given.
    """

    picture: int = 0
    layout: Literal["xyxy", "xywh", "cxcywh", "yxyx"] = "xyxy"
    labels: Literal["auto", "yes", "no"] = "auto"
    iou_threshold: float = 0.5
    duplicates: Literal["count", "drop"] = "count"
    correct_at: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.iou_threshold <= 1:
            raise ValueError(f"iou_threshold: {self.iou_threshold} must lie in [0, 1]")

    def target(self, gold: Any, row: Row) -> list[Box]:
        boxes = gold_boxes(gold)
        if self.labels == "yes" and not all(box.label for box in boxes):
            raise GoldError(
                f"answer: labels: yes needs a label on every gold box, got {gold!r}; give {{'bbox': [...], "
                f"'label': ...}} or set labels: no"
            )
        return boxes

    def with_labels(self, gold: Sequence[Box]) -> bool:
        """Whether labels are compared."""
        return self.labels == "yes" or (self.labels == "auto" and any(box.label for box in gold))

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = self.target(gold, row)
        answer = self.committed(response)
        boxes = read_boxes(answer.text, response.spaces, row.meta.get("picture", self.picture), self.layout)
        if boxes is None:
            raise unreadable("boxes", answer, beyond_limits(answer.text))
        if self.duplicates == "drop":
            boxes = list({box.xyxy: box for box in reversed(boxes)}.values())[::-1]
        if not target or not boxes:
            if not target and not boxes:
                return self.scored(answer, 1.0, True, "no objects, and the answer says so")
            return self.wrong(answer, "misses" if target else "false alarms", f"{len(boxes)} boxes")
        pairs = hungarian(overlaps(boxes, target, self.with_labels(target)), self.iou_threshold)
        correct = len(pairs) == len(target) == len(boxes)
        score = self.score_boxes(boxes, target, row)
        return self.scored(
            answer,
            score,
            correct,
            f"{len(pairs)} of {len(target)} found with {len(boxes)} boxes",
            f"{len(boxes)} boxes",
        )

    @abstractmethod
    def score_boxes(self, boxes: list[Box], gold: list[Box], row: Row) -> float:
        """The reward of two non-empty lists of boxes, in original pixels."""


def match(score_NM: np.ndarray, boxes: Sequence[Box], how: str, minimum: float) -> Pairs:
    """One-to-one pairs by the method `how`: "hungarian" or "confidence"."""
    return (
        hungarian(score_NM, minimum)
        if how == "hungarian"
        else by_confidence(score_NM, [confidence(b) for b in boxes], minimum)
    )


def salience_of(row: Row, name: str, count: int) -> list[float]:
    """The weights of the gold boxes, from `row.meta[name]`. Raises ValueError unless it holds one positive
    weight for each box."""
    weights = [float(w) for w in row.meta.get(name, ())]
    if len(weights) != count or not all(w > 0 for w in weights):
        raise GoldError(
            f"salience: row.meta[{name!r}] must hold {count} positive weights, one per gold box, got "
            f"{weights}"
        )
    return weights


@verifier("boxes", "detection")
@register("detection")
@dataclass(frozen=True, kw_only=True)
class Detection(ManyBoxes):
    """Detection reward: sum of matched IoU, normalised by the number of predicted (n) and gold (m) boxes.

        r = sum of matched IoU / D,  D = max(n, m) ("max"), (n + m) / 2 ("f1") or m ("recall")
        r = sum_k w_k IoU_k / (sum_k w_k + max(0, n - m) mean w)   (with `salience`)

    Paper: Visual-RFT, arXiv:2503.01785, eq. 3-4 (D = n); Perception-R1, arXiv:2504.07954, sec. 3.3 (Hungarian
    matching); GRiP, arXiv:2511.22172 (salience). Deviates: rewards/DEVIATIONS.md. Matching by confidence is
    greedy, most confident box first; `salience` names the field of `row.meta` with a weight per gold box;
    "recall" does not penalise false alarms. Edge: no gold boxes: 1 for "None" or "[]", else 0. Range
    [0, 1].
    """

    matching: Literal["hungarian", "confidence"] = "hungarian"
    denominator: Literal["max", "f1", "recall"] = "max"
    salience: str = ""

    def score_boxes(self, boxes: list[Box], gold: list[Box], row: Row) -> float:
        iou_NM = overlaps(boxes, gold, self.with_labels(gold))
        pairs = match(iou_NM, boxes, self.matching, self.iou_threshold)
        if self.salience:
            weights = salience_of(row, self.salience, len(gold))
            spurious = (
                max(0, len(boxes) - len(gold)) * float(np.mean(weights))
                if self.denominator != "recall"
                else 0.0
            )
            return sum(weights[j] * float(iou_NM[i, j]) for i, j in pairs) / (sum(weights) + spurious)
        total = sum(float(iou_NM[i, j]) for i, j in pairs)
        table = {"max": max(len(boxes), len(gold)), "f1": (len(boxes) + len(gold)) / 2, "recall": len(gold)}
        return total / table[self.denominator]


@verifier("boxes_map")
@register("detection_map")
@dataclass(frozen=True, kw_only=True)
class DetectionMap(ManyBoxes):
    """mAP reward: COCO average precision of one image, with a penalty for extra boxes.

        r = AP x min(1, m / n)   (the factor with `length_penalty`; n predicted boxes, m gold boxes)

    AP is the mean over the IoU thresholds .50:.05:.95 ("map") or at 0.5 ("ap50").

    Paper: VLM-R1, arXiv:2504.07615, sec. 3 (odLength = mAP x length penalty); AP as in COCO, arXiv:1405.0312.
    Deviates: rewards/DEVIATIONS.md. Equal to pycocotools within 1e-12. ranking: the order of the boxes: as
    listed ("order", equal to equal scores) or by stated confidence ("answer"). Edge: as `detection`. AP does
    not penalise false alarms that are ranked after the hits, so the length penalty is on by default. Range
    [0, 1].
    """

    metric: Literal["map", "ap50"] = "map"
    length_penalty: bool = True
    ranking: Literal["order", "answer"] = "order"
    extra: Literal["zero", "ignore"] = "zero"

    def score_boxes(self, boxes: list[Box], gold: list[Box], row: Row) -> float:
        thresholds = COCO_THRESHOLDS if self.metric == "map" else (0.5,)
        value = average_precision(
            ranked(boxes, self.ranking), gold, thresholds, self.with_labels(gold), self.extra
        )
        return value * min(1.0, len(gold) / len(boxes)) if self.length_penalty else value


@verifier("boxes_weighted")
@register("detection_weighted")
@dataclass(frozen=True, kw_only=True)
class DetectionWeighted(ManyBoxes):
    """Weighted detection reward: position, label and completeness of the matched boxes.

        r = a sum IoU / max(n, m) + b (correct labels) / max(n, m) + c (1 - (miss rate + false alarm rate) /
        2)

    The sums run over the Hungarian pairs of IoU >= `iou_threshold`; a is `position`, b `label`, c
    `completeness`. Paper: VLM-R1, arXiv:2504.07615 (weighted_sum of the release: a 0.7, b 0.0, c 0.3).
    Deviates: rewards/DEVIATIONS.md. Edge: as `detection`. A pair with different labels adds no IoU but still
    counts as found. No pair: 0. Range [0, 1].
    """

    position: float = 0.7
    label: float = 0.0
    completeness: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            abs(self.position + self.label + self.completeness - 1) > 1e-9
            or min(self.position, self.label, self.completeness) < 0
        ):
            raise ValueError(
                f"position, label, completeness: must be >= 0 and sum to 1, got {self.position}, "
                f"{self.label}, {self.completeness}"
            )

    def score_boxes(self, boxes: list[Box], gold: list[Box], row: Row) -> float:
        iou_NM = overlaps(boxes, gold, labels=False)
        same_NM = label_mask(boxes, gold) if self.with_labels(gold) else np.ones_like(iou_NM, dtype=bool)
        # The small bonus makes the matching prefer an equal label among equal overlaps.
        pairs = [
            (i, j) for i, j in hungarian(np.where(iou_NM >= self.iou_threshold, iou_NM + 1e-6 * same_NM, 0.0))
        ]
        if not pairs:
            return 0.0
        labelled = [(i, j) for i, j in pairs if same_NM[i, j]]
        miss, alarm = 1 - len(pairs) / len(gold), 1 - len(pairs) / len(boxes)
        larger = max(len(gold), len(boxes))
        place = sum(float(iou_NM[i, j]) for i, j in labelled) / larger
        return (
            self.position * place
            + self.label * len(labelled) / larger
            + self.completeness * (1 - (miss + alarm) / 2)
        )


@verifier("boxes_confidence")
@register("detection_confidence")
@dataclass(frozen=True, kw_only=True)
class DetectionConfidence(ManyBoxes):
    """Confidence reward of Visual-RFT: rewards a high confidence on matched boxes and a low one on the
    others.

        r = mean over boxes of (c if matched else 1 - c), c the stated confidence

    Paper: Visual-RFT, arXiv:2503.01785, eq. 5-6.
    Deviates: at least one box must be matched, and each missed gold box adds a 0 to the mean; otherwise
    distant boxes of confidence 0 earn the full reward; `missed: ignore` restores the release's rule. A
    missing confidence is 1. Matching: greedy, most confident box first. Edge: as `detection`. Range [0, 1].
    """

    missed: Literal["zero", "ignore"] = "zero"

    def score_boxes(self, boxes: list[Box], gold: list[Box], row: Row) -> float:
        pairs = by_confidence(
            overlaps(boxes, gold, self.with_labels(gold)), [confidence(b) for b in boxes], self.iou_threshold
        )
        hit = {i for i, _ in pairs}
        total = sum(confidence(b) if i in hit else 1 - confidence(b) for i, b in enumerate(boxes))
        if self.missed == "ignore":
            return total / len(boxes)
        missed = max(0, len(gold) - len(pairs))
        return total / (len(boxes) + missed) if pairs else 0.0
