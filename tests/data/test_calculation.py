"""`gen_calculation`: values by an independent evaluation, the number of operations, and held-out rows of
their own."""

import ast
import operator
from fractions import Fraction

import pytest

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward, Source
from vlrl.types import Prompt, Rollout

SIGNS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def rows(count=40, **fields):
    return list(build(Source, {"name": "gen_calculation", "count": count, **fields})())


def value(node):
    """The exact value of a parsed expression."""
    if isinstance(node, ast.Constant):
        return Fraction(node.value)
    return SIGNS[type(node.op)](value(node.left), value(node.right))


def text_of(row):
    return row.question.partition(": ")[2]


@pytest.mark.parametrize("steps", [1, 5, 10])
def test_answers_and_the_number_of_operations(steps):
    for row in rows(steps=steps):
        text = text_of(row)
        exact = value(ast.parse(text.replace("^", "**"), mode="eval").body)
        assert row.answer == pytest.approx(float(exact), abs=1e-6) and abs(exact) <= 10**9
        assert sum((f" {sign} " in text and text.count(f" {sign} ")) or 0 for sign in "+-*/") == steps
        assert (
            build(Reward, {"name": "closeness", "mode": "distance"})(Rollout(Prompt(row, ()), [], row.target))
            == 1.0
        )


def test_all_kinds_of_numbers_and_of_operations_occur():
    everything = " ".join(text_of(row) for row in rows(100))
    assert all(mark in everything for mark in ("^2", "^3", " + ", " - ", " * ", " / ")) and any(
        part.startswith("(") for part in everything.split()
    )


def test_held_out_expressions_are_not_trained_on():
    train, heldout = (
        {text_of(row) for row in rows(300, steps=1, largest=3, split=split)} for split in ("train", "heldout")
    )
    assert train and heldout and not train & heldout
    assert rows(5) == rows(5)


def test_senseless_sizes_are_refused():
    for wrong in ({"steps": 0}, {"largest": 0}):
        with pytest.raises(ConfigError, match="steps"):
            rows(**wrong)
