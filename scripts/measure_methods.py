"""Measures methods beside GRPO, in one interleaved run: `python scripts/measure_methods.py [--from FOLDER]
grpo METHOD ...`.

Trains every method with `vlrl compare` on lab_arithmetic from the same cold starts, seed by seed, and writes
the mean reward of each step into docs/method_curves.csv and CPU-seconds a step into docs/method_costs.csv.
Rows of other methods stay. `--from` reads a comparison that is there.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
OPTIONS = {
    "--task": "experiments/lab_arithmetic", "--seeds": "2", "--steps": "12", "--cold-start": "100",
    "--k": "2", "--jobs": "1", "--set": "max_refill_rounds=2",
}  # fmt: skip


def collect(folder: Path) -> tuple[list[list[str]], list[list[str]]]:
    """(rows of the curves, rows of the costs) of the runs of a comparison that are finished."""
    curves: list[list[str]] = []
    spent: dict[str, list[float]] = {}
    for path in sorted(folder.glob("*/seed-*/cell.json")):
        cell = json.loads(path.read_text(encoding="utf-8"))
        if "preset" not in cell:  # of the cold start
            continue
        spent.setdefault(cell["preset"], []).append(cell["cpu_seconds"] / len(cell["curve"]))
        told = enumerate(cell["curve"], start=1)
        curves += [[cell["preset"], str(cell["seed"]), str(step), f"{value:.4g}"] for step, value in told]
    costs = [[name, f"{sum(each) / len(each):.4g}", str(len(each))] for name, each in spent.items()]
    return curves, costs


def merge(path: Path, head: Sequence[str], new: Sequence[Sequence[str]]) -> None:
    """Write rows into a CSV file; rows of other methods stay."""
    names, old = {row[0] for row in new}, []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            old = [row for row in list(csv.reader(file))[1:] if row[0] not in names]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *sorted([*old, *new], key=lambda row: row[0])])


def main() -> None:
    """Run the comparison and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", nargs="*")
    parser.add_argument("--from", dest="folder", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder or Path("runs/measure_methods")
    if not arguments.folder:
        command = [sys.executable, "-m", "vlrl", "compare", *arguments.method, "-o", str(folder)]
        command += [word for option in OPTIONS.items() for word in option]
        subprocess.run(command, check=True)
    curves, costs = collect(folder)
    merge(ROOT / "docs" / "method_curves.csv", ("preset", "seed", "step", "reward"), curves)
    merge(ROOT / "docs" / "method_costs.csv", ("preset", "cpu_seconds_a_step", "seeds"), costs)


if __name__ == "__main__":
    main()
