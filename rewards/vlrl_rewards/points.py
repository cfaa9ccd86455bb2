"""Several points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vlrl.registry import register
from vlrl_rewards.boxes import Box, Point, gold_boxes, gold_points, read_points, says_none
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged
from vlrl_rewards.matching import hungarian
from vlrl_rewards.point import centre, distance, inside, is_box


@judged("points")
@register("points")
@dataclass(frozen=True, kw_only=True)
class Points(Graded):
    """r = 2 TP / (n + m) ("f1"), TP / max(n, m) ("max") or 1[TP = n = m] ("exact"): TP of n points are matched one-to-one to the m gold regions.

    Paper: Perception-R1, arXiv:2504.07954, sec. 3.3 (counting by pointing, matched one-to-one); point protocol of Molmo, arXiv:2409.17146.
    A point matches a gold box that holds it, or a gold point within `radius`. Matching: Hungarian, nearest first among equals.
    Edge: no gold: 1 for "None" or "[]", else 0; unreadable: 0. Range [0, 1]. Units: pixels of the original.
    """

    metric: Literal["f1", "max", "exact"] = "f1"
    radius: float = 0.0
    picture: int = 0

    def target(self, gold: Any, scene: Scene) -> list[Box] | list[Point]:
        if (isinstance(gold, (list, tuple)) and not gold) or (isinstance(gold, str) and says_none(gold)):
            return []
        if is_box(gold):
            return gold_boxes(gold)
        if self.radius <= 0:
            raise ValueError(f"radius: must be above 0 where the gold answers are points, got {self.radius}")
        return gold_points(gold)

    def grade(self, target: list[Any], answer: Answer, scene: Scene) -> Grade:
        points = read_points(answer.text, scene.spaces, scene.meta.get("picture", self.picture))
        if points is None or not (points or answer.text):
            return self.refuse("no point in the answer")
        if not target or not points:
            return Grade(1.0, True, "nothing there, and said so") if not target and not points else self.refuse("misses or false alarms")
        hits = len(hungarian(np.array([[self.closeness(p, g) for g in target] for p in points])))
        exact = hits == len(target) == len(points)
        table = {"f1": 2 * hits / (len(points) + len(target)), "max": hits / max(len(points), len(target)), "exact": float(exact)}
        return Grade(table[self.metric], exact, f"{hits} of {len(target)} with {len(points)} points", f"{len(points)} points")

    def closeness(self, point: Point, gold: Box | Point) -> float:
        """1 + a little for being near if the point matches, else 0: the number of matches comes first."""
        if isinstance(gold, Box):
            return 1.0 + 1e-4 / (1 + distance(point.xy, centre(gold.xyxy))) if inside(point.xy, gold.xyxy) else 0.0
        away = distance(point.xy, gold.xy)
        return 1.0 + 1e-4 / (1 + away) if away <= self.radius else 0.0
