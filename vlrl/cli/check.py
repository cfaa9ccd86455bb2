"""`vlrl check`."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from vlrl.activity.check import PhaseCheck, whole_batches
from vlrl.activity.check import check as run_check
from vlrl.cli.words import ConfigWords, load_words
from vlrl.pages.kit import render
from vlrl.plugins.registry import ConfigError
from vlrl.services.files import write_whole

OPTIONS = ("--steps", "--scripted", "--json", "--page", "--help")


def check(
    configs: ConfigWords,
    steps: Annotated[int, typer.Option("--steps", help="Training steps of each phase.")] = 3,
    scripted: Annotated[
        bool,
        typer.Option(
            "--scripted", help="Small batches, answered by a script that is right about half of the time."
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print {phases: [{phase, findings, figures}]} as JSON and nothing else."),
    ] = False,
    page: Annotated[
        Path | None, typer.Option("--page", help="Write an HTML page of it, which needs no network.")
    ] = None,
) -> None:
    """Train a few steps and say for every slot of a config what it did; exit code 1 if a slot is dead or
    contradicts another one."""
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    if steps < 1:
        raise ConfigError(f"--steps: expected 1 or more, got {steps}")
    names = [word for word in configs if "=" not in word]
    values = [word for word in configs if "=" in word]
    config = load_words([*names, *(["base/scripted"] if scripted else []), *values], options=OPTIONS)
    if scripted and (more := whole_batches(config)):
        config = load_words([*names, "base/scripted", *more, *values], options=OPTIONS)

    with redirect_stdout(sys.stderr):  # output of libraries does not belong to the report
        results = run_check(config, steps)
    if as_json:
        phases = [
            {"phase": r.phase, "findings": [f._asdict() for f in r.findings], "figures": r.figures.numbers()}
            for r in results
        ]
        typer.echo(json.dumps({"phases": phases}, indent=2))
    else:
        typer.echo("\n".join(line for result in results for line in result.lines))
    if page:
        write_whole(page, _page(results, " ".join(names)))
    bad = sum(len(result.bad) for result in results)
    if bad:
        sys.stderr.write(f"vlrl: {bad} slot{'s' if bad > 1 else ''} dead or contradictory\n")
        raise typer.Exit(1)


def _page(results: list[PhaseCheck], title: str) -> str:
    bad = [finding for result in results for finding in result.bad]
    verdict = (
        f"{len(bad)} slot{'s' if len(bad) > 1 else ''} dead or contradictory." if bad else "Every slot acts."
    )
    sections: list[dict[str, Any]] = []
    for result in results:
        if result.findings:
            rows = [list(finding) for finding in result.findings]
            sections.append(
                {"heading": f"Findings in {result.phase}", "table": [["slot", "level", "what"], *rows]}
            )
        sections.append(
            {"heading": f"What every slot of {result.phase} did", "text": "\n".join(result.lines)}
        )
    return render("sections", title, "vlrl check", story=[verdict, *map(str, bad)], sections=sections)
