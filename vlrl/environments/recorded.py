"""Recorded episodes, replayed without the environment that made them."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.episodes import (
    PICTURE_REPLIES,
    Action,
    EnvironmentFailure,
    Episode,
    Observation,
    Trajectory,
    copied,
)
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Environment
from vlrl.types import Row


def read_trajectories(path: str | Path, where: str) -> list[Trajectory]:
    """The trajectories of a JSONL file. Raises ConfigError, about the setting `where`, for a file that cannot
    be read and for a line that is no trajectory."""
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{where}: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            values.pop("step", None)
            found.append(Trajectory.from_plain(values))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{where}: {path}:{number} is no trajectory ({type(error).__name__}: {error})"
            ) from None
    return found


@register("recorded")
@dataclass(frozen=True, kw_only=True)
class Recorded(Environment):
    """Replays trajectories: `path` is a `trajectories.jsonl` that a run with `environment.record` has
    written.

    vlrl original. An episode takes the recordings of its row: the opening, then at each turn the answer of
    one in which the same turns were written so far. Edge: a row that was not recorded, or a turn that no
    recording has, raises EnvironmentFailure, because nothing says what the environment would have answered.
    `any_action` takes the next answer of the row's first recording whatever the policy writes (for timings).
    `stop` are the strings that ended the turns.
    """

    path: str
    any_action: bool = False
    stop: tuple[str, ...] = ()
    provides = (PICTURE_REPLIES,)

    @property
    def stops(self) -> tuple[str, ...]:  # type: ignore[override]  # a constant in other environments, here a field
        return self.stop

    def check(self, phase: PhaseContext) -> None:
        if not self.trajectories:
            raise ConfigError(
                f"environment.path: {self.path!r} holds no trajectory; record some with environment.record"
            )

    @cached_property
    def trajectories(self) -> dict[str, list[Trajectory]]:
        """The recordings by row id. Raises ConfigError for a file that cannot be read."""
        found: dict[str, list[Trajectory]] = defaultdict(list)
        for trajectory in read_trajectories(self.path, "environment.path"):
            found[trajectory.row].append(trajectory)
        return dict(found)

    def episode(self) -> Episode:
        return RecordedEpisode(self)


class RecordedEpisode(Episode):
    """The recordings that agree with the turns so far."""

    def __init__(self, settings: Recorded) -> None:
        self.settings = settings
        self.left: list[Trajectory] = []
        self.turn = 0

    def reset(self, row: Row, seed: int) -> Observation:
        self.left = list(self.settings.trajectories.get(row.id, ()))
        if not self.left:
            raise EnvironmentFailure(f"no episode of row {row.id!r} was recorded")
        return self.left[0].opening

    def copy(self) -> Episode:
        return copied(self)

    def step(self, action: Action) -> Observation:
        at, self.turn = self.turn, self.turn + 1
        if not self.settings.any_action:
            self.left = [one for one in self.left if len(one.steps) > at and one.steps[at][0] == action.text]
        if not self.left or len(self.left[0].steps) <= at:
            raise EnvironmentFailure(
                f"turn {action.turn}: no recording has this turn after the ones before it"
            )
        return self.left[0].steps[at][1]
