"""Point rewards: a click in a box or near a point, and several points matched with gold regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict
from vlrl.types import CoordinateSpace, Row
from vlrl_rewards.boxes.matching import hungarian
from vlrl_rewards.boxes.reading import (
    Box,
    Point,
    beyond_limits,
    committed_item,
    gold_boxes,
    gold_points,
    parse_boxes,
    read_boxes,
    read_points,
    says_none,
)
from vlrl_rewards.graded import Graded, unreadable
from vlrl_rewards.kinds import verifier


def inside(point: Sequence[float], box: Sequence[float]) -> bool:
    """Whether (x, y) lies in [x1, y1, x2, y2]; the edges belong to the box."""
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]


def centre(box: Sequence[float]) -> tuple[float, float]:
    """The centre of a box."""
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """Euclidean distance."""
    return math.hypot(a[0] - b[0], a[1] - b[1])


def one_point(
    answer: Answer, spaces: Sequence[CoordinateSpace], picture: int, from_box: bool = False
) -> Point | None:
    """The point that an answer commits to, in original pixels, or None. With `from_box` a box counts as its
    centre."""
    if parse_boxes(answer.text):
        boxes = read_boxes(answer.text, spaces, picture) if from_box else None
        box = committed_item(boxes, answer.text, answer.tagged) if boxes else None
        return (
            Point(centre(box.xyxy))
            if box and box.xyxy[2] > box.xyxy[0] and box.xyxy[3] > box.xyxy[1]
            else None
        )
    points = read_points(answer.text, spaces, picture)
    return committed_item(points, answer.text, answer.tagged) if points else None


def is_box(gold: Any) -> bool:
    """Whether a gold answer consists of boxes and not of points; [[1, 2], [3, 4]] is two points."""
    return bool(parse_boxes(gold if isinstance(gold, str) else str(gold))) and not _only_pairs(gold)


def _only_pairs(gold: Any) -> bool:
    return isinstance(gold, (list, tuple)) and all(isinstance(g, (list, tuple)) and len(g) == 2 for g in gold)


@verifier("point", "click")
@register("point")
@dataclass(frozen=True, kw_only=True)
class PointReward(Graded):
    """Pointing reward: whether the point lies in the gold box or near the gold point.

        gold box:    r = 1[point in box]
        gold point:  r = 1[d <= radius], or exp(-d / radius) with `soft`

    Paper: GUI-R1, arXiv:2504.10458, sec. 3.2 (in box; 140 px around a gold point); UI-R1, arXiv:2503.21620,
    eq. 4 (in box). Deviates: rewards/DEVIATIONS.md. Edge: no point, several different points, a box (unless
    `from_box`, which takes its centre): 0. Range [0, 1]. Units: original pixels. `correct_at`: e^-1 rounded
    down, the soft score at the distance `radius` and in the corner of the gold box, so that every hit is
    correct.
    """

    correct_at: float = 0.3678
    radius: float = 0.0
    soft: bool = False
    from_box: bool = False
    picture: int = 0

    def target(self, gold: Any, row: Row) -> Box | Point:
        if is_box(gold):
            boxes = gold_boxes(gold)
            if len(boxes) != 1:
                raise GoldError(
                    f"answer: reward 'point' needs one gold box or point, got {len(boxes)} boxes; use "
                    "`points` for several"
                )
            return boxes[0]
        points = gold_points(gold)
        if len(points) != 1 or self.radius <= 0:
            raise GoldError(
                "answer: a gold point needs radius above 0 and must be the only one; got radius "
                f"{self.radius}, {len(points)} points: {gold!r:.200}"
            )
        return points[0]

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = self.target(gold, row)
        answer = self.committed(response)
        point = one_point(answer, response.spaces, row.meta.get("picture", self.picture), self.from_box)
        if point is None:
            raise Unread("the answer does not commit to one point", answer)
        if isinstance(target, Box):
            hit = inside(point.xy, target.xyxy)
            away = distance(point.xy, centre(target.xyxy)) / distance(target.xyxy[:2], target.xyxy[2:])
            score = math.exp(-2 * away) if self.soft and hit else float(hit)
        else:
            away = distance(point.xy, target.xy) / self.radius
            hit = away <= 1
            score = math.exp(-min(away, 700)) if self.soft else float(hit)
        return self.scored(answer, score, hit, "on target" if hit else "off target", str(list(point.xy)))


@verifier("points")
@register("points")
@dataclass(frozen=True, kw_only=True)
class Points(Graded):
    """Counting by pointing: F1 of n points matched one-to-one with m gold regions, TP of them.

        f1: r = 2 TP / (n + m);  max: r = TP / max(n, m);  exact: r = 1[TP = n = m]

    Paper: Perception-R1, arXiv:2504.07954, sec. 3.3 (counting by pointing, matched one-to-one); point
    protocol of Molmo, arXiv:2409.17146. A point matches a gold box that contains it, or a gold point within
    `radius`. Matching: Hungarian; among equal matchings the nearest one. Edge: no gold: 1 for "None" or "[]",
    else 0; unreadable: 0. Range [0, 1]; correct at 1. Units: original pixels.
    Limits: an answer of more than 20,000 characters, or with more than 1,000 points, has no point.
    """

    metric: Literal["f1", "max", "exact"] = "f1"
    radius: float = 0.0
    picture: int = 0

    def target(self, gold: Any, row: Row) -> list[Box] | list[Point]:
        if (isinstance(gold, (list, tuple)) and not gold) or (isinstance(gold, str) and says_none(gold)):
            return []
        if is_box(gold):
            return gold_boxes(gold)
        if self.radius <= 0:
            raise GoldError(
                f"radius: must be above 0 where the gold answer is points, got {self.radius} for "
                f"{gold!r:.200}"
            )
        return gold_points(gold)

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = self.target(gold, row)
        answer = self.committed(response)
        points = read_points(answer.text, response.spaces, row.meta.get("picture", self.picture))
        if points is None or not (points or answer.text):
            raise unreadable("point", answer, beyond_limits(answer.text))
        if not target or not points:
            return (
                self.scored(answer, 1.0, True, "no points, and the answer says so")
                if not target and not points
                else self.wrong(answer, "misses or false alarms")
            )
        hits = len(hungarian(np.array([[self.closeness(p, g) for g in target] for p in points])))
        exact = hits == len(target) == len(points)
        table = {
            "f1": 2 * hits / (len(points) + len(target)),
            "max": hits / max(len(points), len(target)),
            "exact": float(exact),
        }
        return self.scored(
            answer,
            table[self.metric],
            exact,
            f"{hits} of {len(target)} with {len(points)} points",
            f"{len(points)} points",
        )

    def closeness(self, point: Point, gold: Box | Point) -> float:
        """1 plus at most 1e-4 for nearness if the point matches, else 0, so that the number of matches
        decides before the distance."""
        if isinstance(gold, Box):
            return (
                1.0 + 1e-4 / (1 + distance(point.xy, centre(gold.xyxy)))
                if inside(point.xy, gold.xyxy)
                else 0.0
            )
        away = distance(point.xy, gold.xy)
        return 1.0 + 1e-4 / (1 + away) if away <= self.radius else 0.0
