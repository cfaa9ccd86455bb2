"""The `vlrl` command. A mistake in a config or command ends in one line and exit code 2, a failure of the
world in one line and a code of its own."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from vlrl.config import find
from vlrl.plugins.registry import ConfigError
from vlrl.services.failures import RunFailure, exited
from vlrl.services.redaction import blank, log_record
from vlrl.services.third_party import quiet
from vlrl.version import __version__

app = typer.Typer(name="vlrl", no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

_COMMANDS = {  # command: where its function is
    "train": "vlrl.cli.train:train",
    "check": "vlrl.cli.check:check",
    "plan": "vlrl.cli.plan:plan",
    "compare": "vlrl.compare.cli:compare",
    "report": "vlrl.cli.report:report",
    "init": "vlrl.cli.init:init",
    "list": "vlrl.cli.list:list_plugins",
    "schema": "vlrl.cli.schema:schema",
    "show": "vlrl.cli.show:show",
    "new": "vlrl.cli.new:new",
    "export": "vlrl.cli.export:export",
    "export-task": "vlrl.cli.export_task:export_task",
    "serve": "vlrl.cli.serve:serve",
    "fetch": "vlrl.cli.fetch:fetch",
    "doctor": "vlrl.cli.doctor:doctor",
    "verify": "vlrl_rewards.cli:verify",
}
_TAKES_WORDS = (
    "train",
    "show",
    "check",
    "plan",
    "export-task",
)  # commands whose arguments are words of a config
_OTHER_WORDS = {
    "launch": "vlrl train CONFIG --processes N",
    "evaluate": "vlrl eval",
    "run": "vlrl train CONFIG",
}
COMPLETE = "_VLRL_COMPLETE"  # a shell sets it to ask for completions
_GROUPS = {
    "eval": "vlrl.eval.cli:app",
    "data": "vlrl_data.cli:app",
    "weights": "vlrl.cli.weights:app",
    "probe": "vlrl.probes.cli:app",
    "judge": "vlrl.cli.judge:app",
}


def _named(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"vlrl {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """The `vlrl` command."""


UsageError: Any = typer.BadParameter.__bases__[0]  # click's, from wherever this typer takes click


def _usage(error: Any, asked: str) -> str:
    """A mistake in a command's words, in one line with the fix."""
    said = " ".join(error.format_message().split()).rstrip(".")
    if type(error).__name__ == "MissingParameter" and asked in _TAKES_WORDS:
        return f"{asked}: no config is given; name one, for instance `vlrl {asked} quickstart`"
    word = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if "No such command" in said and word and not asked and _is_config(word):
        return f"{said}. To train it: vlrl train {word}"
    if "No such command" in said and word in _OTHER_WORDS and not asked:
        return f"No such command {word!r}. Use {_OTHER_WORDS[word]}"
    return (
        f"{said}{'' if said.endswith('?') else '.'} See `{error.ctx.command_path if error.ctx else 'vlrl'} "
        "--help`"
    )


def _is_config(word: str) -> bool:
    try:
        return bool(find(word))
    except ConfigError:
        return False


def _add(name: str) -> None:
    if name in _COMMANDS:
        settings = {"ignore_unknown_options": True} if name in _TAKES_WORDS else {}
        app.command(name, context_settings=settings)(_named(_COMMANDS[name]))
    elif name in _GROUPS:
        app.add_typer(_named(_GROUPS[name]), name=name)


def main() -> None:
    """Entry point. Only the requested command is imported, so that `vlrl list` imports no torch."""
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    known = asked in _COMMANDS or asked in _GROUPS
    asked = asked if known else ""
    for name in [asked] if known else [*_COMMANDS, *_GROUPS]:
        _add(name)
    if COMPLETE in os.environ:
        raise SystemExit(app(prog_name="vlrl"))
    logging.setLogRecordFactory(log_record)
    if asked != "train":  # which has --verbose
        quiet()
    try:
        code = app(standalone_mode=False, prog_name="vlrl")  # the name that shells complete
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            sys.stderr.write(f"vlrl: {blank(_usage(error, asked))}\n")
        raise SystemExit(2) from None
    except typer.Abort:
        raise SystemExit(130) from None
    except SystemExit as error:
        if not _is_foreign(error):
            raise
        sys.stderr.write(f"vlrl: {blank(str(exited(error, asked)))}\n")
        raise SystemExit(1) from None
    except (ConfigError, RunFailure) as error:
        if not getattr(error, "quiet", False):  # another rank prints it
            sys.stderr.write(f"vlrl: {blank(' '.join(str(error).split()))}\n")
        code = error.exit_code if isinstance(error, RunFailure) else 2
        if (
            int(os.environ.get("WORLD_SIZE", "1")) > 1
        ):  # the threads of a broken process group may keep the interpreter from ending
            sys.stderr.flush()
            sys.stdout.flush()
            os._exit(code)
        raise SystemExit(code) from None
    except Exception:  # of any kind: its traceback is printed without secrets
        sys.stderr.write(blank(traceback.format_exc()))
        raise SystemExit(1) from None
    raise SystemExit(code if isinstance(code, int) else 0)


def _is_foreign(error: SystemExit) -> bool:
    """Whether code outside this package called exit(): a plug-in, or a library that it uses. A reader that
    closed the pipe (`| head`) is no fault."""
    if isinstance(error.__context__, BrokenPipeError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return not Path(frames[-1].filename).resolve().is_relative_to(Path(__file__).resolve().parents[1])
