"""Object detection: reads the boxes of a response and keeps them for the aggregate `coco_map`, which runs
pycocotools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.eval.expressions import evaluate
from vlrl.eval.scorer import Record, Scorer
from vlrl.eval.scorers.boxes import UNITS, iou, to_box
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Response, Verdict

_FENCE = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)
_BOX_KEYS, _LABEL_KEYS, _SCORE_KEYS = (
    ("bbox_2d", "bbox", "box"),
    ("label", "category", "class", "name"),
    ("score", "confidence"),
)


def first_of(item: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """The value of the first key that an object has; None if it has none of them."""
    return next((item[key] for key in keys if key in item), None)


def json_list(response: str) -> list[Any] | None:
    """The JSON list of a response: in a code fence, or from its first [ to its last ]. None if nothing parses
    as a list."""
    fenced = _FENCE.search(response)
    text = fenced.group(1) if fenced else response
    start, end = text.find("["), text.rfind("]")
    if start < 0 or end < start:
        return None
    try:
        value = json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def detections(response: str) -> list[dict[str, Any]] | None:
    """The detections of a response: [{"box": [4 numbers], "label": text, "score": number or None}]; None
    without a JSON list.

    Entries without a box of four numbers are left out.
    """
    items = json_list(response)
    if items is None:
        return None
    out = []
    for item in items:
        box = first_of(item, _BOX_KEYS) if isinstance(item, Mapping) else None
        if (
            isinstance(box, list)
            and len(box) == 4
            and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in box)
        ):
            score = first_of(item, _SCORE_KEYS)
            stated = float(score) if isinstance(score, (int, float)) and not isinstance(score, bool) else None
            out.append(
                {
                    "box": [float(v) for v in box],
                    "label": str(first_of(item, _LABEL_KEYS) or "").strip().lower(),
                    "score": stated,
                }
            )
    return out


@register("detection")
@dataclass(frozen=True)
class DetectionScorer(Scorer):
    """Object detection: score = F1 of this picture at IoU 0.5 with equal labels, matched greedily by
    detection score.

    The boxes go into `details`, for COCO's mAP. Paper: COCO (arXiv:1405.0312). Language models rarely state a
    detection score: without one, entry i of n gets 1 - i / n, so that earlier boxes rank higher. `objects`
    gives {"bbox": [...], "category": [...]}, `names` the category names by number.
    """

    objects: str = "row.objects"
    names: str = ""
    layout: Literal["xyxy", "xywh"] = "xyxy"
    size: str = "[row.width, row.height]"
    units: Literal["unit", "guessed", "declared"] = "declared"
    # an expression: the labels for which this picture is annotated (LVIS); boxes of other labels are left out
    allowed: str = ""

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        width, height = (float(value) for value in evaluate(self.size, row))
        size = (width, height)
        found = detections(response.text)
        labels = (
            {str(label).strip().lower() for label in evaluate(self.allowed, row)} if self.allowed else None
        )
        boxes = []
        for place, item in enumerate(found or ()):
            if labels is not None and item["label"] not in labels:
                continue
            unit = UNITS[self.units](to_box(item["box"]), size, response.spaces)
            rank = item["score"] if item["score"] is not None else 1 - place / max(1, len(found or ()))
            boxes.append(
                {
                    "box": [value * size[i % 2] for i, value in enumerate(unit)],
                    "label": item["label"],
                    "score": rank,
                }
            )
        details = {"boxes": boxes, "gold_boxes": gold, "size": size}
        read = None if found is None else f"{len(boxes)} boxes"
        return self.scored(self._f1(gold, boxes), read, "json", details)

    def expected(self, record: Record) -> list[dict[str, Any]]:
        """The gold objects, boxes as xyxy pixels."""
        value = evaluate(self.objects, record)
        table = evaluate(self.names, record) if self.names else None
        out = []
        for i, (box, category) in enumerate(zip(value["bbox"], value["category"], strict=True)):
            a, b, c, d = (float(v) for v in box)
            label = str(table[category] if table is not None else category).strip().lower()
            xyxy = [a, b, a + c, b + d] if self.layout == "xywh" else [a, b, c, d]
            area = float(value["area"][i]) if value.get("area") else (xyxy[2] - xyxy[0]) * (xyxy[3] - xyxy[1])
            out.append(
                {
                    "box": xyxy,
                    "label": label,
                    "area": area,
                    "crowd": int((value.get("iscrowd") or [0] * (i + 1))[i]),
                }
            )
        return out

    @staticmethod
    def _f1(gold: list[dict[str, Any]], boxes: list[dict[str, Any]]) -> float:
        expected = [g for g in gold if not g["crowd"]]
        unmatched, hits = list(expected), 0
        for item in sorted(boxes, key=lambda b: -b["score"]):
            best = max(
                (g for g in unmatched if g["label"] == item["label"]),
                key=lambda g: iou(item["box"], g["box"]),
                default=None,
            )
            if best is not None and iou(item["box"], best["box"]) >= 0.5:
                unmatched.remove(best)
                hits += 1
        return 2 * hits / (len(expected) + len(boxes)) if expected or boxes else 1.0

    def demonstrations(self, record: Record) -> list[str]:
        return [
            json.dumps(
                [{"bbox_2d": g["box"], "label": g["label"]} for g in self.expected(record) if not g["crowd"]]
            )
        ]
