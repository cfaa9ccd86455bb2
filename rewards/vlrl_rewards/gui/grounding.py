"""GUI grounding rewards: the box of an element on a screen, and candidate boxes named before the
reasoning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.boxes.geometry import matrix, overlap
from vlrl_rewards.boxes.reading import committed_item, gold_boxes, read_boxes
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.points.points import centre, inside
from vlrl_rewards.text.process import section

BOX_KEYS = ("box", "bbox", "gt_bbox", "bbox_2d")


@verifier("gui_grounding")
@register("gui_grounding")
@dataclass(frozen=True, kw_only=True)
class GuiGrounding(Graded):
    """GUI grounding reward of GUI-G1: hit, IoU and box size.

        r = hit + a IoU + b box,  hit = 1[centre of the box in the gold box],
        box = harmonic mean of 1 - |dx1|/W, 1 - |dx2|/W, 1 - |dy1|/H, 1 - |dy2|/H

    Paper: GUI-G1, arXiv:2505.15810, sec. 4.2 (a 0.25, b 0.125). W, H: size of the original image (of
    `response.spaces`, else `meta.size`). Deviates: rewards/DEVIATIONS.md. Edge: no box, several, or one
    without area: 0. Range [0, 1 + a + b]; a hit is correct. Units: original pixels. `needs_hit: false` pays
    IoU and box size also without a hit, as the release.
    """

    iou: float = 0.25
    box: float = 0.125
    picture: int = 0
    needs_hit: bool = True

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        boxes = gold_boxes(gold)
        picture = row.meta.get("picture", self.picture)
        size = response.spaces[picture].original if response.spaces else row.meta.get("size")
        if len(boxes) != 1 or not size:
            raise GoldError(
                f"answer: reward {self.name!r} needs one gold box, got {len(boxes)}, and the image size "
                f"(spaces or meta.size), got {size}"
            )
        wanted = boxes[0]
        answer = self.committed(response)
        boxes = read_boxes(answer.text, response.spaces, picture) or []
        box = committed_item(boxes, answer.text, answer.tagged) if boxes else None
        if box is None or box.xyxy[2] <= box.xyxy[0] or box.xyxy[3] <= box.xyxy[1]:
            raise Unread("the answer does not commit to one box", answer)
        hit = inside(centre(box.xyxy), wanted.xyxy)
        if self.needs_hit and not hit:
            return self.wrong(answer, "the centre is outside the gold box", str(list(box.xyxy)))
        fit = harmonic([1 - abs(box.xyxy[i] - wanted.xyxy[i]) / size[i % 2] for i in range(4)])
        return self.scored(
            answer,
            hit + self.iou * overlap(box.xyxy, wanted.xyxy) + self.box * fit,
            hit,
            "hit" if hit else "the centre is outside the gold box",
            str(list(box.xyxy)),
        )


def harmonic(values: Sequence[float]) -> float:
    """Harmonic mean; 0 if a value is 0 or negative."""
    return len(values) / sum(1 / v for v in values) if all(v > 0 for v in values) else 0.0


@register("blink")
@dataclass(frozen=True, kw_only=True)
class Blink(Graded):
    """Blink reward of BTL-UI: candidate boxes that the response names before its reasoning.

        r = 1[at most `most` boxes, each pair with IoU < iou_threshold, and one with IoU > iou_threshold with
        the gold box]

    Paper: BTL-UI, arXiv:2509.15566 (blink reward: the list survives non-maximum suppression at 0.5 and one
    box hits). Released code: xiaomi-research/btl-ui, recipe/btl-ui/reward_fn.py, commit 3ad21ff. Deviates:
    rewards/DEVIATIONS.md. Gold: a box, or an action {"action": ..., "box": ...}; an action without a box has
    no gold boxes. Edge: no `<blink>` section, or two: 0. Range {0, 1}. Units: gold in original pixels.
    """

    most: int = 5
    iou_threshold: float = 0.5
    tag: str = "blink"
    picture: int = 0

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        without_place = (
            isinstance(gold, Mapping)
            and gold.get("action")
            and not any(gold.get(key) is not None for key in BOX_KEYS)
        )
        target = [] if without_place else gold_boxes(gold)
        answer = section(response, self.tag)
        boxes = read_boxes(answer.text, response.spaces, row.meta.get("picture", self.picture))
        if boxes is None:
            raise Unread("no boxes", answer)
        if not target or not boxes:
            return self.scored(
                answer,
                float(not target and not boxes),
                not target and not boxes,
                f"{len(boxes)} boxes for {len(target)}",
            )
        if len(boxes) > self.most:
            return self.wrong(answer, f"{len(boxes)} boxes, more than {self.most}")
        between = matrix([b.xyxy for b in boxes], [b.xyxy for b in boxes])
        apart = all(between[i, j] < self.iou_threshold for i in range(len(boxes)) for j in range(i))
        hit = any(overlap(b.xyxy, g.xyxy) > self.iou_threshold for b in boxes for g in target)
        return self.scored(answer, float(apart and hit), apart and hit, "hit" if hit else "no hit")
