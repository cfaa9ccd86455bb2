"""`vlrl report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlrl.logging.overlay import overlay_text
from vlrl.logging.report import render_report
from vlrl.logging.serve import ReportServer
from vlrl.plugins.registry import ConfigError
from vlrl.services.files import write_whole


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="The folder of a run; several runs are overlaid.", show_default=False)
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Where the page of several runs goes; one run's stands in its folder."
        ),
    ] = Path("overlay.html"),
    serve: Annotated[
        bool, typer.Option("--serve", help="Follow the run in the browser, on this machine alone.")
    ] = False,
    port: Annotated[int, typer.Option("--port", help="The port on 127.0.0.1; 0: a free one.")] = 0,
) -> None:
    """Write report.html of a run, finished or still running, and print its path; with several runs, one page
    with their curves over each other and what differs between their configs."""
    for folder in folders:
        if not (folder / "metrics.jsonl").is_file() and not (serve and (folder / "config.yaml").is_file()):
            raise ConfigError(
                f"report: {str(folder)!r} holds no metrics.jsonl; give the folder of a run, for instance "
                "runs/quickstart"
            )
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port: expected 0 to 65535, got {port}")
    if serve:
        _serve(folders, port)
    elif len(folders) == 1:
        typer.echo(render_report(folders[0]))
    else:
        write_whole(output, overlay_text(folders))
        typer.echo(output)


def _serve(folders: list[Path], port: int) -> None:
    """Serve until Ctrl-C."""
    try:
        server = ReportServer(folders, port)
    except OSError as error:
        raise ConfigError(f"--port: {port} cannot be used: {error.strerror}; give another one") from error
    typer.echo(f"{server.url}\nopen it in a browser on this machine; Ctrl-C ends it")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("")
    finally:
        server.server_close()
