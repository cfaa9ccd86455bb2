"""Rewards for reading: transcription, fields of a form, answers with their evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rapidfuzz.distance import Levenshtein
from rapidfuzz.fuzz import ratio

from vlrl.registry import register
from vlrl_rewards.boxes import Box, gold_boxes, parse_boxes, to_original
from vlrl_rewards.classification import normal_label
from vlrl_rewards.geometry import overlap
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged
from vlrl_rewards.loose import find_values
from vlrl_rewards.parsing import clean

MAX_TEXT = 20_000
_CELL = re.compile(r"[-+]?[0-9]{1,15}(?:\.[0-9]{1,12})?")


def error_rate(said: str, meant: str, unit: str) -> float:
    """Edit distance over the length of the reference, by words ("word") or characters ("char"); may exceed 1. An empty reference counts as length
    1."""
    a, b = (said.split(), meant.split()) if unit == "word" else (list(said), list(meant))
    return Levenshtein.distance(a, b) / max(1, len(b))


@judged("ocr")
@register("ocr")
@dataclass(frozen=True, kw_only=True)
class Ocr(Graded):
    """wer, cer: max(0, 1 - edits / |reference|) by words or characters;  edit: 1 - edits / max(|said|, |reference|);  anls: edit if >= 1/2, else 0;
    exact: 1[equal].

    Paper: Video-R1, arXiv:2503.21776 (1 - WER); Perception-R1, arXiv:2504.07954 (1 - normalised edit distance); ANLS, arXiv:1905.13648.
    Deviates: Unicode is folded (NFKC) and white space collapsed on both sides; `case` and `punctuation` off ignore these too.
    Edge: empty: 0; a gold list gives the best of its members; more than 20,000 characters: 0. Range [0, 1].
    """

    refusals = False
    metric: Literal["wer", "cer", "edit", "anls", "exact"] = "cer"
    case: bool = True
    punctuation: bool = True

    def plain(self, text: str) -> str:
        """The text as it is compared."""
        text = clean(text) if self.case else clean(text).casefold()
        return text if self.punctuation else clean("".join(c if c.isalnum() or c.isspace() else " " for c in text))

    def target(self, gold: Any, scene: Scene) -> list[str]:
        listed = list(gold) if isinstance(gold, (list, tuple)) else [gold]
        texts = [self.plain(str(g)) for g in listed if isinstance(g, (str, int))]
        if not all(texts) or not texts or len(texts) != len(listed):
            raise ValueError(f"answer: the gold text {gold!r} is empty, or no text")
        return texts

    def grade(self, target: list[str], answer: Answer, scene: Scene) -> Grade:
        said = self.plain(answer.text)
        if not said or len(said) > MAX_TEXT:
            return self.refuse("nothing to compare" if not said else "the answer is too long")
        best = max(self.similarity(said, meant) for meant in target)
        return Grade(best, said in target, f"{self.metric} {best:.3f}", said[:200])

    def similarity(self, said: str, meant: str) -> float:
        """Closeness of two plain texts, in [0, 1]."""
        if self.metric in ("wer", "cer"):
            return max(0.0, 1.0 - error_rate(said, meant, "word" if self.metric == "wer" else "char"))
        if self.metric == "exact":
            return float(said == meant)
        near = float(Levenshtein.normalized_similarity(said, meant))
        return near if self.metric == "edit" or near >= 0.5 else 0.0


Leaf = tuple[str, str]


def leaves(value: Any, path: str = "", lists: str = "index") -> list[Leaf]:
    """(path, normalised value) of every leaf of nested mappings and lists; with `lists` "bag" the places in lists are left out of the paths."""
    if isinstance(value, Mapping):
        return [leaf for k, v in value.items() for leaf in leaves(v, f"{path}/{normal_label(str(k))}", lists)]
    if isinstance(value, (list, tuple)):
        return [leaf for i, v in enumerate(value) for leaf in leaves(v, f"{path}/{i if lists == 'index' else '*'}", lists)]
    text = clean(str("" if value is None else value)).casefold()
    return [(path, f"{float(text):g}" if _CELL.fullmatch(text) else text)]


@judged("extraction")
@register("extraction")
@dataclass(frozen=True, kw_only=True)
class Fields(Graded):
    """r = alpha P + (1 - alpha) R, P = matched / said, R = matched / gold, over the (path, value) leaves of the JSON answer.

    Paper: Efficient Medical VIE via Reinforcement Learning, arXiv:2506.13363, eq. 5. alpha has no default there; ours is 0.5. `f1` takes their
    harmonic mean.
    Deviates: values are compared after folding case and white space, numbers as numbers; `fuzzy` below 1 accepts a character ratio of at least that;
    `lists` "bag" ignores the order of lists. Edge: no JSON object, or several: 0. Range [0, 1]. A leaf is used once.
    """

    refusals = False
    alpha: float = 0.5
    f1: bool = False
    fuzzy: float = 1.0
    lists: Literal["index", "bag"] = "index"

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1 or not 0 < self.fuzzy <= 1:
            raise ValueError(f"alpha, fuzzy: must lie in [0, 1] and (0, 1], got {self.alpha} and {self.fuzzy}")

    def target(self, gold: Any, scene: Scene) -> Counter[Leaf]:
        values = [f.value for f in find_values(gold)] if isinstance(gold, str) else [gold]
        found = leaves(values[0], lists=self.lists) if len(values) == 1 and isinstance(values[0], (Mapping, list)) else []
        if not found:
            raise ValueError(f"answer: the gold {gold!r:.200} is not a JSON object with fields")
        return Counter(found)

    def grade(self, target: Counter[Leaf], answer: Answer, scene: Scene) -> Grade:
        values = [f.value for f in find_values(answer.text) if isinstance(f.value, (dict, list)) and f.value]
        said = Counter(leaves(values[0], lists=self.lists)) if len(values) == 1 else Counter()
        if not said:
            return self.refuse("no JSON object in the answer" if not values else "several JSON values in the answer")
        matched = self.matched(said, target)
        total, meant = sum(said.values()), sum(target.values())
        precision, recall = matched / total, matched / meant
        mean = self.alpha * precision + (1 - self.alpha) * recall
        harmonic = 2 * matched / (total + meant)
        return Grade(harmonic if self.f1 else mean, matched == total == meant, f"{matched} of {meant} with {total} fields")

    def matched(self, said: Counter[Leaf], gold: Counter[Leaf]) -> int:
        """How many leaves agree, each used once."""
        exact = said & gold
        count = sum(exact.values())
        if self.fuzzy >= 1:
            return count
        left, open_gold = said - exact, list((gold - exact).elements())
        for path, value in left.elements():
            near = next((leaf for leaf in open_gold if leaf[0] == path and ratio(value, leaf[1]) / 100 >= self.fuzzy), None)
            if near is not None:
                open_gold.remove(near)
                count += 1
        return count


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
