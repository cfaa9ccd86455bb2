"""Running figures by slot: counts, means and ranges of what a plug-in did."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


@dataclass
class Tally:
    """Count, sum and range of the numbers added so far."""

    n: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, value: float, times: int = 1) -> None:
        """Add a number `times` times."""
        self.n += times
        self.total += float(value) * times
        self.low = min(self.low, float(value))
        self.high = max(self.high, float(value))

    @property
    def mean(self) -> float:
        """The mean; 0 without any number."""
        return self.total / self.n if self.n else 0.0


class Figures(dict[str, dict[str, Tally]]):
    """slot -> figure -> Tally. A slot is written as in the config: "advantage", "rewards.format"."""

    def add(self, slot: str, **values: float) -> None:
        """Add one number to each of the named figures of a slot."""
        own = self.setdefault(slot, {})
        for name, value in values.items():
            own.setdefault(name, Tally()).add(value)

    def of(self, slot: str, figure: str) -> Tally:
        """The tally of a figure; an empty one where nothing was counted."""
        return self.get(slot, {}).get(figure, Tally())

    def value(self, name: str) -> float:
        """A number by name: "slot/figure" is the mean; "slot/figure.n", ".total", ".low", ".high" are the
        others.

        Raises KeyError, listing what there is, for an unknown name.
        """
        slot, _, figure = name.rpartition("/")
        figure, _, part = figure.partition(".")
        tallies = self.get(slot)
        if tallies is None or figure not in tallies or part not in ("", "mean", "n", "total", "low", "high"):
            known = sorted(f"{slot}/{figure}" for slot, tallies in self.items() for figure in tallies)
            raise KeyError(f"no figure {name!r}; there are {', '.join(known)}")
        return float(getattr(tallies[figure], part or "mean"))

    def numbers(self) -> dict[str, float]:
        """Every figure's mean, as "slot/figure"."""
        return {
            f"{slot}/{figure}": tally.mean
            for slot, tallies in self.items()
            for figure, tally in tallies.items()
        }


class Finding(NamedTuple):
    """A judgement about a slot. `level` "dead": it changes nothing; "contradictory": it works against another
    part; "note": worth knowing."""

    slot: str
    level: str
    message: str

    def __str__(self) -> str:
        return f"{self.slot}: {self.level}: {self.message}"
