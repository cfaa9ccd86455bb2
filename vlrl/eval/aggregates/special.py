"""Figures that are no means of scores: COCO's mAP, We-Math's four kinds of answer, groups that count only whole."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.eval.aggregates.means import by_group, mean, values_of
from vlrl.eval.scorer import Aggregate, Record, ScoredResponse
from vlrl.registry import register

COCO_STATS = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large", "AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large")


def coco_sets(scored: Sequence[ScoredResponse]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(annotations, detections) in COCO's form, one image per mark; categories are the labels seen in gold boxes, in alphabetical order.

    A detection of a label that no gold box of any picture has belongs to no category and is left out, as in COCO.
    """
    labels = sorted({box["label"] for entry in scored for box in entry.details.get("gold_boxes", ())})
    number = {label: i + 1 for i, label in enumerate(labels)}
    images, annotations, found = [], [], []
    for image, entry in enumerate(scored, 1):
        width, height = entry.details.get("size", (0, 0))
        images.append({"id": image, "width": width, "height": height})
        for box in entry.details.get("gold_boxes", ()):
            x1, y1, x2, y2 = box["box"]
            place = {"id": len(annotations) + 1, "image_id": image, "category_id": number[box["label"]]}
            annotations.append({**place, "bbox": [x1, y1, x2 - x1, y2 - y1], "area": box["area"], "iscrowd": box["crowd"]})
        for box in entry.details.get("boxes", ()):
            if box["label"] in number:
                x1, y1, x2, y2 = box["box"]
                found.append({"image_id": image, "category_id": number[box["label"]], "bbox": [x1, y1, x2 - x1, y2 - y1], "score": box["score"]})
    categories = [{"id": i, "name": label} for label, i in number.items()]
    return {"info": {}, "images": images, "annotations": annotations, "categories": categories}, found


def coco_stats(scored: Sequence[ScoredResponse], most: int = 100) -> dict[str, float]:
    """pycocotools' twelve figures. -1 where a figure has no gold box. No detection at all gives 0 for those that have."""
    import numpy as np
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    annotations, found = coco_sets(scored)
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        gold = COCO()
        gold.dataset = annotations
        gold.createIndex()
        if found:
            predicted = gold.loadRes(found)
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
    if most != 100:  # pycocotools' summary reads its own 100; with another limit the mean is taken here
        precision, recall = run.eval["precision"][..., 0, -1], run.eval["recall"][..., 0, -1]
        stats[0] = precision[precision > -1].mean() if (precision > -1).any() else -1
        stats[8] = recall[recall > -1].mean() if (recall > -1).any() else -1
    return dict(zip(COCO_STATS, (float(value) for value in stats), strict=True))


@register("coco_map")
@dataclass(frozen=True)
class CocoMap(Aggregate):
    """overall = AP, the mean of precision over 101 recalls, IoU .50:.05:.95 and categories, by pycocotools.

    Paper: Lin et al., arXiv:1405.0312; code pycocotools. `most` detections per picture count (COCO 100, LVIS 300). Adds AP50, AP75, sizes, AR.
    Edge: -1 where nothing is to be found. With `by_frequency` (LVIS, arXiv:1908.03195) AP_r, AP_c, AP_f follow the rows' `frequency` by label.
    """

    most: int = 100
    by_frequency: bool = False

    def __call__(self, records: Sequence[Record], scored: Sequence[ScoredResponse]) -> dict[str, float]:
        stats = coco_stats(scored, self.most)
        out = {"overall": stats["AP"], **stats}
        if self.by_frequency:
            table = {str(k).lower(): v for record in records for k, v in (record.get("frequency") or {}).items()}
            for letter in ("r", "c", "f"):
                out[f"AP_{letter}"] = coco_stats([self._only(entry, {k for k, v in table.items() if v == letter}) for entry in scored], self.most)["AP"]
        return out

    @staticmethod
    def _only(entry: ScoredResponse, labels: set[str]) -> ScoredResponse:
        kept = {name: [box for box in entry.details.get(name, ()) if box["label"] in labels] for name in ("boxes", "gold_boxes")}
        return ScoredResponse(entry.score, entry.extracted, entry.rule, {**entry.details, **kept})


@register("whole_groups")
@dataclass(frozen=True)
class WholeGroups(Aggregate):
    """overall = mean of all scores; for each entry of `groups`, "name=field+field", the share of groups that are right as a whole.

    Paper: HallusionBench (arXiv:2310.14566): aAcc, fAcc (figures), qAcc (questions). `headline` names the figure that is the overall one.
    """

    groups: tuple[str, ...] = ()
    headline: str = ""

    def __call__(self, records: Sequence[Record], scored: Sequence[ScoredResponse]) -> dict[str, float]:
        out = {"overall": mean([entry.score for entry in scored])}
        for entry in self.groups:
            name, _, fields = entry.partition("=")
            members: dict[tuple, list[float]] = {}
            for record, entry in zip(records, scored, strict=True):
                key = tuple(next(iter(values_of(record, path)), "") for path in fields.split("+"))
                members.setdefault(key, []).append(entry.score)
            out[name] = mean([float(all(score >= 1 for score in scores)) for scores in members.values()])
        if self.headline:
            out["overall"] = out[self.headline]
        return out


@register("we_math")
@dataclass(frozen=True)
class WeMath(Aggregate):
    """overall = 1 - (0.5 IG + RM + IK) / problems, over problems of two or three steps.

    IK: some step wrong and the whole wrong; IG: every step right, the whole wrong; the whole right is CM or RM (by rote):
    strict CM wants every step right, loose CM any. Paper: We-Math, arXiv:2407.01284, eq. 1. Rows share an `ID`; `key` is "2steps_1", ...,
    "2steps_multi". Deviates: the denominator is the number of problems that are there, not always 525, so that a part is not flattered.
    """

    id: str = "ID"
    key: str = "key"
    strict: bool = True

    def __call__(self, records: Sequence[Record], scored: Sequence[ScoredResponse]) -> dict[str, float]:
        problems: dict[str, dict[str, float]] = {}
        for record, entry in zip(records, scored, strict=True):
            problems.setdefault(str(record[self.id]), {})[str(record[self.key])] = entry.score
        counts = dict.fromkeys(("IK", "IG", "CM", "RM"), 0)
        for answers in problems.values():
            whole = [score for key, score in answers.items() if key.endswith("multi")]
            steps = [score >= 1 for key, score in answers.items() if not key.endswith("multi")]
            if whole and steps:
                counts[self._kind(whole[0] >= 1, steps)] += 1
        total = sum(counts.values())
        share = {name: count / total if total else 0.0 for name, count in counts.items()}
        overall = 1 - 0.5 * share["IG"] - share["RM"] - share["IK"] if total else 0.0
        steps_means = {f"step/{name}": mean(scores) for name, scores in by_group(records, scored, self.key).items()}
        return {"overall": overall, **share, **steps_means}

    def _kind(self, whole: bool, steps: list[bool]) -> str:
        if not whole:
            return "IG" if all(steps) else "IK"
        mastered = all(steps) if self.strict else any(steps)
        return "CM" if mastered else "RM"


@register("knowledge_gain")
@dataclass(frozen=True)
class KnowledgeGain(Aggregate):
    """overall = mean of all scores; gain = (after - before) / (1 - before) over the rows that are asked twice.

    Paper: VideoMMMU, arXiv:2501.13826, eq. 1. `by` names the field of the track; rows with `before` set give the score before the video.
    """

    by: str = "track"
    before: str = "before"

    def __call__(self, records: Sequence[Record], scored: Sequence[ScoredResponse]) -> dict[str, float]:
        out = {"overall": mean([entry.score for entry in scored])}
        out |= {f"{self.by}/{name}": mean(scores) for name, scores in by_group(records, scored, self.by).items()}
        pairs = [(float(record[self.before]), entry.score) for record, entry in zip(records, scored, strict=True) if record.get(self.before) is not None]
        if pairs and mean([b for b, _ in pairs]) < 1:
            before = mean([b for b, _ in pairs])
            out["knowledge_gain"] = (mean([a for _, a in pairs]) - before) / (1 - before)
        return out


@register("instructions")
@dataclass(frozen=True)
class Instructions(Aggregate):
    """overall = share of prompts whose every instruction is kept; instruction = share of instructions kept.

    Paper: IFEval, arXiv:2311.07911, sec. 2.2. A prompt's score is the share of its instructions that are kept.
    """

    count: str = "instruction_id_list"

    def __call__(self, records: Sequence[Record], scored: Sequence[ScoredResponse]) -> dict[str, float]:
        numbers = [max(1, len(record.get(self.count) or ())) for record in records]
        kept = sum(entry.score * number for entry, number in zip(scored, numbers, strict=True))
        return {"overall": mean([float(entry.score >= 1) for entry in scored]), "instruction": kept / max(1, sum(numbers))}
