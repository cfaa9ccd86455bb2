"""The region of a document that an answer comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlrl.registry import register
from vlrl_rewards.boxes import Box, gold_boxes, parse_boxes, to_original
from vlrl_rewards.classification import normal_label
from vlrl_rewards.geometry import overlap
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged
from vlrl_rewards.loose import find_values


@judged("evidence")
@register("evidence")
@dataclass(frozen=True, kw_only=True)
class Evidence(Graded):
    """r = (a 1[answer right] + b IoU(evidence box, gold box)) / (a + b), from one JSON object with both.

    Paper: DocThinker, arXiv:2508.08589, sec. 3.2.2 (final_answer and bbox_2d; all weights 1 there; its format and rephrasing parts are other
    rewards).
    Deviates: `needs_answer` pays the box only with a right answer (off: as published). Edge: no object, several, or no such field: 0. Range [0, 1].
    Gold: {"answer": text (or list of texts), "bbox": [x1, y1, x2, y2]} in original pixels.
    """

    refusals = False
    answer: float = 1.0
    box: float = 1.0
    needs_answer: bool = False
    picture: int = 0

    def target(self, gold: Any, scene: Scene) -> tuple[list[str], Box]:
        answers = gold.get("answer", gold.get("final_answer")) if isinstance(gold, Mapping) else None
        texts = [normal_label(str(a)) for a in (answers if isinstance(answers, list) else [answers])] if answers is not None else []
        boxes = gold_boxes(gold.get("bbox", gold.get("bbox_2d"))) if isinstance(gold, Mapping) else []
        if not texts or not all(texts) or len(boxes) != 1:
            raise ValueError(f"answer: needs {{'answer': text, 'bbox': [x1, y1, x2, y2]}}, got {gold!r:.200}")
        return texts, boxes[0]

    def grade(self, target: tuple[list[str], Box], answer: Answer, scene: Scene) -> Grade:
        objects = [f.value for f in find_values(answer.text) if isinstance(f.value, dict)]
        if len(objects) != 1:
            return self.refuse("no JSON object in the answer" if not objects else "several JSON objects in the answer")
        lower = {str(k).lower(): v for k, v in objects[0].items()}
        text = next((lower[k] for k in ("final_answer", "answer") if k in lower), "")
        right = normal_label(str(text)) in target[0]
        boxes = parse_boxes(str(next((lower[k] for k in ("bbox_2d", "bbox", "box") if k in lower), ""))) or []
        picture = scene.meta.get("picture", self.picture)
        iou = overlap(to_original(boxes[0].xyxy, scene.spaces, picture), target[1].xyxy) if len(boxes) == 1 else 0.0
        paid = 0.0 if self.needs_answer and not right else iou
        return Grade((self.answer * right + self.box * paid) / (self.answer + self.box), right and iou >= 0.5, f"answer {right}, IoU {iou:.3f}")
