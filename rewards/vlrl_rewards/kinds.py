"""The kinds of `verify`: `@verifier("palindrome")` on a scoring function (`vlrl.plugins.scoring`), or on a
class of `vlrl_rewards.graded`, makes it one. The reward `verify`, the eval scorer `verifier` and the command
`vlrl verify` then score by it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from vlrl.plugins.scoring import Response, Scoring, Verdict


@dataclass(frozen=True)
class Kind:
    """A kind of answer: its scoring function, the names of its options, and the reward that defines it ("": a
    function does). The kind of a reward also takes the options `spaces` and `meta`."""

    score: Scoring
    options: tuple[str, ...]
    reward: str = ""

    def check(self, name: str, options: Mapping[str, Any]) -> None:
        """Raise ValueError on an option that the kind does not have."""
        for option in options:
            if option not in self.options:
                raise ValueError(
                    f"kind {name!r} has no option {option!r}; it has: {', '.join(self.options) or 'none'}"
                )


KINDS: dict[str, Kind] = {}
T = TypeVar("T", bound=Callable[..., Any])


def verifier(*kinds: str) -> Callable[[T], T]:
    """Register a scoring function, or a reward with a `grade`, under one or more kinds of `verify`.

    The options of the kind are the keyword-only parameters of the function, or the fields of the reward.
    Where `correct_at` is given, a verdict is correct from that score on; else the `grade` decides.
    """

    def add(scorer: T) -> T:
        kind = _of_reward(scorer) if isinstance(scorer, type) else _of_function(scorer)
        for name in kinds:
            known, new = (_origin(one) for one in (KINDS.get(name, kind), kind))
            if known != new:
                raise ValueError(
                    f"kind {name!r} is registered twice: by {known.partition(':')[0]} and by "
                    f"{new.partition(':')[0]}"
                )
            KINDS[name] = kind
        return scorer

    return add


def _origin(kind: Kind) -> str:
    return f"{kind.score.__module__}:{kind.score.__qualname__}"


def _of_function(function: Scoring) -> Kind:
    parameters = inspect.signature(function).parameters.values()
    return Kind(function, tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY))


def _of_reward(cls: Any) -> Kind:
    from vlrl.plugins.registry import make
    from vlrl.plugins.stages import Reward

    def score(response: Response, gold: Any, row: Any, **options: Any) -> Verdict:
        reward = make(cls, options, cls.name) if options else cls()
        found = reward.grade(response, gold, row)
        correct = found.score >= options["correct_at"] - 1e-9 if "correct_at" in options else found.correct
        return replace(found, score=min(1.0, max(0.0, float(found.score))), correct=bool(correct))

    score.__module__, score.__qualname__ = cls.__module__, cls.__qualname__
    shared = {f.name for f in fields(Reward)} - {"correct_at"}
    names = tuple(f.name for f in fields(cls) if f.init and f.name not in shared)
    return Kind(score, (*names, "spaces", "meta"), cls.name)
