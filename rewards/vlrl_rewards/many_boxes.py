"""What the rewards for many boxes share, and how boxes are matched."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vlrl_rewards.boxes import Box, gold_boxes, read_boxes
from vlrl_rewards.graded import Answer, Grade, Graded, Scene
from vlrl_rewards.matching import Pairs, by_confidence, hungarian, overlaps


def confidence(box: Box) -> float:
    """The stated confidence, cut to [0, 1]; 1 where none is stated."""
    return 1.0 if box.score is None else min(max(box.score, 0.0), 1.0)


@dataclass(frozen=True, kw_only=True)
class ManyBoxes(Graded):
    """What rewards for many boxes share. `labels`: whether labels must agree ("auto": where the gold has them)."""

    picture: int = 0
    layout: Literal["xyxy", "xywh", "cxcywh", "yxyx"] = "xyxy"
    labels: Literal["auto", "yes", "no"] = "auto"
    iou_threshold: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.iou_threshold <= 1:
            raise ValueError(f"iou_threshold: {self.iou_threshold} must lie in [0, 1]")

    def target(self, gold: Any, scene: Scene) -> list[Box]:
        boxes = gold_boxes(gold)
        if self.labels == "yes" and not all(box.label for box in boxes):
            raise ValueError(
                f"answer: labels are compared, but a gold box has none: {gold!r}; give {{'bbox': [...], 'label': ...}} or set labels: no"
            )
        return boxes

    def with_labels(self, gold: Sequence[Box]) -> bool:
        """Whether labels are compared."""
        return self.labels == "yes" or (self.labels == "auto" and any(box.label for box in gold))

    def grade(self, target: list[Box], answer: Answer, scene: Scene) -> Grade:
        boxes = read_boxes(answer.text, scene.spaces, scene.meta.get("picture", self.picture), self.layout)
        if boxes is None:
            return self.refuse("no boxes in the answer")
        if not target or not boxes:
            both = not target and not boxes
            return (
                Grade(1.0, True, "nothing there, and said so") if both else self.refuse("misses" if target else "false alarms", f"{len(boxes)} boxes")
            )
        pairs = hungarian(overlaps(boxes, target, self.with_labels(target)), self.iou_threshold)
        correct = len(pairs) == len(target) == len(boxes)
        score = self.score_boxes(boxes, target, scene)
        return Grade(score, correct, f"{len(pairs)} of {len(target)} found with {len(boxes)} boxes", f"{len(boxes)} boxes")

    @abstractmethod
    def score_boxes(self, boxes: list[Box], gold: list[Box], scene: Scene) -> float:
        """The reward where both lists have members; everything is in original pixels."""


def match(score_NM: np.ndarray, boxes: Sequence[Box], how: str, minimum: float) -> Pairs:
    """One-to-one pairs, "hungarian" or by "confidence"."""
    return hungarian(score_NM, minimum) if how == "hungarian" else by_confidence(score_NM, [confidence(b) for b in boxes], minimum)


def salience_of(scene: Scene, name: str, count: int) -> list[float]:
    """Weights of the gold boxes from the row's meta. Raises ValueError unless there is a positive one for each box."""
    weights = [float(w) for w in scene.meta.get(name, ())]
    if len(weights) != count or not all(w > 0 for w in weights):
        raise ValueError(f"salience: row.meta[{name!r}] must hold {count} positive weights, one per gold box, got {weights}")
    return weights
