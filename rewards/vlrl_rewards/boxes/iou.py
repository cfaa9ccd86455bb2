"""Rewards for one box: overlap with the gold box (IoU, GIoU, DIoU, CIoU)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.boxes.geometry import WORST, overlap
from vlrl_rewards.boxes.reading import Box, beyond_limits, committed_item, gold_boxes, read_boxes
from vlrl_rewards.graded import Graded, unreadable
from vlrl_rewards.kinds import verifier


@dataclass(frozen=True, kw_only=True)
class OneBox(Graded):
    """Base class of the rewards for one box.

    picture: number of the image that the box is on (`row.meta["picture"]` overrides it). layout: order of
    four bare numbers in the answer. Limits: an answer of more than 20,000 characters, or with more than 1,000
    boxes, has no box.
    correct_at: the score from which on the answer counts as correct; 0.5 is the usual IoU threshold
    (Acc@0.5).
    """

    picture: int = 0
    layout: Literal["xyxy", "xywh", "cxcywh", "yxyx"] = "xyxy"
    correct_at: float = 0.5

    @abstractmethod
    def score_box(self, box: Box, gold: Box) -> float:
        """The reward of a box; both boxes are in original pixels."""

    def target(self, gold: Any) -> Box:
        """The gold box. Raises GoldError for several."""
        boxes = gold_boxes(gold)
        if len(boxes) != 1:
            raise GoldError(
                f"answer: reward {self.name!r} needs one gold box, got {len(boxes)}; use `detection` for "
                "several"
            )
        return boxes[0]

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = self.target(gold)
        answer = self.committed(response)
        boxes = read_boxes(answer.text, response.spaces, row.meta.get("picture", self.picture), self.layout)
        if not boxes:
            raise unreadable("box", answer, beyond_limits(answer.text))
        box = committed_item(boxes, answer.text, answer.tagged)
        if box is None:
            raise Unread("the answer names several boxes", answer)
        score = self.score_box(box, target)
        return self.scored(
            answer,
            score,
            score >= self.correct_at,
            f"IoU {overlap(box.xyxy, target.xyxy):.3f}",
            str(list(box.xyxy)),
        )


@verifier("box", "iou")
@register("iou")
@dataclass(frozen=True, kw_only=True)
class Iou(OneBox):
    """Visual grounding reward: overlap of the predicted box with the gold box.

        r = overlap(box, gold)^power
        r = 1[overlap(box, gold) >= correct_at]   (with `binary`)

    Paper: VLM-R1, arXiv:2504.07615, sec. 3 (IoU); Perception-R1, arXiv:2504.07954 (power 2 as released); GIoU
    arXiv:1902.09630; DIoU and CIoU arXiv:1911.08287. Deviates: rewards/DEVIATIONS.md. Edge: no box, several
    different boxes, or a box without area score the lowest value (0; -1 for giou and diou; -1.5 for ciou).
    Range: [lowest value, 1]; {0, 1} with `binary`. Units: gold in original pixels; the answer in the policy's
    units. `power` applies to `iou` only. `correct_at` is compared with the score: with power 2, an IoU of 0.5
    is a score of 0.25.
    """

    overlap: Literal["iou", "giou", "diou", "ciou"] = "iou"
    binary: bool = False
    power: float = 1.0

    def __post_init__(self) -> None:
        if self.power <= 0 or (self.power != 1 and self.overlap != "iou"):
            raise ValueError(
                f"power: must be above 0, and 1 unless overlap is 'iou'; got {self.power} with overlap "
                f"{self.overlap!r}"
            )
        if self.binary and not 0 < self.correct_at <= 1:
            raise ValueError(f"correct_at: {self.correct_at} must lie in (0, 1] where binary is set")

    def lowest(self) -> float:
        return 0.0 if self.binary else WORST[self.overlap]

    def score_box(self, box: Box, gold: Box) -> float:
        value = overlap(box.xyxy, gold.xyxy, self.overlap)
        if self.binary:
            return float(value >= self.correct_at)
        return value**self.power if self.power != 1 else value
