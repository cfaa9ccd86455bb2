"""Curves of tracked runs: one metric of many runs over steps, samples or seconds, mean over seeds.

Paper: Huang et al. 2024 (Open RL Benchmark), arXiv:2402.03046: runs with all their parameters and versions,
and a command that filters them and draws comparison figures. A run's folder is its manifest here:
config.yaml, sessions.jsonl (versions, devices, revision), metrics.jsonl, timings.jsonl."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from vlrl.config import at
from vlrl.config.merging import has
from vlrl.plugins.registry import ConfigError, suggest
from vlrl.probes.result import Figure, ProbeResult

Axis = Literal["step", "samples", "seconds"]


def manifest(folder: Path) -> dict[str, Any]:
    """A run's resolved config, its first session (packages, devices, revision), and its steps' metrics with
    the seconds since the run began (pauses between sessions count).

    Raises ConfigError for a folder that is no run.
    """
    if not (folder / "metrics.jsonl").is_file() or not (folder / "config.yaml").is_file():
        raise ConfigError(
            f"probe: {str(folder)!r} holds no metrics.jsonl and config.yaml; give folders of runs, "
            f"such as runs/grpo"
        )

    def lines(name: str) -> list[dict[str, Any]]:
        file = folder / name
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        return [json.loads(line) for line in text.splitlines() if line.strip()]

    sessions = lines("sessions.jsonl")
    times = {line["step"]: line["time"] for line in lines("timings.jsonl")}
    begun = sessions[0]["time"] if sessions else min(times.values(), default=0.0)
    steps = [{**line, "seconds": times.get(line["step"], begun) - begun} for line in lines("metrics.jsonl")]
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    return {
        "folder": folder.name,
        "config": config,
        "session": sessions[0] if sessions else {},
        "steps": steps,
    }


def setting(run: Mapping[str, Any], path: str) -> str:
    """A setting of a run as text; its last phase's value where phases differ. Raises ConfigError for one that
    the run does not have."""
    trees = [run["config"], *((run["config"].get("phases") or {}).values())]
    found = [at(tree, path) for tree in trees if tree and has(tree, path)]
    if not found:
        raise ConfigError(f"probe: {run['folder']} has no setting {path!r}; see its config.yaml")
    return str(found[-1])


def place_of(run: Mapping[str, Any], line: Mapping[str, Any], axis: Axis) -> float:
    """Where a step stands on the axis; samples are steps x prompts_per_step x group_size."""
    if axis == "samples":
        return float(line["step"] * int(setting(run, "prompts_per_step")) * int(setting(run, "group_size")))
    return float(line["seconds"] if axis == "seconds" else line["step"])


def measure(
    folders: Sequence[Path],
    metric: str,
    axis: Axis = "step",
    by: str = "advantage.name",
    keep: Sequence[str] = (),
) -> ProbeResult:
    """Mean curve of `metric` per value of the setting `by`, over the runs that match all of `keep`
    (SETTING=VALUE), at the places that all runs of a value reached.

    Raises ConfigError where no run matches, or none logs the metric.
    """
    runs = [manifest(folder) for folder in folders]
    for word in keep:
        path, _, wanted = word.partition("=")
        runs = [run for run in runs if setting(run, path) == wanted]
    if not runs:
        raise ConfigError(f"probe: no run matches {', '.join(keep)}; leave one of --filter away")
    sets: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        sets[setting(run, by)].append(run)
    lines, table = {}, []
    for value, members in sets.items():
        curves = [
            [
                (place_of(run, line, axis), float(line[metric]))
                for line in run["steps"]
                if line.get(metric) is not None
            ]
            for run in members
        ]
        if not all(curves):
            known = {name for run in members for line in run["steps"] for name in line}
            raise ConfigError(f"probe: no run of {by}={value} logs {metric!r}.{suggest(metric, known)}")
        mean = [
            (sum(x for x, _ in column) / len(column), sum(y for _, y in column) / len(column))
            for column in zip(*curves)
        ]
        lines[value] = mean
        versions = {json.dumps(run["session"].get("packages", {}), sort_keys=True) for run in members}
        ends = [y for _, y in list(zip(*curves))[-1]]
        table.append([value, len(members), mean[-1][0], mean[-1][1], min(ends), max(ends), len(versions)])
    best = max(table, key=lambda row: row[3])
    mixed = [row[0] for row in table if row[6] > 1]
    warned = f" Runs of {', '.join(mixed)} were made with different versions of packages." if mixed else ""
    place = "ends highest" if len(table) > 1 else "ends"
    least = min(table, key=lambda row: row[3])
    lowest = f", lowest for {by}={least[0]}: {least[3]:.4g} over {counted(least[1])}"
    lowest = lowest if len(table) > 1 else ""
    if any(row is not best and row[5] >= best[4] for row in table):
        warned = f" Their runs overlap, so that these runs do not tell them apart.{warned}"
    if len({row[2] for row in table}) > 1:
        warned = (
            f" They end at different places ({axis}: {', '.join(f'{row[2]:g}' for row in table)}).{warned}"
        )
    statement = f"{metric} {place} for {by}={best[0]}: {best[3]:.4g} over {counted(best[1])}{lowest}.{warned}"
    head = (by, "runs", f"last {axis}", metric, "lowest run", "highest run", "sets of versions")
    return ProbeResult(
        f"{metric} of {counted(len(runs))}", statement, head, table, Figure(lines, axis, metric)
    )


def counted(runs: int) -> str:
    """A number of runs in words."""
    return f"{runs} run{'' if runs == 1 else 's'}"
