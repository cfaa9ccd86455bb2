"""The words of a command line: configs and overrides, and mistakes in telling them apart."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated

import typer

from vlrl.config import SLOTS, Config, folders, load
from vlrl.config.settings import Settings, nested_fields
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import STAGES


def complete_config(incomplete: str) -> list[str]:
    """Names of shipped configs that begin like this, for a shell."""
    files = [path.relative_to(folder) for folder in folders() for path in folder.rglob("*.yaml")]
    names = {path.with_suffix("").as_posix() for path in files if path.parts[0] != "accelerate"}
    return sorted(name for name in names if name.startswith(incomplete))


ConfigWords = Annotated[
    list[str],
    typer.Argument(
        help="Configs (files or names, merged left to right) and overrides like group_size=4.",
        autocompletion=complete_config,
    ),
]


def complete_kind(incomplete: str) -> list[str]:
    """Kinds of plug-ins and config slots that begin like this, for a shell."""
    return sorted(name for name in {*STAGES, *SLOTS} if name.startswith(incomplete))


def load_words(words: Sequence[str], overrides: Sequence[str] = (), options: Sequence[str] = ()) -> Config:
    """The config of a command line's words: those with `=` are overrides. Raises ConfigError."""
    check_options(words, options)
    return load(
        [word for word in words if "=" not in word], [*(word for word in words if "=" in word), *overrides]
    )


def check_options(words: Sequence[str], options: Sequence[str] = ()) -> None:
    """Refuse words that look like options: `--steps 20` is written `steps=20`. `options` are those that the
    command has."""
    for place, word in enumerate(words):
        if not word.startswith("-"):
            continue
        key, equals, value = word.lstrip("-").partition("=")
        key = key.replace("-", "_")
        follows = words[place + 1] if place + 1 < len(words) and "=" not in words[place + 1] else "..."
        settings = [*Settings.__dataclass_fields__, "seed", "threads", "output", *SLOTS]
        by_name = {path.rpartition(".")[2]: path for path in nested_fields()} | {
            name: name for name in settings
        }
        if close := difflib.get_close_matches(key.rpartition(".")[2], list(by_name), n=1, cutoff=0.8):
            path = key if "." in key else by_name[close[0]]
            raise ConfigError(
                f"no option {word.partition('=')[0]!r}; settings are written without dashes: "
                f"{path}={value if equals else follows}"
            )
        near = difflib.get_close_matches(word, list(options), n=1, cutoff=0.6)
        raise ConfigError(
            f"no option {word!r}.{f' Did you mean {near[0]!r}?' if near else ''} See --help; settings are "
            "written like steps=20"
        )
