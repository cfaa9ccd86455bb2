"""Rewards per row from the rollout files of runs: pass rates, and how a row's mean reward changed over its
visits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from vlrl.plugins.registry import ConfigError


def pass_rates(folder: Path, slot: str = "", correct_at: float = 0.5) -> dict[str, dict[str, float]]:
    """Row id -> {pass_rate, tries, mean} from a run's `rollouts/*.parquet`.

    Args:
        folder: the run's folder.
        slot: the reward slot to read; empty: the total reward.
        correct_at: the reward from which on a rollout counts as correct.

    Raises:
        ConfigError: if there are no rollouts or no such slot.
    """
    rewards: dict[str, list[float]] = {}
    for rollout, reward in _rewards(folder, slot, ("id",)):
        rewards.setdefault(rollout["id"], []).append(reward)
    return {name: _summary(values, correct_at) for name, values in sorted(rewards.items())}


def mean_reward_by_visit(folder: Path, slot: str = "") -> dict[str, list[float]]:
    """Row id -> mean reward (`slot`, or the total) at each step that sampled the row, in order, from
    `rollouts/*.parquet`.

    A run keeps the rollouts of every step with `watch.rollouts_every: 1`. Raises ConfigError if there are no
    rollouts or no such slot.
    """
    visits: dict[str, dict[int, list[float]]] = {}
    for rollout, reward in _rewards(folder, slot, ("id", "step")):
        visits.setdefault(rollout["id"], {}).setdefault(int(rollout["step"]), []).append(reward)
    return {
        name: [sum(values) / len(values) for _, values in sorted(steps.items())]
        for name, steps in sorted(visits.items())
    }


def _rewards(folder: Path, slot: str, columns: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], float]]:
    """(columns of a rollout, its reward) of every scored rollout of a run. Raises ConfigError."""
    import pyarrow.parquet as pq

    files = sorted([*folder.glob("rollouts/*.parquet"), *folder.glob("*.parquet")])
    if not files:
        raise ConfigError(
            f"{folder}: no rollouts/*.parquet; give the folder of a run that kept its rollouts "
            "(watch.rollouts_every: 1)"
        )
    column = f"reward/{slot}" if slot else "reward"
    for file in files:
        known = pq.read_schema(file).names
        if column not in known:
            slots = ", ".join(name.removeprefix("reward/") for name in known if name.startswith("reward/"))
            raise ConfigError(f"slot: {file} has no reward {slot!r}. Known: {slots}.")
        for rollout in pq.read_table(file, columns=[*columns, column]).to_pylist():
            if rollout[column] is not None:
                yield rollout, float(rollout[column])


def _summary(rewards: list[float], correct_at: float) -> dict[str, float]:
    correct = sum(reward >= correct_at for reward in rewards)
    return {
        "pass_rate": round(correct / len(rewards), 6),
        "tries": len(rewards),
        "mean": round(sum(rewards) / len(rewards), 6),
    }


def merge_pass_rates(tables: Iterable[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Several tables of pass rates as one, weighted by their tries."""
    out: dict[str, dict[str, float]] = {}
    for table in tables:
        for name, new in table.items():
            old = out.get(name, {"pass_rate": 0.0, "tries": 0, "mean": 0.0})
            tries = old["tries"] + new["tries"]
            weighted = {
                key: round((old[key] * old["tries"] + new[key] * new["tries"]) / tries, 6)
                for key in ("pass_rate", "mean")
            }
            out[name] = weighted | {"tries": tries}
    return out


def load_pass_rates(path: Path) -> dict[str, dict[str, Any]]:
    """A table written by `vlrl data difficulty`. Raises ConfigError."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"difficulty: {path} cannot be read: {error}; write it with `vlrl data difficulty`"
        ) from None
    if not isinstance(table, dict) or not all(
        isinstance(value, dict) and "pass_rate" in value for value in table.values()
    ):
        raise ConfigError(
            f"difficulty: {path} is not a table of row id to pass_rate; write it with `vlrl data difficulty`"
        )
    return table


def steps_without_rollouts(folder: Path) -> int:
    """The number of steps, up to the last one with rollouts, that have none."""
    steps = {int(file.stem[5:]) for file in folder.glob("rollouts/step-*.parquet")}
    return max(steps, default=0) - len(steps)


def write_selection(ids: Iterable[str], out: Path) -> None:
    """Write a config that keeps only these rows: `vlrl train CONFIG OUT`."""
    config = {"select": {"chosen": {"name": "listed", "ids": list(ids)}}}
    out.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
