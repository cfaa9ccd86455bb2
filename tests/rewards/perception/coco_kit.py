"""Random pictures, and their average precision by pycocotools."""

from __future__ import annotations

import contextlib
import io

import numpy as np
from vlrl_rewards.boxes.reading import Box


def scenes(seed, cases):
    """(predicted, gold) boxes of one picture each, three categories, some predictions near a gold box."""
    rng = np.random.default_rng(seed)
    for _ in range(cases):
        gold, said = [], []
        for _ in range(rng.integers(1, 6)):
            low, size = rng.uniform(0, 50, 2), rng.uniform(5, 40, 2)
            gold.append(Box((*map(float, low), *map(float, low + size)), str(rng.integers(3))))
            for _ in range(rng.integers(0, 3)):
                noise = rng.normal(0, 3, 4)
                box = np.array(gold[-1].xyxy) + noise
                if box[2] > box[0] and box[3] > box[1]:
                    said.append(
                        Box(
                            tuple(map(float, box)),
                            gold[-1].label if rng.random() < 0.8 else str(rng.integers(3)),
                            float(np.round(rng.random(), 1)),
                        )
                    )
        yield said, gold


def coco_ap(said, gold):
    """(AP, AP50) of one picture by pycocotools."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def note(box, number):
        x1, y1, x2, y2 = box.xyxy
        return {
            "id": number,
            "image_id": 1,
            "category_id": int(box.label) + 1,
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "area": (x2 - x1) * (y2 - y1),
            "iscrowd": 0,
        }

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "images": [{"id": 1}],
            "categories": [{"id": i + 1} for i in range(3)],
            "annotations": [note(b, i + 1) for i, b in enumerate(gold)],
        }
        truth.createIndex()
        if not said:
            return 0.0, 0.0
        found = truth.loadRes([{**note(b, i + 1), "score": b.score} for i, b in enumerate(said)])
        run = COCOeval(truth, found, "bbox")
        run.params.areaRng, run.params.areaRngLbl = [[0, 1e10]], ["all"]
        run.evaluate()
        run.accumulate()
    precision = run.eval["precision"][:, :, :, 0, -1]
    return float(precision[precision > -1].mean()), float(precision[0][precision[0] > -1].mean())
