"""Relation triples (subject, predicate, object): reading them, and the reward for a set of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.boxes.reading import says_none
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.literals import find_values
from vlrl_rewards.recognition.classification import normal_label

Triple = tuple[str, str, str]
_ANGLED = re.compile(r"<([^<>,]{1,80}(?:,[^<>,]{1,80}){2})>")
_PART = r"([^\s|→(\[{][^|→(\[{\n]{0,80}?)"
_LINE = re.compile(
    rf"^\s{{0,9}}(?:[-*•]\s|[0-9]{{1,3}}[.)]\s)?\s{{0,9}}{_PART}\s(?:-|->|→|\|)\s{_PART}\s(?:-|->|→|\|"
    rf")\s{_PART}\s*$"
)
_NAMES = {"subject": 0, "subj": 0, "predicate": 1, "relation": 1, "rel": 1, "object": 2, "obj": 2}


def triple_of(value: Any) -> Triple | None:
    """The normalised (subject, predicate, object) of a list of three texts or a mapping; None if it is not a
    triple."""
    if isinstance(value, Mapping):
        parts = ["", "", ""]
        for key, part in value.items():
            if str(key).lower() in _NAMES and isinstance(part, (str, int)):
                parts[_NAMES[str(key).lower()]] = normal_label(str(part))
    else:
        parts = (
            [normal_label(v) for v in value]
            if isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)
            else []
        )
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 and all(parts) else None


def triples_in(value: Any) -> list[Triple]:
    """Every triple of a nested value, in order."""
    triple = triple_of(value)
    if triple:
        return [triple]
    inner = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    )
    return [t for part in inner for t in triples_in(part)]


def triples_of(text: str) -> list[Triple]:
    """Every triple of a text, in order: in brackets (also `<a, b, c>`), else one per line as "a - b - c" (in
    the first 20,000 characters)."""
    found = [
        triple for value in find_values(_ANGLED.sub(r"(\1)", text)) for triple in triples_in(value.value)
    ]
    lines = (
        [m for line in text[:20_000].split("\n") if len(line) < 300 and (m := _LINE.match(line))]
        if not found
        else []
    )
    return found or [triple for m in lines if (triple := triple_of(list(m.groups())))]


@verifier("triples")
@register("triples")
@dataclass(frozen=True, kw_only=True)
class Triples(Graded):
    """Relation triples: agreement of n predicted with m gold triples (subject, predicate, object).

        f1: 2 hits / (n + m);  recall: hits / m over the first `most` triples;  exact: 1[same triples];  hits:
        triples in both

    Paper: recall at K as in Visual Genome scene graphs, arXiv:1701.02426; the set F1 is vlrl original.
    Deviates: names are normalised, and `person.1` is `person`; a triple counts at most as often as it is in
    the gold answer. Edge: no triple: 0; gold []: 1 for "none" or "[]", else 0 (also for a text without a
    word). Range [0, 1].
    Limit: an answer of more than 20,000 characters has no triples in brackets.
    """

    metric: Literal["f1", "recall", "exact"] = "f1"
    most: int = 50

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        values = [f.value for f in find_values(gold)] if isinstance(gold, str) else [gold]
        found = triples_in(values)
        if not found and gold not in ([], (), "None", "[]"):
            raise GoldError(
                f"answer: there are no triples in the gold answer {gold!r:.200}; give [['man', 'rides', "
                "'horse'], ...]"
            )
        target = Counter(map(plain_triple, found))
        answer = self.committed(response)
        said = Counter(map(plain_triple, triples_of(answer.text)))
        if not target or not said:
            if not target and says_none(answer.text):
                return self.scored(answer, 1.0, True, "no triples, and the answer says so")
            raise Unread("no triples, or triples where there are none", answer)
        total, expected = sum(said.values()), sum(target.values())
        hits = sum((said & target).values())
        first = sum((Counter(list(said.elements())[: self.most]) & target).values())
        exact = hits == total == expected
        table = {"f1": 2 * hits / (total + expected), "recall": first / expected, "exact": float(exact)}
        return self.scored(answer, table[self.metric], exact, f"{hits} of {expected} with {total} triples")


def plain_triple(triple: Triple) -> Triple:
    """The triple without instance numbers ("person.1" becomes "person")."""
    subject, predicate, thing = (
        part.rsplit(".", 1)[0] if part.rsplit(".", 1)[-1].isdecimal() else part for part in triple
    )
    return subject, predicate, thing
