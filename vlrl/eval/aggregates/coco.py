"""COCO's detection figures (mAP and AR), computed by pycocotools."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl.eval.scorer import Aggregate, Record
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Verdict

COCO_STATS = (
    "AP",
    "AP50",
    "AP75",
    "AP_small",
    "AP_medium",
    "AP_large",
    "AR1",
    "AR10",
    "AR100",
    "AR_small",
    "AR_medium",
    "AR_large",
)


def coco_sets(scored: Sequence[Verdict]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(annotations, detections) in COCO's format, one image per scored response; the categories are the
    labels of all gold boxes, sorted.

    A detection with a label that no gold box has belongs to no category and is left out, as in COCO.
    """
    labels = sorted({box["label"] for entry in scored for box in entry.details.get("gold_boxes", ())})
    number = {label: i + 1 for i, label in enumerate(labels)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    detections: list[dict[str, Any]] = []
    for image, entry in enumerate(scored, 1):
        width, height = entry.details.get("size", (0, 0))
        images.append({"id": image, "width": width, "height": height})
        for box in entry.details.get("gold_boxes", ()):
            x1, y1, x2, y2 = box["box"]
            ids = {"id": len(annotations) + 1, "image_id": image, "category_id": number[box["label"]]}
            annotations.append(
                {**ids, "bbox": [x1, y1, x2 - x1, y2 - y1], "area": box["area"], "iscrowd": box["crowd"]}
            )
        for box in entry.details.get("boxes", ()):
            if box["label"] in number:
                x1, y1, x2, y2 = box["box"]
                detections.append(
                    {
                        "image_id": image,
                        "category_id": number[box["label"]],
                        "bbox": [x1, y1, x2 - x1, y2 - y1],
                        "score": box["score"],
                    }
                )
    categories = [{"id": i, "name": label} for label, i in number.items()]
    return {"info": {}, "images": images, "annotations": annotations, "categories": categories}, detections


def coco_stats(scored: Sequence[Verdict], most: int = 100) -> dict[str, float]:
    """pycocotools' twelve figures, with at most `most` detections per picture; -1 for a figure without gold
    boxes.

    Without any detection the figures with gold boxes are 0.
    """
    import numpy as np
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    annotations, detections = coco_sets(scored)
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        gold = COCO()
        gold.dataset = annotations
        gold.createIndex()
        if detections:
            predicted = gold.loadRes(detections)
        else:
            predicted = COCO()
            predicted.dataset = {**annotations, "annotations": []}
            predicted.createIndex()
        run = COCOeval(gold, predicted, "bbox")
        run.params.maxDets = [1, 10, most]
        run.evaluate()
        run.accumulate()
        run.summarize()
    stats = np.asarray(run.stats, dtype=float)
    if (
        most != 100
    ):  # pycocotools' summary reads only the limit of 100; the mean for another limit is taken here
        precision, recall = run.eval["precision"][..., 0, -1], run.eval["recall"][..., 0, -1]
        stats[0] = precision[precision > -1].mean() if (precision > -1).any() else -1
        stats[8] = recall[recall > -1].mean() if (recall > -1).any() else -1
    return dict(zip(COCO_STATS, (float(value) for value in stats), strict=True))


@register("coco_map")
@dataclass(frozen=True)
class CocoMap(Aggregate):
    """COCO mAP: overall = AP, the mean of precision over 101 recall levels, IoU .50:.05:.95 and categories,
    by pycocotools.

    Also AP50, AP75, AP and AR by size. Paper: Lin et al., arXiv:1405.0312; code pycocotools. At most `most`
    detections per picture count (COCO 100, LVIS 300). With `by_frequency` (LVIS, arXiv:1908.03195) also AP_r,
    AP_c and AP_f, by the labels' frequency class in the records' `frequency`. Edge: a figure without gold
    boxes is -1.
    """

    most: int = 100
    by_frequency: bool = False

    def __call__(self, records: Sequence[Record], scored: Sequence[Verdict]) -> dict[str, float]:
        stats = coco_stats(scored, self.most)
        out = {"overall": stats["AP"], **stats}
        if self.by_frequency:
            table = {
                str(k).lower(): v for record in records for k, v in (record.get("frequency") or {}).items()
            }
            for letter in ("r", "c", "f"):
                out[f"AP_{letter}"] = coco_stats(
                    [_with_labels(entry, {k for k, v in table.items() if v == letter}) for entry in scored],
                    self.most,
                )["AP"]
        return out


def _with_labels(entry: Verdict, labels: set[str]) -> Verdict:
    """The scored response with only the boxes of some labels."""
    kept = {
        name: [box for box in entry.details.get(name, ()) if box["label"] in labels]
        for name in ("boxes", "gold_boxes")
    }
    return replace(entry, details={**entry.details, **kept})
