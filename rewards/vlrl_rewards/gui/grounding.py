"""Where to click on a screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.registry import register
from vlrl_rewards.boxes.geometry import overlap
from vlrl_rewards.boxes.reading import Box, gold_boxes, read_boxes, committed_item
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged
from vlrl_rewards.points.points import centre, inside


@judged("gui_grounding")
@register("gui_grounding")
@dataclass(frozen=True, kw_only=True)
class GuiGrounding(Graded):
    """r = hit + a IoU + b box, hit = 1[centre of the box in the gold box], box = harmonic mean of 1 - |dx1|/W, 1 - |dx2|/W, 1 - |dy1|/H, 1 - |dy2|/H.

    Paper: GUI-G1, arXiv:2505.15810, sec. 4.2 (a 0.25, b 0.125). W, H: size of the original picture (of `scene.spaces`, else `meta.size`).
    Deviates: the size terms count only on a hit (a box of the right size elsewhere earns nothing); a side that is off by the picture's size or more
    gives 0.
    Edge: no box, several, or one without area: 0. Range [0, 1 + a + b]. Units: pixels of the original.
    """

    iou: float = 0.25
    box: float = 0.125
    picture: int = 0

    def target(self, gold: Any, scene: Scene) -> tuple[Box, tuple[float, float]]:
        boxes = gold_boxes(gold)
        picture = scene.meta.get("picture", self.picture)
        size = scene.spaces[picture].original if scene.spaces else scene.meta.get("size")
        if len(boxes) != 1 or not size:
            raise ValueError(f"answer: reward {self.name!r} needs one gold box ({len(boxes)}) and the picture's size (spaces, or meta.size: {size})")
        return boxes[0], (float(size[0]), float(size[1]))

    def grade(self, target: tuple[Box, tuple[float, float]], answer: Answer, scene: Scene) -> Grade:
        gold, size = target
        boxes = read_boxes(answer.text, scene.spaces, scene.meta.get("picture", self.picture))
        box = committed_item(boxes, answer.text, answer.tagged) if boxes else None
        if box is None or box.xyxy[2] <= box.xyxy[0] or box.xyxy[3] <= box.xyxy[1]:
            return self.refuse("the answer does not commit to one box")
        if not inside(centre(box.xyxy), gold.xyxy):
            return self.refuse("the centre is off", str(list(box.xyxy)))
        fit = harmonic([1 - abs(box.xyxy[i] - gold.xyxy[i]) / size[i % 2] for i in range(4)])
        return Grade(1 + self.iou * overlap(box.xyxy, gold.xyxy) + self.box * fit, True, "hit", str(list(box.xyxy)))


def harmonic(values: Sequence[float]) -> float:
    """Harmonic mean; 0 if a value is not above 0."""
    return len(values) / sum(1 / v for v in values) if all(v > 0 for v in values) else 0.0
