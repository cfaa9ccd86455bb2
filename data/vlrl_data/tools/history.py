"""How a row's accuracy went over a run, from the rollouts that the run wrote."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import yaml

from vlrl.registry import ConfigError


def visits(folder: Path, slot: str = "") -> dict[str, list[float]]:
    """Row id -> mean reward (`slot`, or the total) at each step that the row was sampled in, in order, from `rollouts/*.parquet`.

    Raises ConfigError if there are no rollouts or no such slot. A run keeps all of them with `watch.rollouts_every: 1`.
    """
    import pyarrow.parquet as pq

    files = sorted([*folder.glob("rollouts/*.parquet"), *folder.glob("*.parquet")])
    if not files:
        raise ConfigError(f"{folder}: no rollouts/*.parquet; give the folder of a run that kept its rollouts (watch.rollouts_every: 1)")
    column = f"reward/{slot}" if slot else "reward"
    seen: dict[str, dict[int, list[float]]] = {}
    for file in files:
        known = pq.read_schema(file).names
        if column not in known:
            slots = ", ".join(name.removeprefix("reward/") for name in known if name.startswith("reward/"))
            raise ConfigError(f"slot: {file} has no reward {slot!r}. Known: {slots}.")
        for row in pq.read_table(file, columns=["id", "step", column]).to_pylist():
            if row[column] is not None:
                seen.setdefault(row["id"], {}).setdefault(int(row["step"]), []).append(float(row[column]))
    return {name: [sum(values) / len(values) for _, values in sorted(steps.items())] for name, steps in sorted(seen.items())}


def left_out(folder: Path) -> int:
    """How many steps before the last one that kept its rollouts kept none."""
    steps = {int(file.stem[5:]) for file in folder.glob("rollouts/step-*.parquet")}
    return max(steps, default=0) - len(steps)


def write_choice(ids: Iterable[str], out: Path) -> None:
    """A config that keeps these rows: `vlrl train CONFIG OUT`."""
    out.write_text(
        yaml.safe_dump({"select": {"chosen": {"name": "listed", "ids": list(ids)}}}, sort_keys=False, allow_unicode=True), encoding="utf-8"
    )
