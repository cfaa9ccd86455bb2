"""The reward of the questions of `reasoning_gym`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.gym.rules import EQUAL, REFUSED, RULES, Rule, rule_of
from vlrl_rewards.kinds import verifier
from vlrl_rewards.literals import MAX_CHARS, fold

log = logging.getLogger("vlrl")

# What a check can raise on a text or a puzzle of a form it did not expect; errors of files, imports and
# memory are not among them.
_CRASHES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class GymQuestion(NamedTuple):
    """What an answer is checked against: the generator, its gold answer ("" where only the puzzle is kept),
    what the row keeps of the puzzle."""

    generator: str
    gold: str
    kept: Mapping[str, Any]


@verifier("reasoning_gym")
@register("reasoning_gym")
@dataclass(frozen=True, kw_only=True)
class GymAnswer(Graded):
    """Right answers to the generated questions of reasoning_gym, by a strict check per generator
    (`vlrl_rewards/gym/rules.py`).

        r = 1[the whole answer is right]

    The row says which generator made it and what the check reads of its puzzle: `meta = {"generator":
    "countdown", "puzzle": {"numbers": [3, 5], "target": 8}}`; source `reasoning_gym` writes both. Where a
    puzzle has several right answers, the answer is played through. Paper: Reasoning Gym, arXiv:2505.24760
    (its `score_answer`). Deviates: rewards/DEVIATIONS.md. Edge: empty, more than 20,000 characters, several
    answers: 0. A row without a generator, or a puzzle that its check cannot read: ValueError.
    """

    refusals: ClassVar[bool] = False  # sentences of a book are answers here
    joinable: ClassVar[bool] = False

    def refusal(self, generator: str, own_scorer: bool) -> str:
        """Why a generator cannot be used, ""  if it can. `own_scorer`: the package scores it otherwise than
        by equality with the gold answer."""
        if generator in REFUSED:
            return REFUSED[generator]
        known = generator in RULES or generator in EQUAL or not own_scorer
        return (
            ""
            if known
            else "no check of its answers is known here; its package is newer than vlrl_rewards/gym/rules.py"
        )

    def rule(self, generator: str) -> Rule:
        """How a generator's answers are checked, and what a row must keep of its puzzle."""
        return rule_of(generator)

    def target(self, gold: Any, row: Row) -> GymQuestion:
        generator, kept = row.meta.get("generator"), row.meta.get("puzzle") or {}
        if not isinstance(generator, str) or generator in REFUSED:
            raise GoldError(
                f"meta.generator: {generator!r} names no generator; rows of the source 'reasoning_gym' "
                "have it"
            )
        if missing := [key for key in rule_of(generator).keeps if key not in kept]:
            raise GoldError(f"meta.puzzle: {missing[0]!r} is missing, which the check of {generator!r} reads")
        if gold is None or (isinstance(gold, str) and not gold.strip()):
            raise GoldError(f"answer: {gold!r} is empty")
        try:
            text = (
                gold
                if isinstance(gold, str)
                else ""
                if isinstance(gold, Mapping) and set(gold) == set(kept)
                else json.dumps(gold)
            )
        except TypeError as error:
            raise GoldError(f"answer: {type(gold).__name__} is no text and no JSON value") from error
        return GymQuestion(generator, fold(text), kept)

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = self.target(gold, row)
        answer = self.committed(response)
        if len(answer.text) > MAX_CHARS:
            raise Unread(f"the answer has more than {MAX_CHARS:,} characters", answer)
        check = rule_of(target.generator).check
        try:
            right = check(target.gold, answer.text, target.kept)
        except _CRASHES as error:
            _check_gold(target, error)
            _warn_once(target.generator, f"{type(error).__name__}: {error}")
            raise Unread("its check failed on the answer", answer) from error
        return self.scored(answer, float(right), right, "right" if right else "wrong", answer.text)


def _check_gold(target: GymQuestion, error: Exception) -> None:
    """Raise ValueError where a check that failed on an answer fails on the gold answer too: then the row is
    broken, not the answer."""
    try:
        right = rule_of(target.generator).check(target.gold, target.gold, target.kept)
    except _CRASHES as own:
        raise GoldError(f"the check of {target.generator!r} cannot read the row: {own}") from error
    if target.gold and not right:
        raise GoldError(
            f"the check of {target.generator!r} does not take the gold answer {target.gold[:60]!r}"
        ) from error


@lru_cache(maxsize=256)
def _warn_once(generator: str, what: str) -> None:
    log.warning(
        "reward 'reasoning_gym': the check of %r failed on an answer, which counts as wrong (%s)",
        generator,
        what[:200],
    )
