"""Several runs on one page: their curves over each other, their held-out scores, and what differs between
their configs. Runs whose configs differ in the seed alone are one line with a band."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlrl.logging.glossary import explained, unit
from vlrl.logging.recorder import EVENTS, KEYS, METRICS, read_record
from vlrl.logging.report import curves, heldout_table, read_config, read_summary, run_name
from vlrl.pages.chart import MAX_POINTS, Chart, Line, Point, Spread, number, spread_line, thin
from vlrl.pages.kit import render
from vlrl.services.files import thinned_jsonl
from vlrl.services.redaction import blank_all

PARSED = 3000  # steps of a run that are read
OWN = ("seed", "output", "name")  # settings in which the runs of one line may differ
FIRST = ("reward/total", "loss", "entropy", "kl", "length/mean")
Run = dict[str, Any]


def overlay_text(folders: Sequence[Path], follows: bool = False) -> str:
    """The page of at least two runs; `follows` as in `report_text`. Raises ValueError for a folder that holds
    no metrics."""
    runs = [read_run(folder) for folder in folders]
    lines = grouped(runs)
    names = " and ".join(lines) if len(lines) < 4 else f"{len(lines)} configs"
    seeds = max(len(members) for members in lines.values())
    reading = "Lines are smoothed over their steps." if seeds == 1 else (
        "Lines of several seeds are their means; bands reach from the lowest to the highest seed."
    )  # fmt: skip
    return render(
        "compare",
        f"{names}, overlaid",
        "vlrl report",
        verdict=verdict(lines),
        tables=[scores(runs)],
        charts=overlaid(lines),
        reading=reading,
        note="Last reward: mean of the last fifth of the steps. Held-out scores: first and last measured.",
        changed=changed(runs),
        scripts=("follow.js",) if follows else (),
        follows=follows,
    )


def read_run(folder: Path) -> Run:
    """Name, metrics, held-out scores and config of a run."""
    metrics, steps = thinned_jsonl(folder / METRICS, KEYS[METRICS], PARSED)
    if not metrics:
        raise ValueError(
            f"{folder}: no {METRICS} with a finished step in it; give the output folder of a run"
        )
    summary = read_summary(folder)
    return {
        "name": run_name(folder, summary),
        "folder": folder,
        "steps": steps,
        "curves": curves(metrics),
        "heldout": heldout_table(read_record(folder, EVENTS), summary)["rows"],
        "config": blank_all(read_config(folder)),
    }


def grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by line: those whose configs are equal but for the seed belong together. A name that two lines
    would share is told apart by its folder."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        same = json.dumps(
            {k: v for k, v in run["config"].items() if k not in OWN}, sort_keys=True, default=str
        )
        found.setdefault(same if run["config"] else str(run["folder"]), []).append(run)
    lines: dict[str, list[Run]] = {}
    for members in found.values():
        name = members[0]["name"] + (f" ({len(members)} seeds)" if len(members) > 1 else "")
        lines[name if name not in lines else f"{name}, {members[0]['folder']}"] = members
    return lines


def overlaid(lines: Mapping[str, Sequence[Run]]) -> list[Chart]:
    """A chart of each metric that at least two lines have and that changes; the well-known ones first."""
    counts: dict[str, int] = {}
    for members in lines.values():
        for metric in {name for run in members for name in run["curves"]}:
            counts[metric] = counts.get(metric, 0) + 1
    least = min(2, len(lines))
    wanted = sorted(
        (name for name, count in counts.items() if count >= least),
        key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name),
    )
    charts = []
    for metric in wanted:
        drawn = [_line(name, [run["curves"].get(metric, []) for run in runs]) for name, runs in lines.items()]
        if len({y for line in drawn for _, y in line.points}) > 1:
            charts.append(Chart(metric, drawn, up=unit(metric), means=explained(metric)))
    return charts


def _line(name: str, runs: Sequence[Sequence[Point]]) -> Line:
    if len(runs) == 1:
        return Line(name, thin(runs[0]), smoothed=True)
    at: dict[float, list[float]] = {}
    for run in runs:
        for x, y in run:
            at.setdefault(x, []).append(y)
    spread: list[Spread] = [(x, min(ys), sum(ys) / len(ys), max(ys)) for x, ys in sorted(at.items())]
    return spread_line(name, spread[:: -(-len(spread) // MAX_POINTS) or 1], banded=True)


def _last(run: Run) -> float | None:
    values = [value for _, value in run["curves"].get("reward/total", [])]
    part = values[-max(1, len(values) // 5) :]
    return sum(part) / len(part) if part else None


def scores(runs: Sequence[Run]) -> list[list[str]]:
    """The table: a line per run."""
    tasks = sorted({row["task"] for run in runs for row in run["heldout"]})
    lines = [["run", "steps", "last reward", *(f"held-out {task}" for task in tasks)]]
    for run in runs:
        last, held = _last(run), {row["task"]: row["values"] for row in run["heldout"]}
        cells = []
        for task in tasks:
            known = [value for value in held.get(task, ()) if value is not None]
            cells.append(
                " -> ".join(f"{v:.3f}" for v in (known[:1] + known[-1:] if len(known) > 1 else known))
            )
        reward = "–" if last is None else number(last)
        lines.append([run["name"], str(run["steps"]), reward, *(cell or "–" for cell in cells)])
    return lines


def verdict(lines: Mapping[str, Sequence[Run]]) -> str:
    """Which line ends with the highest reward, and that this is no test."""
    ends = {name: [v for run in runs if (v := _last(run)) is not None] for name, runs in lines.items()}
    means = {name: sum(values) / len(values) for name, values in ends.items() if values}
    if len(means) < 2:
        return "Only one of the runs has a reward to compare."
    best, second = sorted(means, key=lambda name: -means[name])[:2]
    return (
        f"{best} ends with the highest reward in training, {number(means[best])}; {second} follows with "
        f"{number(means[second])}. Rewards of different configs are not always on one scale, and few "
        "seeds do not tell luck from effect; vlrl compare does."
    )


def changed(runs: Sequence[Run]) -> list[list[str]]:
    """The settings that are not equal in all runs: a line of headings, then one per setting; [] if none
    differ."""
    flat = [flattened(run["config"]) for run in runs]
    keys = sorted({key for config in flat for key in config})
    rows = [[key, *(config.get(key, "–") for config in flat)] for key in keys]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    return [["setting", *(run["name"] for run in runs)], *differing] if differing else []


def flattened(value: Any, path: str = "") -> dict[str, str]:
    """A config as {"optimizer.lr": "1e-05"}; lists are one value."""
    if isinstance(value, Mapping) and value:
        parts = [flattened(item, f"{path}.{key}" if path else str(key)) for key, item in value.items()]
        return {key: text for part in parts for key, text in part.items()}
    return {path: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}
