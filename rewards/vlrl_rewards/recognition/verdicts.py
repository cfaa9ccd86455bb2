"""Verdicts about answers and headlines: a preference that agrees with its own reasoning, and the false part
of a headline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.recognition.classification import normal_label
from vlrl_rewards.text.denials import NOT, WRONG
from vlrl_rewards.text.mentions import asserts, places, words_of
from vlrl_rewards.text.process import thoughts

_BETTER = re.compile(
    r"\b(?:answer|response)\s+([12])\s+(?:is|seems|looks)\s+(?:the\s+)?(?:better|best|correct|right)\b|"
    r"\bprefer\s+(?:answer|response)?\s*([12])\b"
)
_SENTENCE = re.compile(r"[.;!?\n]+")
_CALLED = rf"{WRONG}|fake|fals\w+|untrue|manipulated|inconsistent|mismatch\w*|contradict\w*"
_FALSE = re.compile(rf"\b(?:{_CALLED}|{NOT})\b|n['’]t\b", re.IGNORECASE)
_NOT_FALSE = re.compile(
    rf"(?:\b(?:{NOT}|no|nothing|hardly)|n['’]t)\s+(?:\w+\s+)?(?:{_CALLED})\b", re.IGNORECASE
)
_EMPTY = frozenset((
    "a", "an", "the", "of", "in", "on", "at", "to", "from", "by", "for", "with",
    "and", "or", "is", "are", "was", "were", "be", "been", "has",
    "have", "had", "it", "its", "this", "that", "as",
))  # fmt: skip


def concluded(response: str) -> str:
    """The number of the answer that the last three lines of the thinking call better; "" if they name none,
    or both."""
    blocks = thoughts(response)
    lines = [line for line in blocks[-1].casefold().splitlines() if line.strip()][-3:] if blocks else []
    named = {first or second for line in lines for first, second in _BETTER.findall(line)}
    return named.pop() if len(named) == 1 else ""


@register("preference")
@dataclass(frozen=True, kw_only=True)
class Preference(Graded):
    """R1-Reward's verdict: which of two answers is better, weighted by whether the reasoning concludes the
    same.

        r = 1[answer = gold] (1 + consistency c),  c = 1 if the reasoning concludes the answer, -1 if it
        concludes the other one, 0 if neither

    Paper: R1-Reward, arXiv:2505.02835, sec. 3.3 (consistency 0.5). Released code: yfzhang114/r1_reward,
    openrlhf/models/remote_rm/math_verifier_mllm.py, commit 3693413 (r = 0.5 format + accuracy (1 + 0.5 c)).
    Deviates: rewards/DEVIATIONS.md. Gold: "1" or "2". Edge: no answer: 0. Range [0, 1 + consistency]; a right
    answer is correct whatever its reasoning.
    """

    consistency: float = 0.5
    correct_at: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.consistency <= 0.5:
            raise ValueError(
                f"consistency: {self.consistency} must lie in [0, 0.5], so that a right answer scores at "
                "least correct_at=0.5"
            )

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        if str(gold).strip() not in ("1", "2"):
            raise GoldError(f"answer: the gold {gold!r} must be 1 or 2")
        target = str(gold).strip()
        answer = self.committed(response)
        said = normal_label(answer.text).removeprefix("answer ").removeprefix("response ")
        if said != target:
            return self.wrong(answer, "the other answer, or none", said)
        concluding = concluded(response.text)
        agrees = 0 if not concluding else 1 if concluding == said else -1
        return self.scored(answer, 1 + self.consistency * agrees, True, f"right, consistency {agrees}", said)


@register("entity_named")
@dataclass(frozen=True, kw_only=True)
class EntityNamed(Graded):
    """Fact-R1's entity reward: the response names the false part of a fake headline.

        r = |E| / |C| if E is called false and C is not the whole headline, else 0, for a fake headline;  r =
        1[nothing to name] for a right one

    E are the words of the false part, C the words of the headline that the response calls false: those in its
    sentences (thinking and answer) that hold a word such as "false", "wrong", "not". Words such as "the" are
    in neither. Paper: Fact-R1, arXiv:2505.16836. Deviates: rewards/DEVIATIONS.md. Entity: `row.meta[entity]`,
    "" for a right headline; the headline: `row.meta[headline]`. Edge: a response without an answer: 0. Range
    [0, 1].
    """

    entity: str = "entity"
    headline: str = "headline"

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        if self.entity not in row.meta:
            raise GoldError(
                f"meta: row.meta[{self.entity!r}] must hold the false part of the headline, or an empty text"
            )
        entity = tuple(words_of(str(row.meta[self.entity])))
        headline = words_of(str(row.meta.get(self.headline, "")))
        if entity and not places(headline, entity):
            raise GoldError(
                f"meta: row.meta[{self.headline!r}] must hold the headline, with its false part "
                f"{' '.join(entity)!r} in it"
            )
        telling = content(headline) | frozenset(entity)
        answer = self.committed(response)
        if not entity:
            return self.scored(answer, 1.0, True, "nothing to name")
        claims = [
            words_of(sentence)
            for sentence in _SENTENCE.split("\n".join([*thoughts(response.text), answer.text]))
            if _calls_false(sentence)
        ]
        called = telling & {word for words in claims for word in words}
        named = any(asserts(words, entity) for words in claims) and (
            called != telling or telling == set(entity)
        )
        called |= set(entity)
        return self.scored(
            answer,
            len(set(entity)) / len(called) if named else 0.0,
            named and called == set(entity),
            f"called false: {' '.join(sorted(called))}",
        )


def content(words: Sequence[str]) -> frozenset[str]:
    """The words that say something."""
    return frozenset(words) - _EMPTY


def _calls_false(sentence: str) -> bool:
    return _FALSE.search(sentence) is not None and _NOT_FALSE.search(sentence) is None
