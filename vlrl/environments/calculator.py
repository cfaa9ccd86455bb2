"""A calculator tool: arithmetic in the process, without a sandbox."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from vlrl.environments.tools import ToolEnvironment
from vlrl.plugins.registry import register

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
LIMIT = 10**18  # of numerator and denominator of every value on the way
MAX_POWER = 64


def evaluate(expression: str) -> Fraction:
    """The exact value of an expression of numbers, + - * / // % ** and parentheses.

    Raises ValueError for anything else, for more than 200 characters, and for values beyond `LIMIT`;
    ZeroDivisionError for a division by 0.
    """
    if len(expression) > 200:
        raise ValueError(f"the expression has {len(expression)} characters; at most 200 are allowed")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{expression[:60]!r} is no arithmetic expression") from error
    return _value(tree.body)


def _value(node: ast.expr) -> Fraction:
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, (int, float))
        and not isinstance(node.value, bool)
    ):
        if abs(node.value) > LIMIT:
            raise ValueError("a number is too large")
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        return _value(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, power = _value(node.left), _value(node.right)
        if power.denominator != 1 or abs(power) > MAX_POWER:
            raise ValueError(f"an exponent must be a whole number of at most {MAX_POWER}")
        return _bounded(base ** int(power))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _bounded(Fraction(_BINARY[type(node.op)](_value(node.left), _value(node.right))))
    raise ValueError("only numbers, + - * / // % ** and parentheses are allowed")


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) > LIMIT:
        raise ValueError("the value is too large")
    return value


def written(value: Fraction) -> str:
    """A whole number as digits, any other value as a decimal number with 10 significant digits."""
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"


@register("calculator")
@dataclass(frozen=True)
class Calculator(ToolEnvironment):
    """A calculator: answers {"name": "calculator", "arguments": {"expression": "2*(3+4)"}} with the value,
    14.

    vlrl original; in the spirit of the calculator of GSM8K (Cobbe et al. 2021, arXiv:2110.14168, sec. 4.1:
    generation stops, a calculator writes the result). Exact rational arithmetic. Edge: whatever is no
    arithmetic, a division by 0 and values beyond 1e18 are told to the policy as errors.
    """

    def functions(self) -> Sequence[Callable[..., Any]]:
        return [self.calculator]

    def calculator(self, expression: str) -> str:
        """Computes an arithmetic expression."""
        return written(evaluate(expression))
