"""Multi-label classification, and classification in a tree of labels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Verdict
from vlrl.types import Row
from vlrl_rewards.boxes.reading import says_none
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.literals import find_values
from vlrl_rewards.recognition.classification import choice_of, gold_labels, normal_label, said_label

_SPLIT = re.compile(r"\s{0,9}(?:,|;|\n|\||/|\band\b)\s{0,9}")
_MARK = re.compile(r"(?:\(?[0-9]{1,3}[.)]|[-*•])\s{1,4}")


def read_labels(text: str) -> list[str]:
    """The normalised labels of a list ("a, b and c", one per line, or JSON), in order, without empty ones."""
    values = [f.value for f in find_values(text)]
    if (
        len(values) == 1
        and isinstance(values[0], list)
        and all(isinstance(v, (str, int, float)) for v in values[0])
    ):
        parts = [str(v) for v in values[0]]
    else:
        parts = [_MARK.sub("", part, count=1) for part in _SPLIT.split(text[:4000])]
    return [label for label in map(normal_label, parts) if label]


@verifier("labels", "multi_label")
@register("multi_label")
@dataclass(frozen=True, kw_only=True)
class MultiLabel(Graded):
    """Multi-label classification: agreement of the predicted set P with the gold set G.

        f1: 2 |P & G| / (|P| + |G|);  jaccard: |P & G| / |P | G|;  exact: 1[P = G];  recall: |P & G| / |G|, 0
        for more than `most` labels

    Paper: vlrl original (the usual example-based measures). A label counts once; `aliases` as in
    `classification`.
    Edge: no label: 0; gold []: 1 for "none" or "[]", else 0 (also for a text without a word). Listing all
    labels lowers the precision; under "recall" the limit is `most`.
    Range [0, 1].
    """

    metric: Literal["f1", "jaccard", "exact", "recall"] = "f1"
    most: int = 20
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def canonical(self, label: str) -> str:
        """The name that an alias stands for; any other label unchanged."""
        return next(
            (
                normal_label(name)
                for name, others in self.aliases.items()
                if label in map(normal_label, others)
            ),
            label,
        )

    def target(self, gold: Any, row: Row) -> set[str]:
        if isinstance(gold, (list, tuple, set, frozenset)) and not gold:
            return set()
        return {
            self.canonical(label)
            for label in gold_labels(read_labels(gold) if isinstance(gold, str) else gold)
        }

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = self.target(gold, row)
        answer = self.committed(response)
        said = {self.canonical(choice_of(label, row.choices, target)) for label in read_labels(answer.text)}
        if not target:
            empty = says_none(answer.text) or (bool(said) and said <= {"none", "nothing"})
            return (
                self.scored(answer, 1.0, True, "no labels, and the answer says so")
                if empty
                else self.wrong(answer, "the gold answer has no labels")
            )
        if said <= {"none", "nothing"}:
            return self.wrong(answer, "the answer has no labels")
        shared = len(said & target)
        table = {
            "f1": 2 * shared / (len(said) + len(target)),
            "jaccard": shared / len(said | target),
            "exact": float(said == target),
            "recall": shared / len(target) if len(said) <= self.most else 0.0,
        }
        return self.scored(
            answer,
            table[self.metric],
            said == target,
            f"{shared} of {len(target)} with {len(said)} labels",
            ", ".join(sorted(said)),
        )


@verifier("hierarchy")
@register("hierarchy")
@dataclass(frozen=True, kw_only=True)
class Hierarchy(Graded):
    """Hierarchical classification (Wu-Palmer similarity of the label and the gold label in a tree).

        r = 2 depth(common ancestor) / (depth(label) + depth(gold)),  the F1 of the two sets of ancestors
        without the root

    Paper: Wu and Palmer 1994 (similarity); hierarchical F1 of Kiritchenko et al. 2005; as a reward: vlrl
    original.
    parents: {label: its parent}, "" for the root. A parent of the gold label scores a part ("dog" for
    "poodle"); a wrong child scores less than its parent would. Edge: a label that is not in the tree: 0; the
    root: 0. Range [0, 1]; 1 for the gold label.
    """

    parents: Mapping[str, str] = field(default_factory=dict)

    def path(self, label: str) -> list[str]:
        """The labels from `label` up to the child of the root. Raises ValueError on a loop or an unknown
        parent."""
        tree = {
            normal_label(child): normal_label(parent) if parent else ""
            for child, parent in self.parents.items()
        }
        path: list[str] = []
        while label:
            if label in path or label not in tree:
                fault = "its own ancestor" if label in path else "not in the tree"
                raise GoldError(
                    f"parents: {label!r} is {fault}; map every label to its parent, the topmost to ''"
                )
            path.append(label)
            label = tree[label]
        return path

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = self.path(gold_labels(gold)[0])
        answer = self.committed(response)
        said = choice_of(said_label(answer.text), row.choices, {target[0]})
        if said not in set(map(normal_label, self.parents)):
            return self.wrong(answer, "not a label of the tree", said)
        mine = self.path(said)
        common = len(set(mine) & set(target))
        return self.scored(
            answer, 2 * common / (len(mine) + len(target)), mine == target, f"{common} levels shared", said
        )
