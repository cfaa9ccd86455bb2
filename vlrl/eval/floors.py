"""What a score is worth: the same scorer on answers that know nothing, on the gold answers, and by the training verifier."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

from vlrl.eval.grade import Graded, marked, mean_figures
from vlrl.eval.rows import Rows
from vlrl.eval.scorer import Fields, Mark
from vlrl.eval.suite import Profile

MASTER_KEYS = (":", ".", ",", "Solution", "Thought process:", "Let's solve this problem step by step.", "解", "The answer is")
NUMBERS = ("0", "1", "2", "3", "4", "5", "10", "100")


def _overall(rows: Rows, profile: Profile, respond: Callable[[Fields, int], str]) -> float:
    marks = [[marked(profile.scorer, row, respond(row, number))] for number, row in enumerate(rows.fields)]
    return mean_figures(profile.aggregate, rows.fields, marks)["overall"]


def floors(rows: Rows, profile: Profile) -> dict[str, Any]:
    """Overall figures of a model that says nothing, always the same, a random option, or a phrase that fools judges.

    `constant` is the best of the option letters, small numbers, yes and no; `random` is the expected figure of a fair draw among the options
    (rows without options get none). No model is asked.
    """
    letters = string.ascii_uppercase[: max((len(rows.suite.options(row)) for row in rows.fields), default=0)]
    tried = ("",) if profile.scorer.costly else (*letters, *NUMBERS, "yes", "no")
    constants = {text: _overall(rows, profile, lambda row, number, text=text: text) for text in tried}
    keys = {text: _overall(rows, profile, lambda row, number, text=text: text) for text in (("",) if profile.scorer.costly else MASTER_KEYS)}
    best, loudest = max(constants, key=constants.__getitem__), max(keys, key=keys.__getitem__)
    return {
        "blank": _overall(rows, profile, lambda row, number: ""),
        "constant": constants[best],
        "constant_answer": best,
        "master_key": keys[loudest],
        "master_key_text": loudest,
        "random": random_floor(rows, profile) if letters else None,
    }


def random_floor(rows: Rows, profile: Profile) -> float:
    """The figure when each row scores the mean of its options' letters."""
    marks = []
    for row in rows.fields:
        options = string.ascii_uppercase[: len(rows.suite.options(row))]
        scores = [marked(profile.scorer, row, letter).score for letter in options]
        marks.append([Mark(sum(scores) / len(scores) if scores else 0.0, "")])
    return mean_figures(profile.aggregate, rows.fields, marks)["overall"]


def gold_self_test(rows: Rows, profile: Profile) -> dict[str, Any]:
    """Whether each gold answer, in every format the suite allows, scores 1. Lists the ids that none reaches, and those that some format misses."""
    unreachable, partly = [], []
    for name, row in zip(rows.ids, rows.fields, strict=True):
        answers = profile.scorer.gold(row)
        scores = [marked(profile.scorer, row, answer).score for answer in answers]
        if not scores or max(scores) < 1:
            unreachable.append(name)
        elif min(scores) < 1:
            partly.append(name)
    total = max(1, len(rows))
    return {"reached": 1 - len(unreachable) / total, "unreachable": unreachable, "missed_in_some_format": partly}


def disagreement(a: Graded, b: Graded) -> dict[str, Any]:
    """Rows that two profiles judge differently: what training rewards and the benchmark does not, and the other way round."""
    rewarded, refused = [], []
    for name, first, second in zip(a.rows.ids, a.scores, b.scores, strict=True):
        if (first >= 0.5) != (second >= 0.5):
            (refused if first >= 0.5 else rewarded).append(name)
    total = max(1, len(a.scores))
    return {"share": (len(rewarded) + len(refused)) / total, f"only_{b.profile}": rewarded, f"only_{a.profile}": refused}


def consistency(plain: Graded, permuted: Sequence[Graded]) -> float | None:
    """The share of multiple-choice rows that keep their verdict under every order of their options (robustness; None without such rows)."""
    choice = [i for i, row in enumerate(plain.rows.fields) if len(plain.rows.suite.options(row)) > 1]
    if not choice or not permuted:
        return None
    kept = [all((other.scores[i] >= 0.5) == (plain.scores[i] >= 0.5) for other in permuted) for i in choice]
    return sum(kept) / len(kept)
