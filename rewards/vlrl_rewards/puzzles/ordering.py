"""Ordering rewards: the order of clips or events, or by depth, size or colour."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.literals import find_values
from vlrl_rewards.recognition.classification import normal_label

_SPLIT = re.compile(r"\s{0,9}(?:(?:,|;|\n|->|→|⇒|>|\|)(?:\s{0,3}(?:and|then)\b)*|\band\b|\bthen\b)\s{0,9}")
_HEAD = re.compile(
    r"(?:clip|frame|image|picture|photo|video|segment|shot|scene|event|step|item|object|option|panel|piece|"
    r"number) "
    r"([a-z0-9])"
)
_LIST_MARK = re.compile(r"(?:\(?[0-9]{1,3}[.)]|[-*•])\s{1,4}")
_LEAD = re.compile(
    (
        r"\A(?:the\s)?(?:[a-z]{1,14}\s){0,3}(?:order|sequence|ranking)(?:\sof\s[a-z\s]{1,40}?)?\s?(?:is|"
        r"should "
        r"be|:|=)\s?:?\s{0,3}"
    ),
    re.IGNORECASE,
)
_BARE = re.compile(r"[A-Za-z0-9](?:[\s,;>\-\[\]()]{0,6}[A-Za-z0-9]){0,60}")


def kendall_tau(order: Sequence[Any], gold: Sequence[Any]) -> float:
    """Kendall's tau of two orders of the same items, (concordant - discordant) / pairs, in [-1, 1]; 1 for
    fewer than two items."""
    place = {item: i for i, item in enumerate(order)}
    pairs = list(combinations(gold, 2))
    return sum(1 if place[a] < place[b] else -1 for a, b in pairs) / len(pairs) if pairs else 1.0


def footrule(order: Sequence[Any], gold: Sequence[Any]) -> float:
    """1 - sum |place - gold place| / floor(n^2 / 2), in [0, 1]: one minus Spearman's footrule over its
    largest value."""
    place = {item: i for i, item in enumerate(order)}
    worst = len(gold) ** 2 // 2
    return 1 - sum(abs(place[item] - i) for i, item in enumerate(gold)) / worst if worst else 1.0


def longest_run(order: Sequence[Any], gold: Sequence[Any]) -> float:
    """Length of the longest common subsequence / n, in [0, 1]."""
    place = {item: i for i, item in enumerate(gold)}
    best: list[int] = []
    for item in order:
        at = place[item]
        spot = sum(b < at for b in best)
        best[spot : spot + 1] = [at]
    return len(best) / len(gold)


def in_place(order: Sequence[Any], gold: Sequence[Any]) -> float:
    """Share of the items at their gold place, in [0, 1]."""
    return sum(a == b for a, b in zip(order, gold, strict=True)) / len(gold)


def adjacent(order: Sequence[Any], gold: Sequence[Any]) -> float:
    """Share of the pairs of neighbours (first, second) in the gold order that are neighbours in the answer,
    in [0, 1]."""
    wanted = set(pairwise(gold))
    return len(wanted & set(pairwise(order))) / len(wanted) if wanted else 1.0


METRICS = {
    "exact": lambda order, gold: float(list(order) == list(gold)),
    "kendall": lambda order, gold: (kendall_tau(order, gold) + 1) / 2,
    "kendall_positive": lambda order, gold: max(0.0, kendall_tau(order, gold)),
    "footrule": footrule,
    "positions": in_place,
    "adjacency": adjacent,
    "lcs": longest_run,
}


def read_items(text: str, names: Sequence[str]) -> list[str] | None:
    """The order that an answer gives of exactly `names`, each once, as normalised labels; None if it gives no
    such order.

    Formats: lists in brackets, one item per line, numbered lists, "a, b, c", "a > b > c", and "3 1 2" or
    "312" where all names are single characters. A text of more than 4,000 characters gives no order.
    """
    wanted = sorted(names)
    for items in _candidates(text, all(len(n) == 1 for n in names)):
        labels = [plain_item(item) for item in items]
        if sorted(labels) == wanted:
            return labels
    return None


def plain_item(item: str) -> str:
    """The normalised name of an item: "clip 3", "3." and "3.0" are "3"."""
    label = normal_label(item).removesuffix(".0")
    head = _HEAD.fullmatch(label)
    return head[1] if head else label


def _candidates(text: str, single: bool) -> list[list[str]]:
    """The ways to split a text into items, the most explicit first. `single`: all names are single
    characters."""
    if len(text) > 4000:
        return []
    text = _LEAD.sub("", text.strip())
    values = [f.value for f in find_values(text)]
    found = []
    if (
        len(values) == 1
        and isinstance(values[0], list)
        and not any(isinstance(v, (list, dict)) for v in values[0])
    ):
        found.append([str(v) for v in values[0]])
    found.append([_LIST_MARK.sub("", part, count=1) for part in _SPLIT.split(text.strip().strip("[]()."))])
    found.append(_SPLIT.split(text.strip().strip("[]().")))
    if single and _BARE.fullmatch(text.strip().strip("[](). ")):
        words = re.findall(r"[A-Za-z0-9]+", text)
        found.append(list(words[0]) if len(words) == 1 else words)
    return found


@verifier("order")
@register("order")
@dataclass(frozen=True, kw_only=True)
class Ordering(Graded):
    """Ordering reward: agreement of the predicted order of the items with the gold order.

        exact: 1[equal];  kendall: (tau + 1) / 2;  kendall_positive: max(0, tau);  footrule: 1 - sum |d_i| /
        floor(n^2 / 2); positions: share of items in place;  adjacency: share of pairs of neighbours;  lcs:
        longest common subsequence / n

    Paper: VideoSSR, arXiv:2511.06281 (temporal jigsaw: footrule); Kendall 1938 (tau). centred: subtracts the
    mean score of a random order and rescales to [0, 1]. Gold: a list, or a text such as "3 1 2", "312" or
    "a, b, c", first to last. Edge: an answer that does not give exactly the gold items, each once: 0. Range
    [0, 1]; correct where the orders are equal.
    """

    metric: Literal["exact", "kendall", "kendall_positive", "footrule", "positions", "adjacency", "lcs"] = (
        "kendall_positive"
    )
    centred: bool = False

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        if isinstance(gold, str):
            parts = _SPLIT.split(gold.strip().strip("[]()"))
            words = gold.strip().strip("[]()").split()
            gold = (
                parts if len(parts) > 1 else [*words[0]] if len(words) == 1 and words[0].isdigit() else words
            )
        items = [normal_label(str(item)) for item in gold] if isinstance(gold, (list, tuple)) else []
        if len(items) < 2 or not all(items) or len(set(items)) != len(items):
            raise GoldError(
                f"answer: {gold!r} is not an order of two or more different items; give a list such as [3, "
                "1, 2] or ['cup', 'book']"
            )
        target = items
        answer = self.committed(response)
        order = read_items(answer.text, target)
        if order is None:
            raise Unread(f"not an order of the {len(target)} items", answer)
        score = METRICS[self.metric](order, target)
        if self.centred and len(target) > 1:
            chance = self.chance(len(target))
            score = max(0.0, (score - chance) / (1 - chance))
        return self.scored(
            answer, score, order == target, f"{in_place(order, target):.2f} in place", " ".join(order)
        )

    def chance(self, n: int) -> float:
        """The mean score of a random order of n items; 0 for the metrics without a closed form."""
        # E|i - j| over independent uniform places is (n^2 - 1) / (3 n).
        table = {
            "kendall": 0.5,
            "footrule": 1 - (n * n - 1) / 3 / (n * n // 2),
            "positions": 1 / n,
            "adjacency": 1 / n,
        }
        return table.get(self.metric, 0.0)
