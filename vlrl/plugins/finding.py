"""What a paper's probe says about a run: a sentence with the run's numbers and the paper's threshold.

At the end of a run, `Stage.finding(numbers)` of every plug-in of the last phase is asked; what comes back
stands in summary.json, in events.jsonl, on the console and in the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

FIFTH = 5  # the start and the end of a run are the first and the last fifth of its steps


class PaperFinding(NamedTuple):
    """A sentence about the run, and whether the run shows what the paper found (None: it cannot tell)."""

    text: str
    shows: bool | None


@dataclass(frozen=True)
class RunNumbers:
    """The log of a phase as the plug-in of one slot reads it.

    Attributes:
        slot: The slot; names are those that the plug-in logs, without it.
        rows: The lines of metrics.jsonl of the phase, in order.
    """

    slot: str
    rows: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    def key(self, name: str) -> str:
        """The name in the log."""
        return name if name == self.slot else f"{self.slot}/{name}"

    def all(self, name: str) -> list[float]:
        """The values of a number in the order of the steps, without those that are absent or not finite."""
        key = self.key(name)
        return [float(row[key]) for row in self.rows if row.get(key) is not None]

    def names(self) -> list[str]:
        """The names that the slot logged in any step, in order."""
        head = f"{self.slot}/"
        found = {key[len(head) :] for row in self.rows for key in row if key.startswith(head)}
        return sorted(found)

    def start(self, name: str) -> float | None:
        """The mean over the first fifth of the steps that have the number; None for none."""
        values = self.all(name)
        part = values[: max(len(values) // FIFTH, 1)]
        return sum(part) / len(part) if part else None

    def end(self, name: str) -> float | None:
        """The mean over the last fifth; None for none."""
        values = self.all(name)
        part = values[-max(len(values) // FIFTH, 1) :]
        return sum(part) / len(part) if part else None

    def change(self, name: str) -> tuple[float, float] | None:
        """(start, end); None with fewer than two steps that have the number."""
        start, end = self.start(name), self.end(name)
        return (start, end) if start is not None and end is not None and len(self.all(name)) > 1 else None

    def last(self, name: str) -> float | None:
        """The newest value; None for none."""
        values = self.all(name)
        return values[-1] if values else None


def moved(name: str, pair: tuple[float, float]) -> str:
    """A change in words: "pass@1 rose .20 -> .55"."""
    before, after = pair
    verb = "rose" if after > before else "fell" if after < before else "stayed at"
    return f"{name} {verb} {before:.3g}" + (f" -> {after:.3g}" if after != before else "")


def nothing(reason: str) -> PaperFinding:
    """No finding, with the reason."""
    return PaperFinding(f"no finding: {reason}", None)
