"""`vlrl compare`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from vlrl.compare.page import page
from vlrl.compare.plan import ComparisonPlan, preset_file
from vlrl.compare.run import run_plan
from vlrl.compare.table import markdown, note, short, summarise, verdict
from vlrl.config import load


def compare(
    presets: Annotated[
        list[str],
        typer.Argument(
            help=(
                "Presets of configs/methods (grpo dapo ...), or any config. The first is the one compared "
                "with."
            )
        ),
    ],
    task: Annotated[
        str,
        typer.Option(
            help=(
                "A lab task (digits, counting, grounding, jigsaw, video, arithmetic, chains, knights) or a "
                "task config."
            )
        ),
    ] = "counting",
    seeds: Annotated[int, typer.Option(help="Runs per preset.")] = 5,
    steps: Annotated[
        int,
        typer.Option(
            help="Steps per run; of a preset with several phases, per phase that does not keep its own."
        ),
    ] = 100,
    cold_start: Annotated[
        int,
        typer.Option(
            "--cold-start",
            help="Steps of the common cold start of each seed (0: none, from the pretrained model).",
        ),
    ] = 60,
    samples: Annotated[
        int, typer.Option("--k", help="Completions per held-out row for pass@1 and pass@k.")
    ] = 8,
    model: Annotated[
        str, typer.Option(help="A model config; the tiny one that fits the task if empty.")
    ] = "",
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Where runs and results go. What is there is not run again."),
    ] = Path("runs/compare"),
    jobs: Annotated[int, typer.Option(help="Processes side by side (0: one per core).")] = 0,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="An override for all runs, like prompts_per_step=8. May be given again."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers as JSON and nothing else.")
    ] = False,
) -> None:
    """Train presets on a lab task from the same cold start and compare them: `vlrl compare grpo dapo --task
    counting --seeds 5`."""
    plan = ComparisonPlan(
        tuple(presets), task, seeds, output.resolve(), steps, cold_start, samples, model, tuple(sets or ())
    )
    _report(plan, jobs or os.cpu_count() or 1, as_json)


def _report(plan: ComparisonPlan, jobs: int, as_json: bool) -> None:
    """Run the comparison; write and print its numbers."""
    load(plan.bases, plan.overrides)  # all names before torch is imported
    presets, remark = plan.presets, ""
    for preset in presets:
        preset_file(preset)
    if others := plan.with_other_rows():
        remark = f"; held out, {', '.join(others)} cannot be compared with {presets[0]}: other rows"
        typer.echo(f"compare{remark}. Give both the same: --set 'data.heldout.NAME={{...}}'", err=True)
    title = f"{plan.task}: {', '.join(presets)} ({plan.steps} steps, {plan.seeds} seeds{remark})"
    cells, starts = run_plan(plan, jobs, quiet=as_json)
    page(cells, title, plan.output / "compare.html", starts)
    table = markdown(cells, title, starts)
    (plan.output / "compare.md").write_text(table, encoding="utf-8")
    numbers = {
        preset: {name: list(v) if isinstance(v, tuple) else v for name, v in row.items()}
        for preset, row in summarise(cells).items()
    }
    (plan.output / "compare.json").write_text(json.dumps(numbers, indent=1), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(numbers, indent=1))
    else:
        typer.echo("\n".join([title, "", verdict(cells), "", *short(cells, starts), "", note(cells), ""]))
        typer.echo(f"table: {plan.output / 'compare.md'}\npage: {plan.output / 'compare.html'}")
