"""`scripts/check_prose.py`: it finds what is hard to read, and the pages of the site have nothing of it."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from site_kit import ROOT


@pytest.fixture(scope="module")
def check_prose():
    spec = importlib.util.spec_from_file_location("check_prose", ROOT / "scripts" / "check_prose.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_prose"] = module
    spec.loader.exec_module(module)
    return module


def test_no_page_has_a_hard_sentence(check_prose):
    assert [
        f"{page}:{where}"
        for page in check_prose.PAGES
        for where in check_prose.problems((ROOT / page).read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize(
    ("text", "hard"),
    [
        ("word " * 31 + ".", True),
        ("word " * 29 + "word.", False),
        ("One, two, three, four, five, six are many.", True),
        ("Short. " * 7, True),
        ("- " + "word " * 31, True),
        ("```\n" + "word " * 90 + "\n```", False),
        ("| " + "word " * 90 + " |", False),
        ("`" + "word " * 40 + "` is code.", False),
        ("word " * 20 + "(" + "aside " * 20 + ").", False),
        ("\n\n".join(["word " * 28 + "."] * 5), False),
        ("\n".join(["word " * 28 + "."] * 5), True),
    ],
)
def test_what_is_hard(check_prose, text, hard):
    assert bool(list(check_prose.problems(text))) is hard


def test_the_line_is_named(check_prose):
    assert next(check_prose.problems("# A\n\nFine.\n\n" + "word " * 40))[0] == 5
