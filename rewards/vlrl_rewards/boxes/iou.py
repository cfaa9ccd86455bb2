"""Rewards for one box: overlap with the gold box, plain or as published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from vlrl.registry import register
from vlrl_rewards.boxes.geometry import WORST, overlap
from vlrl_rewards.boxes.reading import Box, gold_boxes, read_boxes, the_one
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged


@dataclass(frozen=True, kw_only=True)
class OneBox(Graded):
    """What rewards for one box share: which picture the box is on, how it is written, what counts as right."""

    picture: int = 0
    layout: Literal["xyxy", "xywh", "cxcywh", "yxyx"] = "xyxy"
    correct_at: float = 0.5

    def score_box(self, box: Box, gold: Box, scene: Scene) -> float:
        """The reward of a readable box; both boxes are in original pixels."""
        raise NotImplementedError

    def target(self, gold: Any, scene: Scene) -> Box:
        boxes = gold_boxes(gold)
        if len(boxes) != 1:
            raise ValueError(f"answer: reward {self.name!r} needs one gold box, got {len(boxes)}; use `detection` for several")
        return boxes[0]

    def grade(self, target: Box, answer: Answer, scene: Scene) -> Grade:
        boxes = read_boxes(answer.text, scene.spaces, scene.meta.get("picture", self.picture), self.layout)
        if not boxes:
            return self.refuse("no box in the answer")
        box = the_one(boxes, answer.text, answer.tagged)
        if box is None:
            return self.refuse("the answer names several boxes")
        iou = overlap(box.xyxy, target.xyxy)
        return Grade(self.score_box(box, target, scene), iou >= self.correct_at, f"IoU {iou:.3f}", str(list(box.xyxy)))


@judged("box", "iou")
@register("iou")
@dataclass(frozen=True, kw_only=True)
class Iou(OneBox):
    """r = overlap(box, gold)^power, or 1[overlap >= threshold].

    Paper: VLM-R1, arXiv:2504.07615, sec. 3 (IoU); Perception-R1, arXiv:2504.07954 (power 2 as released); GIoU arXiv:1902.09630;
    DIoU and CIoU arXiv:1911.08287.
    Deviates: continuous areas (the releases add one pixel to the intersection alone), floats are read, the conversion to original pixels is explicit.
    Edge: no box, several different boxes, or a box without area get the least value (0; -1 for giou and diou; -1.5 for ciou). Range [least, 1].
    Units: gold in original pixels; the answer in the policy's units. `power` is for `iou` only.
    """

    overlap: Literal["iou", "giou", "diou", "ciou"] = "iou"
    threshold: float | None = None
    power: float = 1.0

    def __post_init__(self) -> None:
        if self.power <= 0 or (self.power != 1 and self.overlap != "iou"):
            raise ValueError(f"power: {self.power} needs overlap 'iou' and a value above 0 (overlap is {self.overlap!r})")
        if self.threshold is not None and not WORST[self.overlap] < self.threshold <= 1:
            raise ValueError(f"threshold: {self.threshold} must lie in ({WORST[self.overlap]}, 1]")

    def lowest(self) -> float:
        return WORST[self.overlap] if self.threshold is None else 0.0

    def score_box(self, box: Box, gold: Box, scene: Scene) -> float:
        value = overlap(box.xyxy, gold.xyxy, self.overlap)
        if self.threshold is not None:
            return float(value >= self.threshold)
        return value**self.power if self.power != 1 else value
