"""The live view of a run: a small table that refreshes in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vlrl.logging.story import health
from vlrl.pages.kit import clock

SHOWN = {  # metric -> what it is called here
    "length/mean": "length", "entropy": "entropy", "kl": "KL", "clip_fraction": "clipped", "loss": "loss",
    "grad_norm": "grad norm",
}  # fmt: skip
_BARS = "▁▂▃▄▅▆▇█"
_WINDOW = 20  # steps behind the rate and the time left
_PLAIN_SECONDS = 2.0  # not a terminal: at most one line in this time
_PROGRESS_SECONDS = 10.0  # the same for the progress of an evaluation
_SAID_ELSEWHERE = ("warning", "activity", "finding")  # events whose text the log or the summary prints


def total_steps(run_config: Mapping[str, Any]) -> int:
    """Steps of all phases."""
    phases = run_config.get("phases") or {"main": {}}
    return sum(int((override or {}).get("steps", run_config.get("steps", 0))) for override in phases.values())


def sparkline(values: list[float], width: int = 24) -> str:
    """The last `width` values as bars between their own minimum and maximum."""
    values = values[-width:]
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in values)


class LiveView:
    """The live view: `update` once per step, `say` for events, `close` at the end."""

    def __init__(self, run_config: Mapping[str, Any], console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.title = str(run_config.get("output", "run"))
        self.total = total_steps(run_config)
        self.rewards: list[
            float
        ] = []  # of the current phase: a cold start's demonstrations are right by construction
        self.heldout: dict[str, list[float]] = {}  # task -> scores, in order
        self._progress = ""
        self._shown: tuple[int, Mapping[str, float | None]] = (0, {})
        self._done = 0
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._tokens: deque[float] = deque(maxlen=_WINDOW)
        self._printed = -_PLAIN_SECONDS
        self._phase = ""
        self._health: list[str] = []
        self._live = (
            Live(console=self.console, auto_refresh=False, transient=False)
            if self.console.is_terminal
            else None
        )
        if self._live:
            self._live.start()

    def update(
        self, step: int, phase: str, metrics: Mapping[str, float | None], seconds: Mapping[str, float]
    ) -> None:
        """Show a finished step. The rate uses `seconds["step"]`, or the sum of the parts where there is
        none."""
        self._done = max(self._done + 1, step)
        self._seconds.append(seconds.get("step") or sum(seconds.values()))
        self._tokens.append(float(metrics.get("tokens") or 0))
        if phase != self._phase:
            self.rewards.clear()
        if metrics.get("reward/total") is not None:
            self.rewards.append(float(metrics["reward/total"] or 0))
        scores = {
            name.partition("/")[2]: value
            for name, value in metrics.items()
            if name.startswith("heldout/") and "errors" not in name
        }
        self._add_heldout({task: value for task, value in scores.items() if value is not None})
        self._progress, self._shown = "", (step, metrics)
        if self._live:
            self._live.update(self._panel(step, phase, metrics), refresh=True)
        elif (
            phase != self._phase
            or scores
            or step >= self.total
            or time.monotonic() - self._printed >= _PLAIN_SECONDS
        ):
            self._printed = time.monotonic()
            self.console.print(self.line(step, phase, metrics), highlight=False, soft_wrap=True, markup=False)
            now = health(metrics)
            if now and now != self._health:  # said once, until it changes
                said = f"  looks wrong: {'; '.join(now)}"
                self.console.print(said, highlight=False, soft_wrap=True, markup=False)
            self._health = now
        self._phase = phase

    def line(self, step: int, phase: str, metrics: Mapping[str, float | None]) -> str:
        """One step as one line of text."""
        return "  ".join(
            [
                f"{phase} {step}/{self.total}",
                *(f"{name} {value}" for name, value in self._figures(metrics).items()),
            ]
        )

    def on_event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Print an event above the table. Warnings and the activity report are left to the log, which prints
        them too."""
        if kind in _SAID_ELSEWHERE:
            return
        if kind == "heldout":
            self._progress = ""
            self._add_heldout(data.get("scores") or {})
        text = ", ".join(f"{key}={_short(value)}" for key, value in data.items())
        self.console.print(f"{kind}: {text}", highlight=False, soft_wrap=True, markup=False)

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how far something between the steps is, for instance a held-out evaluation."""
        self._progress = f"{what} {done}/{total}"
        if self._live:
            self._live.update(self._panel(self._shown[0], self._phase, self._shown[1]), refresh=True)
        elif time.monotonic() - self._printed >= _PROGRESS_SECONDS:
            self._printed = time.monotonic()
            self.console.print(self._progress, highlight=False, soft_wrap=True, markup=False)

    def _add_heldout(self, scores: Mapping[str, float]) -> None:
        for task, value in scores.items():
            self.heldout.setdefault(task, []).append(float(value))

    def close(self) -> None:
        """Leave the last state on the screen."""
        if self._live:
            self._live.stop()

    def _figures(self, metrics: Mapping[str, float | None]) -> dict[str, str]:
        parts = {
            name.partition("/")[2]: value
            for name, value in metrics.items()
            if name.startswith("reward/") and name != "reward/total"
        }
        figures = {"reward": _short(metrics.get("reward/total"))} if "reward/total" in metrics else {}
        figures |= {
            name: _short(value)
            for name, value in parts.items()
            if "/" not in name and (value or name != "errors")
        }
        figures |= {label: _short(metrics[name]) for name, label in SHOWN.items() if name in metrics}
        figures |= {f"held-out {task}": _first_and_last(scores) for task, scores in self.heldout.items()}
        spent = sum(self._seconds)
        if spent > 0:
            figures["tokens/s"] = f"{sum(self._tokens) / spent:.0f}"
            figures["left"] = clock(max(self.total - self._done, 0) * spent / len(self._seconds))
        return figures

    def _panel(self, step: int, phase: str, metrics: Mapping[str, float | None]) -> Panel:
        figures = self._figures(metrics)
        left = figures.pop("left", "?")
        table = Table.grid(padding=(0, 3))
        cells = [Text.assemble((f"{name} ", "dim"), (value, "bold")) for name, value in figures.items()]
        for start in range(0, len(cells), 5):
            table.add_row(*cells[start : start + 5])
        head = Text.assemble((phase, "bold cyan"), f"  step {step}/{self.total}  ", (f"{left} left", "green"))
        filled = round(60 * min(self._done / max(self.total, 1), 1.0))
        if self._progress:
            head.append(f"  {self._progress}", style="yellow")
        bar = Text.assemble(("━" * filled, "cyan"), ("━" * (60 - filled), "dim"))
        wrong = health(metrics)
        state = Text("; ".join(wrong), style="yellow") if wrong else Text("nothing looks wrong", style="dim")
        return Panel(
            Group(head, bar, table, Text(sparkline(self.rewards, 60), style="cyan"), state),
            title=Text(self.title),
            title_align="left",
            expand=False,
        )


def _first_and_last(scores: list[float]) -> str:
    return f"{scores[0]:.3f} -> {scores[-1]:.3f}" if len(scores) > 1 else f"{scores[0]:.3f}"


def _short(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_short(item)}" for key, item in value.items()) + "}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
