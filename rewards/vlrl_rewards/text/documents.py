"""Fields read from a document."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rapidfuzz.fuzz import ratio

from vlrl.registry import register
from vlrl_rewards.classification import normal_label
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged
from vlrl_rewards.loose import find_values
from vlrl_rewards.parsing import clean

_CELL = re.compile(r"[-+]?[0-9]{1,15}(?:\.[0-9]{1,12})?")
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
