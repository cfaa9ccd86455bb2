"""Right and wrong variants of gold answers, made at random (`vlrl_rewards.audit.variants`)."""

import random

import pytest
from vlrl_rewards import verify
from vlrl_rewards.audit.locales import LOCALES, written
from vlrl_rewards.audit.variants import TASKS, localised, made
from vlrl_rewards.math import pool as math_pool


@pytest.fixture(scope="module", autouse=True)
def pool():
    math_pool.warm(wait=True)


def misjudged(make, count, seed):
    """The variants among `count` that are judged wrongly."""
    draw = random.Random(seed)
    variants = (make(draw) for _ in range(count))
    return [
        variant
        for variant in variants
        if verify(variant.gold, variant.response, variant.kind, variant.choices).correct is not variant.right
    ]


@pytest.mark.parametrize("make", [made, localised])
def test_variants_are_judged(make):
    assert not misjudged(make, 2500, seed=11)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_two_hundred_thousand_variants(seed):
    assert not misjudged(made, 5000, seed)


def test_a_seed_makes_the_same_variants_of_every_task():
    first, again = ([made(draw) for _ in range(600)] for draw in (random.Random(1), random.Random(1)))
    assert first == again and {variant.right for variant in first} == {True, False}
    kinds = {variant.how.partition(":")[0] for variant in first}
    assert {make.__name__ for make in TASKS} <= kinds and len(kinds & LOCALES.keys()) > 12


def test_a_wrong_verdict_is_found(monkeypatch):
    """An answer that is accepted whatever it says, and one that never is."""
    for always in (True, False):
        monkeypatch.setattr(
            f"{__name__}.verify", lambda *_, always=always: type("Verdict", (), {"correct": always})
        )
        found = misjudged(made, 200, seed=2)
        assert 20 < len(found) < 180 and {variant.right for variant in found} == {not always}


@pytest.mark.parametrize(
    ("number", "language", "text"),
    [
        ("1234567.8", "German", "1.234.567,8"),
        ("12345", "German", "12345"),
        ("-1234.5", "French", "-1\u202f234,5"),
        ("1234", "Chinese", "1,234"),
        ("1.5", "Russian", "1,5"),
        ("999", "Polish", "999"),
    ],
)
def test_written_by_hand(number, language, text):
    assert written(number, LOCALES[language]) == text
