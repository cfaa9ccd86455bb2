"""Jinja over the fields of a record (named `row` in the expressions), in a sandbox: expressions give values,
templates give text."""

from __future__ import annotations

import ast
import hashlib
import string
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vlrl.plugins.registry import ConfigError


def lettered(choices: Any, form: str = "({letter}) {choice}", separator: str = "\n") -> str:
    """The options with their letters, one per line."""
    return separator.join(
        form.format(letter=letter, choice=choice)
        for letter, choice in zip(string.ascii_uppercase, choices, strict=False)
    )


def letter_of(choices: Any, answer: Any) -> str:
    """The letter of the choice that equals the answer; "" if none does."""
    listed = [str(choice) for choice in choices]
    return string.ascii_uppercase[listed.index(str(answer))] if str(answer) in listed else ""


def literal(text: Any) -> Any:
    """The list that the hub stores as text ("['a', 'b']"), parsed as a Python literal; any other value
    unchanged."""
    if not isinstance(text, str):
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def shuffled(choices: Any, key: Any) -> list[Any]:
    """The choices in an order that depends only on `key` (not on the records read before)."""
    return sorted(choices, key=lambda choice: hashlib.sha256(f"{key}\x00{choice}".encode()).digest())


def fields_like(record: Mapping[str, Any], prefix: str) -> list[Any]:
    """The values of the fields prefix1, prefix2, ..., prefix19 that are set."""
    return [record[f"{prefix}{i}"] for i in range(1, 20) if record.get(f"{prefix}{i}") is not None]


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, keep_trailing_newline=False, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(letters=string.ascii_uppercase)
    environment.filters.update(
        lettered=lettered, letter_of=letter_of, literal=literal, shuffled=shuffled, fields_like=fields_like
    )
    return environment


_ENVIRONMENT = _environment()


def _columns(record: Mapping[str, Any]) -> str:
    """The names of a row's own fields; those with an underscore in front are added when it is read."""
    return ", ".join(sorted(name for name in map(str, record) if not name.startswith("_"))) or "no columns"


@lru_cache(maxsize=1024)
def _expression(text: str) -> Any:
    return _ENVIRONMENT.compile_expression(text, undefined_to_none=False)


@lru_cache(maxsize=1024)
def _template(text: str) -> Any:
    return _ENVIRONMENT.from_string(text)


def evaluate(text: str, record: Mapping[str, Any]) -> Any:
    """The value of an expression. Raises ConfigError with the expression and the fields that the record
    has."""
    try:
        value = _expression(text)(row=record)
        if isinstance(value, StrictUndefined):
            str(value)  # raises UndefinedError with the missing name
        return value
    except (TemplateError, TypeError, KeyError, IndexError) as error:
        raise ConfigError(f"expression {text!r}: {error}; the row has {_columns(record)}") from None


def render(text: str, record: Mapping[str, Any]) -> str:
    """The text of a template, stripped of white space at both ends. Raises ConfigError as `evaluate` does."""
    try:
        return _template(text).render(row=record).strip()
    except (TemplateError, TypeError, KeyError) as error:
        raise ConfigError(f"template {text[:60]!r}: {error}; the row has {_columns(record)}") from None
