"""How often a model gets each row right, from the rollouts it wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vlrl.registry import ConfigError


def from_rollouts(folder: Path, slot: str = "", threshold: float = 0.5) -> dict[str, dict[str, float]]:
    """Row id -> {pass_rate, tries, mean} from a run's `rollouts/*.parquet`. Right: the reward (`slot`, or the total) is at least `threshold`.

    Raises ConfigError if there are no rollouts or no such slot.
    """
    import pyarrow.parquet as pq

    files = sorted([*folder.glob("rollouts/*.parquet"), *folder.glob("*.parquet")])
    if not files:
        raise ConfigError(f"{folder}: no rollouts/*.parquet; give the folder of a run")
    column = f"reward/{slot}" if slot else "reward"
    sums: dict[str, list[float]] = {}
    for file in files:
        known = pq.read_schema(file).names
        if column not in known:
            slots = ", ".join(name.removeprefix("reward/") for name in known if name.startswith("reward/"))
            raise ConfigError(f"slot: {file} has no reward {slot!r}. Known: {slots}.")
        for row in pq.read_table(file, columns=["id", column]).to_pylist():
            if row[column] is not None:
                sums.setdefault(row["id"], []).append(float(row[column]))
    return {name: _summary(values, threshold) for name, values in sorted(sums.items())}


def _summary(values: list[float], threshold: float) -> dict[str, float]:
    right = sum(value >= threshold for value in values)
    return {"pass_rate": round(right / len(values), 6), "tries": len(values), "mean": round(sum(values) / len(values), 6)}


def merge(tables: Iterable[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Several measurements as one, weighted by their tries."""
    out: dict[str, dict[str, float]] = {}
    for table in tables:
        for name, new in table.items():
            old = out.get(name, {"pass_rate": 0.0, "tries": 0, "mean": 0.0})
            tries = old["tries"] + new["tries"]
            weighted = {key: round((old[key] * old["tries"] + new[key] * new["tries"]) / tries, 6) for key in ("pass_rate", "mean")}
            out[name] = weighted | {"tries": tries}
    return out


def load(path: Path) -> dict[str, dict[str, Any]]:
    """A table written by `vlrl data difficulty`. Raises ConfigError."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"difficulty: {path} cannot be read: {error}; make it with `vlrl data difficulty`") from None
    if not isinstance(table, dict) or not all(isinstance(value, dict) and "pass_rate" in value for value in table.values()):
        raise ConfigError(f"difficulty: {path} is not a table of row id to pass_rate; make it with `vlrl data difficulty`")
    return table
