"""`compare.html`: the result of a comparison, its table, and the curves of all presets with their seeds."""

from __future__ import annotations

import secrets
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vlrl.compare.table import Cells, Runs, differences, grid, note, verdict
from vlrl.logging.charts import seeds_chart
from vlrl.services.files import write_whole

KIT = Path(__file__).parents[1] / "logging" / "templates"  # style and script of all pages
CURVES = (
    ("curve", "Reward in training", "mean reward"),
    ("entropy_curve", "Entropy of the tokens trained on", "nats per token"),
)


def page(cells: Cells, title: str, path: Path, starts: Runs = ()) -> None:
    """Write the page: one file that needs no network."""
    environment = Environment(
        loader=FileSystemLoader(KIT),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    tables = [grid(cells, starts), *([differences(cells)] if len(cells) > 1 else [])]
    charts = []
    for key, heading, up in CURVES:
        curves = {preset: [run[key] for run in runs] for preset, runs in cells.items()}
        charts.append((heading, seeds_chart(curves, "step", up)))
    text = environment.get_template("compare.html.j2").render(
        title=title,
        presets=list(cells),
        seeds=max(len(runs) for runs in cells.values()),
        verdict=verdict(cells),
        tables=tables,
        charts=charts,
        note=note(cells),
        nonce=secrets.token_urlsafe(16),
        style=(KIT / "report.css").read_text(encoding="utf-8"),
        script=(KIT / "report.js").read_text(encoding="utf-8"),
    )
    write_whole(path, text)
