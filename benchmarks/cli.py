"""Command lines of benchmarks: `-h` and `--help` print a module's docstring and its options, and a mistake
ends in one line, with exit code 2, before anything is measured."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer

ROOT = Path(__file__).parents[1] / "configs"
HELP = ("-h", "--help")
USAGE: type[Exception] = typer.BadParameter.__bases__[0]  # an unknown option, a missing or a wrong argument


def refuse(text: str) -> NoReturn:
    """End with a line on stderr that begins with the module's name."""
    print(f"benchmarks.{Path(sys.argv[0]).stem}: {text}", file=sys.stderr)
    raise SystemExit(2)


def known(what: str, names: Iterable[str], choices: Collection[str]) -> None:
    """Refuse a name that is not among the choices."""
    for name in names:
        if name not in choices:
            refuse(f"no {what} named {name!r}; known: {', '.join(choices)}")


def numbers(setting: str, text: str) -> list[int]:
    """The whole numbers of a setting, as in 0,1,2; anything else is refused."""
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        refuse(f"{setting}={text}: expected whole numbers, as in {setting}=0,1,2")


def number(setting: str, text: str) -> int:
    """The whole number of a setting, from 0 on; anything else is refused."""
    if not (text.isascii() and text.isdigit()):
        refuse(f"{setting}={text}: expected a whole number, as in {setting}=80")
    return int(text)


def above_zero(setting: str, text: str) -> float:
    """The number of a setting, above 0; anything else is refused."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        refuse(f"{setting}={text}: expected a number above 0, as in {setting}=0.1")
    return value


def configs(folder: str) -> list[str]:
    """The names of the configs in a folder of configs/."""
    return sorted(file.stem for file in (ROOT / folder).glob("*.yaml"))


def run(main: Callable[..., Any], doc: str | None) -> None:
    """Run a function whose parameters are the command line, as `typer.run` does."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    text = "\b\n" + (doc or "").replace("\n\n", "\n\n\b\n")  # \b keeps the lines of a paragraph as they are
    app.command(help=text, context_settings={"help_option_names": list(HELP)})(main)
    try:
        code = app(standalone_mode=False)
    except USAGE as error:
        refuse(getattr(error, "format_message", error.__str__)())
    raise SystemExit(code if isinstance(code, int) else 0)


class Parser(argparse.ArgumentParser):
    """A parser whose help begins with a docstring, and whose mistakes are one line."""

    def __init__(self, doc: str | None) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        """Refuse what argparse does not read."""
        refuse(message)


def folder_and_words(
    doc: str | None, what: str, choices: Collection[str], settings: Sequence[str]
) -> tuple[Path, list[str], dict[str, str]]:
    """Read `FOLDER [name ...] [setting=value ...]`: the folder, the names, the values by setting."""
    words = sys.argv[1:]
    if set(HELP) & set(words):
        print((doc or "").strip())
        raise SystemExit(0)
    if dashed := [word for word in words if word.startswith("-")]:
        refuse(f"no option {dashed[0]!r}; -h shows what there is")
    if not words or "=" in words[0] or words[0] in choices:
        refuse(f"name the folder of the runs first, as in FOLDER {' '.join(words)}".rstrip())
    names = [word for word in words[1:] if "=" not in word]
    given = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    known(what, names, choices)
    known("setting", given, settings)
    return Path(words[0]).resolve(), names, given
