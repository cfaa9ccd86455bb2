"""`compare.html`: the result of a comparison, its table, and the curves of all presets with their seeds."""

from __future__ import annotations

from pathlib import Path

from vlrl.compare.table import Cells, Runs, differences, grid, note, verdict
from vlrl.pages.chart import seeds_chart
from vlrl.pages.kit import render
from vlrl.services.files import write_whole

CURVES = (
    ("curve", "Reward in training", "mean reward"),
    ("entropy_curve", "Entropy of the tokens trained on", "nats per token"),
)


def page(cells: Cells, title: str, path: Path, starts: Runs = ()) -> None:
    """Write the page: one file that needs no network."""
    charts = []
    for key, heading, up in CURVES:
        curves = {preset: [run[key] for run in runs] for preset, runs in cells.items()}
        charts.append(seeds_chart(heading, curves, "step", up))
    seeds = max(len(runs) for runs in cells.values())
    reading = (
        f"Lines are means over {seeds} seeds; bands reach from the lowest to the highest seed."
        if seeds > 1
        else "One seed: lines are smoothed, and nothing tells how much is luck."
    )
    text = render(
        "compare",
        title,
        "vlrl compare",
        verdict=verdict(cells),
        tables=[grid(cells, starts), *([differences(cells)] if len(cells) > 1 else [])],
        charts=charts,
        reading=reading,
        note=note(cells),
        changed=[],
    )
    write_whole(path, text)
