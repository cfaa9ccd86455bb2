"""Context of a score: floors (the scores of trivial responses), the gold self-test, and the disagreement of
two profiles."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from vlrl.beside.audit import MASTER_KEYS
from vlrl.eval.grade import GradedSuite, apply_scorer, mean_figures
from vlrl.eval.records import SuiteData
from vlrl.eval.suite import Profile
from vlrl.plugins.scoring import Verdict

NUMBERS = ("0", "1", "2", "3", "4", "5", "10", "100")


def constant_figure(data: SuiteData, profile: Profile, text: str) -> float:
    """The overall figure of a model that always responds `text`."""
    scored = [[apply_scorer(profile.scorer, record, text)] for record in data.records]
    return mean_figures(profile.aggregate, data.records, scored)["overall"]


def floors(data: SuiteData, profile: Profile) -> dict[str, Any]:
    """Overall figures of trivial responses: empty, constant, a random option, and master keys (phrases that
    fool judges). No model is asked.

    `constant` is the best of the option letters, small numbers, yes and no; `random` is the expected figure
    of a uniform draw among the options (records without options get 0; None where no record has options). A
    costly scorer is tried on the empty response only.
    """
    letters = string.ascii_uppercase[
        : max((len(data.suite.options(record)) for record in data.records), default=0)
    ]
    costly = profile.scorer.costly
    constants = {
        text: constant_figure(data, profile, text)
        for text in (("",) if costly else (*letters, *NUMBERS, "yes", "no"))
    }
    keys = {text: constant_figure(data, profile, text) for text in (("",) if costly else MASTER_KEYS)}
    best_constant, best_key = max(constants, key=constants.__getitem__), max(keys, key=keys.__getitem__)
    return {
        "blank": constant_figure(data, profile, ""),
        "constant": constants[best_constant],
        "constant_answer": best_constant,
        "master_key": keys[best_key],
        "master_key_text": best_key,
        "random": random_floor(data, profile) if letters else None,
    }


def random_floor(data: SuiteData, profile: Profile) -> float:
    """The overall figure when each record scores the mean over its options' letters."""
    scored = []
    for record in data.records:
        options = string.ascii_uppercase[: len(data.suite.options(record))]
        scores = [apply_scorer(profile.scorer, record, letter).score for letter in options]
        scored.append([Verdict(sum(scores) / len(scores) if scores else 0.0, False)])
    return mean_figures(profile.aggregate, data.records, scored)["overall"]


def gold_self_test(data: SuiteData, profile: Profile) -> dict[str, Any]:
    """Whether the gold answers, in every format that the suite allows, score 1.

    `unreachable` lists the ids where no format does, `missed_in_some_format` those where some does not.
    """
    unreachable, partly = [], []
    for name, record in zip(data.ids, data.records, strict=True):
        answers = profile.scorer.demonstrations(record)
        scores = [apply_scorer(profile.scorer, record, answer).score for answer in answers]
        if not scores or max(scores) < 1:
            unreachable.append(name)
        elif min(scores) < 1:
            partly.append(name)
    total = max(1, len(data))
    return {
        "reached": 1 - len(unreachable) / total,
        "unreachable": unreachable,
        "missed_in_some_format": partly,
    }


def disagreement(a: GradedSuite, b: GradedSuite) -> dict[str, Any]:
    """The records that only one of two profiles counts as correct, for instance the benchmark's and the
    training verifier's."""
    only_a: list[str] = []
    only_b: list[str] = []
    for name, first, second in zip(a.data.ids, a.correct, b.correct, strict=True):
        if first != second:
            (only_a if first else only_b).append(name)
    total = max(1, len(a.scores))
    return {
        "share": (len(only_a) + len(only_b)) / total,
        f"only_{b.profile}": only_b,
        f"only_{a.profile}": only_a,
    }


def consistency(plain: GradedSuite, permuted: Sequence[GradedSuite]) -> float | None:
    """The share of multiple-choice records that stay correct or wrong under every order of their options;
    None without such records."""
    choice = [i for i, record in enumerate(plain.data.records) if len(plain.data.suite.options(record)) > 1]
    if not choice or not permuted:
        return None
    expected, others = plain.correct, [other.correct for other in permuted]
    kept = [all(other[i] == expected[i] for other in others) for i in choice]
    return sum(kept) / len(kept)
