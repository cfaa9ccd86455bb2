"""Classification: normalisation of labels, and the rewards for one label of a closed or an open set."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.literals import find_values
from vlrl_rewards.parsing import clean
from vlrl_rewards.text.denials import settled

_EDGE = " \t\n.,;:!?\"'`*()[]{}<>“”‘’"
_ARTICLE = re.compile(r"\A(?:an?|the)\s+(?=\S)")
_LEAD = re.compile(
    r"\A\s*(?:it|this|that|(?:the|this) (?:image|picture|photo|object|thing|label|class|category))"
    r"(?:'s| is| shows| contains| depicts)(?: called| labell?ed)?:? (?=\w)",
    re.IGNORECASE,
)
_NAME_KEYS = ("label", "class", "category", "name", "answer")
_SEPARATOR = re.compile(r"[\s_\-]{1,20}")


def normal_label(text: str) -> str:
    """A label in the form that is compared: NFKC, casefold, `_` and `-` as blanks, no outer punctuation, no
    leading article; accents are kept.

    A label of 400 or more characters becomes "".
    """
    folded = unicodedata.normalize("NFKC", clean(text)).casefold().strip(_EDGE)
    return _ARTICLE.sub("", _SEPARATOR.sub(" ", folded).strip(), count=1) if len(folded) < 400 else ""


def said_label(text: str) -> str:
    """The normalised label that an answer consists of: "It is a cat." and {"label": "cat"} are "cat"; "" if
    there is none."""
    if text.lstrip("` \n").startswith(("{", "json")):
        values = [found.value for found in find_values(text)]
        named = (
            [values[0][key] for key in _NAME_KEYS if key in values[0]]
            if len(values) == 1 and isinstance(values[0], dict)
            else []
        )
        return normal_label(named[0]) if len(named) == 1 and isinstance(named[0], str) else ""
    return normal_label(_LEAD.sub("", settled(text.replace("\u2019", "'")), count=1))


def gold_labels(gold: Any, field_name: str = "answer") -> list[str]:
    """The normalised gold labels of a text or a list. Raises ValueError if one of them is empty."""
    listed = list(gold) if isinstance(gold, (list, tuple, set, frozenset)) else [gold]
    labels = [normal_label(str(label)) for label in listed if isinstance(label, (str, int))]
    if not labels or not all(labels) or len(labels) != len(listed):
        raise GoldError(
            f"{field_name}: the gold label {gold!r} is empty or not a text; give a word or a list of words"
        )
    return labels


@verifier("label", "classification")
@register("classification")
@dataclass(frozen=True, kw_only=True)
class Classification(Graded):
    """Classification accuracy.

        r = 1[label = gold], after normalisation of both

    Paper: Visual-RFT, arXiv:2503.01785, sec. 3.2 (classification); CLS-RL, arXiv:2503.16188.
    Deviates: the whole answer must be the label, "it is a" followed by it, or {"label": ...} (Visual-RFT
    accepts containment in either direction, so that "" and "cat dog bird" are correct).
    Gold: a label or a list of accepted labels. aliases: {label: other names}, accepted for the gold label.
    With choices, a letter ("B", "(b)") stands for its choice. Range {0, 1}.
    """

    phrases = True
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        accepted = set(gold_labels(gold))
        for name, others in self.aliases.items():
            family = {normal_label(name), *map(normal_label, others)}
            accepted |= family if accepted & family else set()
        target = accepted
        answer = self.committed(response)
        said = choice_of(said_label(answer.text), row.choices, target)
        correct = bool(said) and said in target
        return self.scored(
            answer, float(correct), correct, "the gold label" if correct else "another label", said
        )


def choice_of(said: str, choices: Sequence[str], accepted: set[str]) -> str:
    """The normalised choice that a single letter stands for; any other label, and a letter that is itself
    accepted, unchanged."""
    index = ord(said) - ord("a") if len(said) == 1 and said.isascii() else -1
    return normal_label(choices[index]) if 0 <= index < len(choices) and said not in accepted else said


@verifier("open_set")
@register("open_set")
@dataclass(frozen=True, kw_only=True)
class OpenSet(Graded):
    """Open-set classification: the label of a known class, or "unknown".

        known class:            r = 1[label = gold], `abstain` for the answer "unknown"
        gold answer `unknown`:  r = `reject` for the answer "unknown", else 0

    Paper: vlrl original (selective classification). Also read as "unknown": "none of the above", "not in the
    list", "other". Edge: `abstain` must lie in [0, 1), otherwise constant abstention is optimal. Range [0,
    1].
    """

    unknown: str = "unknown"
    reject: float = 1.0
    abstain: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.abstain < 1 or not 0 <= self.reject <= 1:
            raise ValueError(
                f"abstain, reject: {self.abstain} and {self.reject} must lie in [0, 1) and [0, 1]"
            )

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = gold_labels(gold)
        answer = self.committed(response)
        unknown = {normal_label(self.unknown), "unknown", "none of the above", "not in the list", "other"}
        said = choice_of(said_label(answer.text), row.choices, set(target))
        if target[0] in unknown:
            return self.scored(
                answer, self.reject * (said in unknown), said in unknown, "unknown class", said
            )
        if said in unknown:
            return self.scored(answer, self.abstain, False, "abstained", said)
        return self.scored(answer, float(said in target), said in target, "known class", said)
