"""`vlrl show`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from vlrl.cli.words import ConfigWords, load_words
from vlrl.config import at, folders, leaves
from vlrl.plugins.registry import ConfigError

if TYPE_CHECKING:
    from vlrl.config import Config


def show(
    configs: ConfigWords,
    phase: Annotated[str, typer.Option("--phase", help="Show what holds during one phase.")] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print {tree, origins} as JSON and nothing else.")
    ] = False,
) -> None:
    """Print the resolved config, with the file and line of every value, and the phases that do not use a
    value at the top."""
    config = load_words(configs)
    if phase and phase not in config.phases:
        raise ConfigError(f"--phase: no phase named {phase!r}; this config has {', '.join(config.phases)}")
    tree = config.phase(phase) if phase else config.tree
    origins = {**config.origins, **_of_phase(config.origins, phase)}
    if as_json:
        said = [str(kept) for kept in config.kept]
        typer.echo(json.dumps({"tree": tree, "origins": origins, "kept": said}, indent=2, ensure_ascii=False))
        return
    lines = list(annotated(tree, origins if phase else with_phases(config)))
    width = min(max((len(line) for line, _ in lines), default=0), 72)
    shipped = f"{folders()[-1]}/"
    for line, origin in lines:
        typer.echo(f"{line:<{width}}  # {origin.removeprefix(shipped)}" if origin else line)
    if any(origin.startswith(shipped) for _, origin in lines):
        typer.echo(f"# shipped files are in {shipped}")
    for kept in config.kept:
        if phase in ("", kept.phase):
            typer.echo(f"# {kept}")


def _of_phase(origins: Mapping[str, str], phase: str) -> dict[str, str]:
    head = f"phases.{phase}."
    return {
        path.removeprefix(head): origin for path, origin in origins.items() if phase and path.startswith(head)
    }


def with_phases(config: Config) -> dict[str, str]:
    """The origins, where a value at the top does not hold in some phases with the names of these phases."""
    top = {key: value for key, value in config.tree.items() if key != "phases"}
    trees = {name: config.phase(name) for name in config.tree.get("phases") or ()}
    origins = dict(config.origins)
    for path in leaves(top):
        others = [name for name, tree in trees.items() if at(tree, path) != at(top, path)]
        if others and (origin := origin_of(path, config.origins)):
            origins[path] = (
                f"{origin}; not in {'any phase' if len(others) == len(trees) else ', '.join(others)}"
            )
    return origins


def annotated(
    tree: Mapping[str, Any], origins: Mapping[str, str], where: str = "", depth: int = 0
) -> Iterator[tuple[str, str]]:
    """(line of YAML, origin) for every value; mappings have no origin of their own."""
    for key, value in tree.items():
        path = f"{where}.{key}".lstrip(".")
        if isinstance(value, Mapping) and value:
            yield f"{'  ' * depth}{_plain(key)}:", ""
            yield from annotated(value, origins, path, depth + 1)
        else:
            yield f"{'  ' * depth}{_plain(key)}: {_plain(value)}", origin_of(path, origins)


def origin_of(path: str, origins: Mapping[str, str]) -> str:
    """Where a value came from: its own origin, or that of the nearest value around it (an override may set a
    whole mapping)."""
    while path and path not in origins:
        path = path.rpartition(".")[0]
    return origins.get(path, "")


def _plain(value: Any) -> str:
    """A scalar or list as YAML on one line."""
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False)
        .removesuffix("\n...\n")
        .strip()
    )
