"""Candidate boxes that a GUI agent names before it thinks (BTL-UI)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlrl.registry import register
from vlrl_rewards.boxes.geometry import matrix, overlap
from vlrl_rewards.boxes.reading import Box, gold_boxes, read_boxes
from vlrl_rewards.graded import Answer, Grade, Graded, Scene
from vlrl_rewards.text.process import section


@register("blink")
@dataclass(frozen=True, kw_only=True)
class Blink(Graded):
    """r = 1[at most `most` candidate boxes, each pair with IoU <= 0.5, and one with IoU > 0.5 with the gold box].

    Paper: BTL-UI, arXiv:2509.15566 (blink reward: the list survives non-maximum suppression at 0.5 and one box hits).
    Deviates: the list has at most `most` boxes (the release has no limit, so a grid of boxes always hits); a row without gold boxes requires an
    empty list.
    Edge: no `<blink>` section, or two: 0. Range {0, 1}. Units: gold in original pixels.
    """

    most: int = 5
    iou_threshold: float = 0.5
    tag: str = "blink"
    picture: int = 0

    def target(self, gold: Any, scene: Scene) -> list[Box]:
        return gold_boxes(gold)

    def judge(self, gold: Any, response: str, scene: Scene | None = None, answer: Answer | None = None) -> Grade:
        """Judge the candidate section of a response (not its answer)."""
        scene = scene or Scene(response=response)
        target, text = self.target(gold, scene), section(response, self.tag)
        return self.grade(target, Answer(text, True), scene) if text else self.refuse(f"no <{self.tag}> section, or several")

    def grade(self, target: list[Box], answer: Answer, scene: Scene) -> Grade:
        boxes = read_boxes(answer.text, scene.spaces, scene.meta.get("picture", self.picture))
        if boxes is None:
            return self.refuse("no boxes")
        if not target or not boxes:
            return Grade(float(not target and not boxes), not target and not boxes, f"{len(boxes)} boxes for {len(target)}")
        if len(boxes) > self.most:
            return self.refuse(f"{len(boxes)} boxes, more than {self.most}")
        between = matrix([b.xyxy for b in boxes], [b.xyxy for b in boxes])
        apart = all(between[i, j] <= self.iou_threshold for i in range(len(boxes)) for j in range(i))
        hit = any(overlap(b.xyxy, g.xyxy) > self.iou_threshold for b in boxes for g in target)
        return Grade(float(apart and hit), apart and hit, "hit" if hit else "no hit")
