"""Jinja over the fields of a row, in a sandbox: expressions give values, templates give text."""

from __future__ import annotations

import ast
import hashlib
import string
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vlrl.registry import ConfigError


def lettered(choices: Any, form: str = "({letter}) {choice}", joint: str = "\n") -> str:
    """Options, one per line, each with its letter."""
    return joint.join(form.format(letter=letter, choice=choice) for letter, choice in zip(string.ascii_uppercase, choices, strict=False))


def letter_of(choices: Any, answer: Any) -> str:
    """The letter of the choice that equals the answer ("" if none does)."""
    listed = [str(choice) for choice in choices]
    return string.ascii_uppercase[listed.index(str(answer))] if str(answer) in listed else ""


def literal(text: Any) -> Any:
    """A list that the hub stores as text ("['a', 'b']"), parsed as a Python literal; anything else as it is."""
    if not isinstance(text, str):
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def shuffled(choices: Any, key: Any) -> list[Any]:
    """The choices in an order that depends on `key` alone (and not on which rows were read before)."""
    return sorted(choices, key=lambda choice: hashlib.sha256(f"{key}\x00{choice}".encode()).digest())


def fields_like(row: Mapping[str, Any], prefix: str) -> list[Any]:
    """The values of the fields prefix1, prefix2, ... that are set."""
    return [row[f"{prefix}{i}"] for i in range(1, 20) if row.get(f"{prefix}{i}") is not None]


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=False, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(letters=string.ascii_uppercase)
    environment.filters.update(lettered=lettered, letter_of=letter_of, literal=literal, shuffled=shuffled, fields_like=fields_like)
    return environment


_ENVIRONMENT = _environment()


@lru_cache(maxsize=1024)
def _expression(text: str) -> Any:
    return _ENVIRONMENT.compile_expression(text, undefined_to_none=False)


@lru_cache(maxsize=1024)
def _template(text: str) -> Any:
    return _ENVIRONMENT.from_string(text)


def evaluate(text: str, row: Mapping[str, Any]) -> Any:
    """The value of an expression. Raises ConfigError naming the expression and the fields that the row has."""
    try:
        value = _expression(text)(row=row)
        if isinstance(value, StrictUndefined):
            str(value)  # raises
        return value
    except (TemplateError, TypeError, KeyError, IndexError) as error:
        raise ConfigError(f"expression {text!r}: {error}; the row has {', '.join(sorted(map(str, row)))}") from None


def render(text: str, row: Mapping[str, Any]) -> str:
    """A template as text, without white space around it. Raises ConfigError as `evaluate` does."""
    try:
        return _template(text).render(row=row).strip()
    except (TemplateError, TypeError, KeyError) as error:
        raise ConfigError(f"template {text[:60]!r}: {error}; the row has {', '.join(sorted(map(str, row)))}") from None
