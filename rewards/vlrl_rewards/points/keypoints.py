"""Keypoint reward: object keypoint similarity (OKS) of the COCO evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Verdict
from vlrl.types import Row
from vlrl_rewards.boxes.reading import beyond_limits, point_to_original
from vlrl_rewards.boxes.unbracketed import label_before
from vlrl_rewards.graded import Graded, unreadable
from vlrl_rewards.kinds import verifier
from vlrl_rewards.literals import find_values, is_number
from vlrl_rewards.recognition.classification import normal_label

_SIDES = ("eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle")
COCO_NAMES = ("nose", *(f"{side} {part}" for part in _SIDES for side in ("left", "right")))
COCO_SIGMAS = (
    0.026,
    0.025,
    0.025,
    0.035,
    0.035,
    0.079,
    0.079,
    0.072,
    0.072,
    0.062,
    0.062,
    0.107,
    0.107,
    0.087,
    0.087,
    0.089,
    0.089,
)
Keypoint = tuple[float, float, float]  # x, y, visibility


def oks(
    predicted: Sequence[tuple[float, float] | None],
    gold: Sequence[Keypoint],
    area: float,
    sigmas: Sequence[float],
) -> float:
    """Object keypoint similarity, in [0, 1]: mean over the labelled keypoints i of exp(-d_i^2 / (2 s^2 (2
    sigma_i)^2)), with s^2 = area.

    A missing prediction adds 0. Source: the COCO keypoint evaluation (k_i = 2 sigma_i). Raises ValueError if
    no gold keypoint is labelled.
    """
    labelled = [i for i, point in enumerate(gold) if point[2] > 0]
    if not labelled:
        raise GoldError("keypoints: no gold keypoint is labelled (visibility above 0)")
    total = 0.0
    for i in labelled:
        point = predicted[i]
        if point is not None:
            squared = (point[0] - gold[i][0]) ** 2 + (point[1] - gold[i][1]) ** 2
            total += math.exp(-min(squared / (2 * area * (2 * sigmas[i]) ** 2), 700.0))
    return total / len(labelled)


@verifier("keypoints")
@register("keypoints")
@dataclass(frozen=True, kw_only=True)
class Keypoints(Graded):
    """Object keypoint similarity (OKS) of one object.

        r = mean over labelled keypoints of exp(-d_i^2 / (2 s^2 k_i^2)),  k_i = 2 sigma_i, s^2 the area of the
        object

    Paper: COCO keypoints, arXiv:1405.0312 and its evaluation; as a reward: vlrl original. Gold: {"keypoints":
    [x, y, v, ...] or {name: [x, y]}, "area": pixels (or "bbox": [x1, y1, x2, y2])}. Answer: {"nose": [x, y],
    ...}, or a list of [x, y] (or null) in the order of `names`. Edge: a keypoint that is not given adds 0; an
    unreadable answer, or a name given twice, is 0. false_points: multiplies by labelled / (labelled +
    keypoints given that the gold does not have). Range [0, 1]. Units: original pixels.
    """

    names: tuple[str, ...] = COCO_NAMES
    sigmas: tuple[float, ...] = COCO_SIGMAS
    false_points: bool = False
    correct_at: float = 0.5
    picture: int = 0

    def __post_init__(self) -> None:
        if len(self.names) != len(self.sigmas) or not all(s > 0 for s in self.sigmas):
            raise ValueError(
                f"sigmas: need one positive number for each of the {len(self.names)} names, got "
                f"{len(self.sigmas)}"
            )

    def target(self, gold: Any, row: Row) -> tuple[list[Keypoint], float]:
        points = gold.get("keypoints") if isinstance(gold, Mapping) else None
        if isinstance(points, Mapping):
            named = {normal_label(str(k)): v for k, v in points.items()}
            flat = [
                c
                for name in self.names
                for c in (
                    (*named[normal_label(name)][:2], 2.0) if normal_label(name) in named else (0.0, 0.0, 0.0)
                )
            ]
        else:
            flat = list(points or ())
        box = gold.get("bbox") if isinstance(gold, Mapping) else None
        area = (
            float(gold.get("area") or ((box[2] - box[0]) * (box[3] - box[1]) if box else 0))
            if isinstance(gold, Mapping)
            else 0.0
        )
        if len(flat) != 3 * len(self.names) or area <= 0:
            raise GoldError(
                f"answer: keypoints need 3 x {len(self.names)} numbers and an area (or bbox), got "
                f"{len(flat)} numbers and area {area}"
            )
        triples = [(float(flat[i]), float(flat[i + 1]), float(flat[i + 2])) for i in range(0, len(flat), 3)]
        if not any(point[2] > 0 for point in triples):
            raise GoldError("answer: no gold keypoint is labelled (visibility above 0)")
        return triples, area

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = self.target(gold, row)
        answer = self.committed(response)
        gold, area = target
        points = self.read(answer.text)
        if points is None:
            raise unreadable("keypoints", answer, beyond_limits(answer.text))
        picture = row.meta.get("picture", self.picture)
        converted = [None if p is None else point_to_original(p, response.spaces, picture) for p in points]
        score = oks(converted, gold, area, self.sigmas)
        if self.false_points:
            labelled = sum(point[2] > 0 for point in gold)
            score *= labelled / (
                labelled + sum(p is not None and g[2] <= 0 for p, g in zip(points, gold, strict=True))
            )
        return self.scored(answer, score, score >= self.correct_at, f"OKS {score:.3f}")

    def read(self, text: str) -> list[tuple[float, float] | None] | None:
        """The keypoints in the order of `names`, None for one that is not given; None if the answer contains
        no keypoints."""
        found = find_values(text)
        values = [f.value for f in found]
        if len(found) > 1:  # "nose: (1, 2), left eye: (3, 4)"
            named = {label_before(text, f.start): f.value for f in found}
            values = [named] if len(named) == len(found) and "" not in named else values
        value = values[0] if len(values) == 1 else None
        value = (
            value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict) else value
        )
        if isinstance(value, dict):
            inner = value.get("keypoints", value)
            if isinstance(inner, dict):
                named = {normal_label(str(k)): v for k, v in inner.items()}
                value = (
                    [named.get(normal_label(name)) for name in self.names]
                    if len(named) == len(inner)
                    else None
                )
            else:
                value = inner
        if not isinstance(value, list) or len(value) != len(self.names):
            return None
        points = [
            (float(v[0]), float(v[1]))
            if isinstance(v, list) and len(v) in (2, 3) and all(map(is_number, v))
            else None
            for v in value
        ]
        return points if any(points) else None
