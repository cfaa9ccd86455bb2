"""The registry of answer kinds: `@verifier("count")` on a function `(case, **options) -> Verdict` defines
`verify(..., kind="count")`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from vlrl_rewards.parsing import Answer, committed, uncommitted, visible
from vlrl_rewards.verdict import Verdict

F = TypeVar("F", bound=Callable[..., Verdict])

VERIFIERS: dict[str, Callable[..., Verdict]] = {}


@dataclass(frozen=True)
class Case:
    """The input of a verifier: the gold answer, the response, the choices (if any), the options."""

    gold: Any
    response: str
    choices: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def visible(self) -> str:
        """The response with its thinking replaced by spaces; offsets do not change."""
        return visible(self.response)

    @cached_property
    def answer(self) -> Answer | None:
        """The last committed answer, or None."""
        return committed(self.response)

    @property
    def answer_or_text(self) -> str:
        """The committed answer, else the whole visible response, trimmed; "" if there are several answers
        (`parsing.answer_or_text`)."""
        if self.answer is None:
            return uncommitted(self.visible)
        return "" if self.answer.problem else self.answer.text.strip()


def verifier(*kinds: str) -> Callable[[F], F]:
    """Register a function `(case: Case, *, option=default, ...) -> Verdict` under one or more kinds.

    Its keyword-only parameters are the options of the kind. It raises ValueError on a broken gold answer; it
    never raises because of the response, which gets a wrong verdict.
    """

    def add(function: F) -> F:
        for kind in kinds:
            known = VERIFIERS.get(kind)
            if known is not None and (known.__module__, known.__qualname__) != (
                function.__module__,
                function.__qualname__,
            ):
                raise ValueError(
                    f"kind {kind!r} is registered twice: by {known.__module__} and by {function.__module__}"
                )
            VERIFIERS[kind] = function
        return function

    return add


def options_of(kind: str) -> list[str]:
    """The names of the options of a kind."""
    return list(_keywords(VERIFIERS[kind]))


@lru_cache(maxsize=256)
def _keywords(function: Callable[..., Verdict]) -> tuple[str, ...]:
    return tuple(p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY)


def check_options(kind: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError on an option that the kind does not have."""
    known = options_of(kind)
    for name in options:
        if name not in known:
            raise ValueError(f"kind {kind!r} has no option {name!r}; it has: {', '.join(known) or 'none'}")


def as_case(gold: Any, response: str, choices: Sequence[str] | None, options: Mapping[str, Any]) -> Case:
    """The case of the arguments of `verify`. Raises ValueError if the response is not text."""
    if not isinstance(response, str):
        raise ValueError(f"response must be text, got {type(response).__name__}: {response!r:.80}")
    return Case(gold, response, tuple(str(choice) for choice in choices or ()), dict(options))
