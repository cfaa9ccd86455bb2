"""One table of phrases that deny, hedge or correct (`text/denials.py`) holds for every kind: what a phrase
denies does not pay, under any of them."""

import pytest
from vlrl_rewards import verify
from vlrl_rewards.math import pool as math_pool
from vlrl_rewards.text.denials import settled

KINDS = {  # kind: (gold, the right answer, a wrong one, choices)
    "math": ("17", "17", "18", None),
    "numeric": ("17", "17", "18", None),
    "mcq": ("B", "B", "C", ["Rome", "Paris", "Oslo"]),
    "text": ("Paris", "Paris", "Rome", None),
    "yes_no": ("yes", "yes", "no", None),
    "count": (17, "17", "18", None),
    "box": ([10, 10, 50, 50], "[10, 10, 50, 50]", "[60, 60, 90, 90]", None),
    "point": ([10, 10, 30, 20], "(20, 15)", "(90, 90)", None),
    "temporal": ([5, 9], "5-9 s", "20-30 s", None),
    "label": ("cat", "cat", "dog", None),
}
DENIED = (
    "not {x}", "never {x}", "anything but {x}", "everything except {x}", "without {x}", "other than {x}",
    "avoid {x}", "I reject {x}",
    "I ruled out {x}",
    "It is not {x}", "It isn't {x}", "It cannot be {x}", "the answer is not {x}", "wrong: {x}",
    "{x} is wrong", "{x} is incorrect", "{x} is false",
    "{x} isn't it", "{x} is not the answer", "{x} would be incorrect",
    "{x} was my first guess but it is wrong", "{x}? No.", "{x}? No, {y}",
    "{x} no, {y}",
    "{x}; no: {y}", "{x}, scratch that, {y}", "{x}. Correction: {y}", "{x}, I mean {y}", "{x}, or rather {y}",
    "{x}... wait, {y}", "{x}. Sorry, {y}",
    "{x}. Oops, {y}", "{x}. Actually, {y}", "{x}, hold on, {y}", "{x}. On second thought, {y}",
    "{x} (just kidding, {y})", "{x}. Final answer: {y}",
    "{x}, final: {y}", "~~{x}~~", "~~{x}~~ {y}", "<del>{x}</del> {y}", "{y}, not {x}", "{y} instead of {x}",
    "{y} rather than {x}",
    "rather {y} than {x}",
    "neither {x} nor {y}", "{x} or {y}", "either {x} or {y}", "maybe {x}, maybe {y}",
    "perhaps {x} or perhaps {y}", "{x}, alternatively {y}",
    "{x} unless it is {y}", "{x} if true else {y}", "{x} might be wrong, {y} is right",
)  # fmt: skip
# the right answer stands last, or against a denied one; yes and no are left out, since "no" is a phrase of
# the table itself
ASSERTED = (
    "not {y} but {x}", "{y}? No, {x}", "{y}, scratch that, {x}", "{y}. Correction: {x}", "~~{y}~~ {x}",
    "{x}, not {y}", "{x} instead of {y}",
    "{x} rather than {y}",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def pool():
    math_pool.warm(wait=True)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_denied_does_not_pay(kind):
    gold, x, y, choices = KINDS[kind]
    said = [
        form.format(phrase.format(x=x, y=y))
        for phrase in DENIED
        for form in ("{}", "<answer>{}</answer>", "So: {}")
    ]
    assert [text for text in said if verify(gold, text, kind, choices).correct] == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "yes_no"])
def test_what_stands_against_a_denied_answer_pays(kind):
    gold, x, y, choices = KINDS[kind]
    said = [phrase.format(x=x, y=y) for phrase in ASSERTED]
    assert [text for text in said if not verify(gold, text, kind, choices).correct] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_answer_pays_and_nothing_does_not(kind):
    gold, x, y, choices = KINDS[kind]
    assert verify(gold, x, kind, choices).correct
    for empty in ("", " ", "?", "...", "not", "no, wait", "scratch that", "~~~~", "<del></del>", y):
        assert not verify(gold, empty, kind, choices).correct, empty


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("36, not 63", "36"), ("not 36 but 63", "63"), ("It is 17 and not 18.", "It is 17"),
        ("a cat rather than a dog", "a cat"),
        ("A? No, B", "B"), ("A. Correction: B", "B"), ("A, or rather B", "B"), ("not 36", "not 36"),
        ("17 or not 18", "17 or not 18"), ("", ""),
        ("x" * 301 + ", not 3", "x" * 301 + ", not 3"),
    ],
)  # fmt: skip
def test_settled(text, said):
    assert settled(text).strip() == said
