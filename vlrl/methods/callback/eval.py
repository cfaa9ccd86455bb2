"""Benchmark suites while training runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.registry import ConfigError, register
from vlrl.stages import Callback
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("eval")
@dataclass(frozen=True)
class Eval(Callback):
    """After every `every`-th step (counted over all phases), draws responses to `suites` with the run's engine and scores them by `profiles`.

    Metrics: <suite>/<profile>, with /low and /high of its interval; figures and responses go to `<output>/eval/step-<n>`. What a step's
    journal holds is not drawn again, so a restart in the middle goes on. All processes draw, each its share.
    vlrl original. `data`, `limit`, `max_tokens`, `protocol` as in `vlrl eval`; `samples` above 1 need a `temperature`. Edge: a row whose
    media are broken counts as wrong. Units: scores in [0, 1].
    """

    suites: tuple[str, ...] = ()
    every: int = 50
    profiles: tuple[str, ...] = ("official", "vlrl")
    data: str = "auto"
    media: str = ""
    limit: int = 0
    samples: int = 1
    temperature: float = 0.0
    max_tokens: int = 0
    protocol: str = "direct"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.suites:
            raise ConfigError("callbacks.eval.suites: name at least one suite (`vlrl eval suites` lists them)")
        if self.every < 1:
            raise ConfigError(f"callbacks.eval.every: {self.every} must be at least 1")

    def check(self, run: Run) -> None:
        run.suites.check(self)  # unknown suites, profiles and unreadable data stop the run before it starts

    def __call__(self, run: Run, groups: Sequence[Group]) -> dict[str, float]:
        if run.step % self.every:
            return {}
        return run.suites.evaluate(self, run)
