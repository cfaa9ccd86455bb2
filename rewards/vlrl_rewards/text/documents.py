"""Rewards for documents: extracted fields, and the region that an answer comes from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from typing import Any, Literal

from rapidfuzz.fuzz import ratio

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.boxes.geometry import overlap
from vlrl_rewards.boxes.reading import box_to_original, gold_boxes, parse_boxes
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.literals import find_values, fold, repeated_in
from vlrl_rewards.parsing import clean, visible
from vlrl_rewards.recognition.classification import normal_label

_NUMBER = re.compile(r"[-+]?[0-9]{1,15}(?:\.[0-9]{1,12})?")
_DIGITS = Context(prec=30)  # more than _NUMBER has; the thread's own precision may be any
Leaf = tuple[str, str]


def leaves(value: Any, path: str = "", lists: str = "index") -> list[Leaf]:
    """(path, normalised value) of every leaf of nested mappings and lists; with `lists` "bag" the paths leave
    list indices out."""
    if isinstance(value, Mapping):
        return [leaf for k, v in value.items() for leaf in leaves(v, f"{path}/{normal_label(str(k))}", lists)]
    if isinstance(value, (list, tuple)):
        return [
            leaf
            for i, v in enumerate(value)
            for leaf in leaves(v, f"{path}/{i if lists == 'index' else '*'}", lists)
        ]
    text = clean(str("" if value is None else value)).casefold()
    if not _NUMBER.fullmatch(text):
        return [(path, text)]
    return [(path, str(_DIGITS.add(Decimal(text).normalize(_DIGITS), 0)))]


@verifier("extraction")
@register("extraction")
@dataclass(frozen=True, kw_only=True)
class Fields(Graded):
    """Document extraction reward: precision and recall of JSON fields.

        r = alpha P + (1 - alpha) R,   P = matched / said,   R = matched / gold

    Counted over the (path, value) leaves of the JSON answer.
    Paper: Efficient Medical VIE via Reinforcement Learning, arXiv:2506.13363, eq. 5. The paper gives no
    default for alpha; ours is 0.5. `f1`: the harmonic mean of P and R.
    Deviates: values are compared after folding case and white space, numbers as numbers; `fuzzy` below 1
    accepts a character ratio of at least `fuzzy`; `lists` "bag" ignores the order of lists. Edge: no JSON
    object, or several: 0. Each leaf is matched at most once. Range [0, 1].
    """

    refusals = False
    alpha: float = 0.5
    f1: bool = False
    fuzzy: float = 1.0
    lists: Literal["index", "bag"] = "index"

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1 or not 0 < self.fuzzy <= 1:
            raise ValueError(
                f"alpha, fuzzy: must lie in [0, 1] and (0, 1], got {self.alpha} and {self.fuzzy}"
            )

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        values = [f.value for f in find_values(gold)] if isinstance(gold, str) else [gold]
        found = (
            leaves(values[0], lists=self.lists)
            if len(values) == 1 and isinstance(values[0], (Mapping, list))
            else []
        )
        if not found:
            raise GoldError(f"answer: the gold {gold!r:.200} is not a JSON object with fields")
        target = Counter(found)
        answer = self.committed(response)
        values = [f.value for f in find_values(answer.text) if isinstance(f.value, (dict, list)) and f.value]
        said = Counter(leaves(values[0], lists=self.lists)) if len(values) == 1 else Counter()
        if not said:
            raise Unread(f"{'several' if values else 'no'} JSON objects in the answer", answer)
        matched = self.matched(said, target)
        total, meant = sum(said.values()), sum(target.values())
        precision, recall = matched / total, matched / meant
        mean = self.alpha * precision + (1 - self.alpha) * recall
        harmonic = 2 * matched / (total + meant)
        return self.scored(
            answer,
            harmonic if self.f1 else mean,
            matched == total == meant,
            f"{matched} of {meant} with {total} fields",
        )

    def matched(self, said: Counter[Leaf], gold: Counter[Leaf]) -> int:
        """The number of matching leaves, each matched at most once."""
        exact = said & gold
        count = sum(exact.values())
        if self.fuzzy >= 1:
            return count
        unmatched, open_gold = said - exact, list((gold - exact).elements())
        for path, value in unmatched.elements():
            near = next(
                (leaf for leaf in open_gold if leaf[0] == path and ratio(value, leaf[1]) / 100 >= self.fuzzy),
                None,
            )
            if near is not None:
                open_gold.remove(near)
                count += 1
        return count


@verifier("evidence")
@register("evidence")
@dataclass(frozen=True, kw_only=True)
class Evidence(Graded):
    """DocThinker's reward for an answer and its evidence box.

        r = (a 1[answer correct] + b IoU(evidence box, gold box)) / (a + b)

    Both are read from one JSON object.
    Paper: DocThinker, arXiv:2508.08589, sec. 3.2.2 (final_answer and bbox_2d; all weights 1; its format and
    rephrasing parts are separate rewards).
    Deviates: with `needs_answer` the box scores only with a correct answer (off: as published). Edge: no
    object, several, no such field, or different answers (boxes) under several keys: 0 for that part. Range
    [0, 1]. `correct_at`: at equal weights the answer is correct and IoU >= 0.5. Gold: {"answer": text (or
    list of texts), "bbox": [x1, y1, x2, y2]} in original pixels.
    """

    refusals = False
    answer: float = 1.0
    box: float = 1.0
    needs_answer: bool = False
    correct_at: float = 0.75
    picture: int = 0

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        answers = gold.get("answer", gold.get("final_answer")) if isinstance(gold, Mapping) else None
        texts = (
            [normal_label(str(a)) for a in (answers if isinstance(answers, list) else [answers])]
            if answers is not None
            else []
        )
        boxes = gold_boxes(gold.get("bbox", gold.get("bbox_2d"))) if isinstance(gold, Mapping) else []
        if not texts or not all(texts) or len(boxes) != 1:
            raise GoldError(f"answer: needs {{'answer': text, 'bbox': [x1, y1, x2, y2]}}, got {gold!r:.200}")
        target = texts, boxes[0]
        answer = self.committed(response)
        if answer.route == "field":  # the object's own, without tags around it
            answer = replace(answer, text=fold(visible(response.text)).strip())
        objects = [f.value for f in find_values(answer.text) if isinstance(f.value, dict)]
        if len(objects) != 1:
            raise Unread(f"{'several' if objects else 'no'} JSON objects in the answer", answer)
        members = [(key.lower(), value) for key, value in [*objects[0].items(), *repeated_in(objects[0])]]
        said = {normal_label(str(value)) for key, value in members if key in ("final_answer", "answer")}
        correct = len(said) == 1 and said <= set(target[0])
        shown = [parse_boxes(str(value)) or [] for key, value in members if key in ("bbox_2d", "bbox", "box")]
        named = {found[0].xyxy for found in shown if len(found) == 1}
        picture = row.meta.get("picture", self.picture)
        one_box = len(named) == 1 and all(len(found) == 1 for found in shown)
        iou = (
            overlap(box_to_original(named.pop(), response.spaces, picture), target[1].xyxy)
            if one_box
            else 0.0
        )
        box_score = 0.0 if self.needs_answer and not correct else iou
        score = (self.answer * correct + self.box * box_score) / (self.answer + self.box)
        return self.scored(answer, score, correct and iou >= 0.5, f"answer {correct}, IoU {iou:.3f}")
