"""Rewards for questions about a jigsaw puzzle: pairs, single pieces, choices, swapped boxes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.registry import register
from vlrl_rewards.boxes import gold_boxes, read_boxes, the_one
from vlrl_rewards.classification import normal_label
from vlrl_rewards.geometry import overlap
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged
from vlrl_rewards.jigsaw import gold_order, position_score, read_order
from vlrl_rewards.numbers import one_number

RELATIONS = {
    (0, -1): "left", (0, 1): "right", (-1, 0): "above", (1, 0): "below",
    (-1, -1): "upper left", (-1, 1): "upper right", (1, -1): "lower left", (1, 1): "lower right",
}  # fmt: skip
_SYNONYMS = {
    "top left": "upper left",
    "top right": "upper right",
    "bottom left": "lower left",
    "bottom right": "lower right",
    "on top": "above",
    "under": "below",
}


def relation(first: int, second: int, columns: int) -> str:
    """Where place `first` lies as seen from place `second` (1-based, row-major), or "apart" if they do not touch."""
    (row, column), (row2, column2) = divmod(first - 1, columns), divmod(second - 1, columns)
    return RELATIONS.get((row - row2, column - column2), "apart")


@judged("jigsaw_question")
@register("jigsaw_question")
@dataclass(frozen=True, kw_only=True)
class JigsawQuestion(Graded):
    """letter, digit, relation: r = 1[answer = gold];  box: r = IoU;  order: share of places with the right piece.

    Paper: Jigsaw-R1, arXiv:2505.23590, sec. 3 (pair and multiple: letter; single: digit; box: IoU of the swapped patch).
    Deviates: the whole answer must be the letter (the release scans for the last capital, so any sentence that ends in a right capital passes) or
    hold one number only (the release takes the first). `kind_of` "auto" reads `row.meta["answer_type"]` (or question_type), so one reward scores a
    mix. Edge: several letters or numbers: 0. Range {0, 1}; box: [0, 1]. A gold letter also matches its choice's text, a relation its synonyms ("top
    left").
    """

    kind_of: Literal["auto", "letter", "digit", "relation", "box", "order"] = "auto"
    picture: int = 0

    def asked(self, scene: Scene) -> str:
        """The kind of answer that is asked for. Raises ValueError if the row does not say."""
        kind = scene.meta.get("answer_type", scene.meta.get("question_type", "")) if self.kind_of == "auto" else self.kind_of
        table: Mapping[str, str] = {"pair": "letter", "multiple": "letter", "single": "digit", "full": "order", "backward": "order"}
        kind = table.get(kind, kind)
        if kind not in ("letter", "digit", "relation", "box", "order"):
            raise ValueError(f"kind_of: row.meta['answer_type'] is {kind!r}; use letter, digit, relation, box or order, there or on the reward")
        return kind

    def target(self, gold: Any, scene: Scene) -> Any:
        kind = self.asked(scene)
        if kind == "box":
            boxes = gold_boxes(gold)
            if len(boxes) != 1:
                raise ValueError(f"answer: a swapped patch is one box, got {gold!r}")
            return boxes[0]
        if kind == "order":
            return gold_order(gold)
        value = normal_label(str(gold))
        checks = {
            "letter": len(value) == 1 and value.isalpha(),
            "digit": value.isdecimal(),
            "relation": value in {*RELATIONS.values(), *_SYNONYMS, "apart"},
        }
        if not checks[kind]:
            raise ValueError(f"answer: {gold!r} is not a {kind}")
        return _SYNONYMS.get(value, value)

    def grade(self, target: Any, answer: Answer, scene: Scene) -> Grade:
        kind = self.asked(scene)
        if kind == "box":
            boxes = read_boxes(answer.text, scene.spaces, scene.meta.get("picture", self.picture))
            box = the_one(boxes, answer.text, answer.tagged) if boxes else None
            iou = overlap(box.xyxy, target.xyxy) if box else 0.0
            return Grade(iou, iou >= 0.5, f"IoU {iou:.3f}")
        if kind == "order":
            order = read_order(answer.text, len(target))
            share = position_score(order, target) if order else 0.0
            return Grade(share, share == 1, f"{share:.2f} in place")
        said = normal_label(answer.text)
        if kind == "digit":
            number = one_number(answer.text, tagged=True)
            right = number is not None and number == int(target)
        elif kind == "letter":
            index = ord(target) - ord("a")
            text = normal_label(scene.choices[index]) if index < len(scene.choices) else target
            right = said in (target, text)
        else:
            right = _SYNONYMS.get(said, said).removeprefix("to the ").removesuffix(" of") == target
        return Grade(float(right), right, f"{kind} {target}", said)
