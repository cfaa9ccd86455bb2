"""Choice letters: named, denied, corrected, echoed, struck out, or only a word of the sentence."""

import pytest
from vlrl_rewards import verify

CITIES = ["London", "Paris", "Rome", "Berlin"]
ANIMALS = ["cat", "dog", "cow", "pig"]
RIGHT = [
    ("B", "B because the tower is in France", CITIES), ("B", "B because the cat is hidden", ANIMALS), ("B",
        "B, the cat is behind it", ANIMALS),
    ("A", "A because the dog is hidden", ANIMALS), ("A", "cat (A)", ANIMALS), ("B", "dog (B)", ANIMALS), ("B",
        "B. No, A is wrong", ANIMALS),
    ("B", "Is it A? No. Is it C? No. It is B.", ANIMALS), ("D", "B. Nope, D", ANIMALS), ("C", "~~B~~ C",
        ANIMALS), ("B", "<del>A</del> B", ANIMALS),
    ("B", "I first thought A, but it's B.", CITIES), ("B", "A? No, B.", CITIES), ("C", "final: C", ANIMALS),
    ("B", "B, no other option fits", ANIMALS),
    (["A", "C"], "A C", ANIMALS), (["A", "C"], "C A", ANIMALS), (["A", "C"], "A and C", ANIMALS), ("A",
        "A cat", ANIMALS),
]  # fmt: skip
WRONG = [
    ("B", "B. No, it's C.", CITIES), ("B", "B. Final answer: C", CITIES), ("B", "B; final: C", CITIES), ("B",
        "The answer is B. Finally: D", CITIES),
    ("B", "A. London B. Paris C. Rome D. Berlin", CITIES), ("B", "A. London\nB. Paris\nC. Rome\nD. Berlin",
        CITIES), ("B", "A B C D", CITIES),
    ("B", "~B", CITIES), ("B", "¬B", CITIES), ("B", "!B", CITIES), ("B", "≠ B", CITIES), ("B", "B\u0336",
        CITIES), ("B", "~~B~~ C", CITIES),
    ("B", "B ✗", CITIES),
    ("B", "B?\nNo: A", CITIES), ("B", "B? No.", CITIES), ("B", "It cannot be B", CITIES), ("B", "wrong: B",
        CITIES), ("B", "dog (A)", ANIMALS),
    ("A", "dog (A)", ANIMALS), ("B", "B: the cat is the answer", ANIMALS), ("B", "B is a cat", ANIMALS), ("A",
        "A dog", ANIMALS),
    (["A", "C"], "A or C", ANIMALS), (["A", "C"], "A B C", ANIMALS), (["A", "C"], "A", ANIMALS),
    ("B", "", CITIES), ("B", "?", CITIES), ("B", "\x00\ufffd", CITIES), ("B", "Z", CITIES), ("B", "B" * 500,
        CITIES),
    ("B", "<answer></answer>", CITIES),
    ("B", "B " * 400, CITIES), ("B", "C" + " B." * 3 + " C", CITIES),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "said", "choices"), RIGHT)
def test_pays(gold, said, choices):
    assert verify(gold, said, "mcq", choices).correct
    assert verify(gold, f"<answer>{said}</answer>", "mcq", choices).correct


@pytest.mark.parametrize(("gold", "said", "choices"), WRONG)
def test_does_not_pay(gold, said, choices):
    assert not verify(gold, said, "mcq", choices).correct
    assert not verify(gold, f"<answer>{said}</answer>", "mcq", choices).correct
