"""Checks of a config without building it: the forms of slots and of the keys that belong to no plug-in; then,
of what a user states on the command line or in a file of their own, types of settings and fields of plug-ins
in every phase.

The fields of a user's plug-ins, and the types of plug-in fields, are checked when the phase is built.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vlrl.config.config import MAP_SLOTS, OTHER_KEYS, SLOTS, Config
from vlrl.config.merging import at, first_origin, leaves
from vlrl.config.settings import Settings, check_value, nested_fields
from vlrl.config.trl_config import TRL_NAMES, trl_renames
from vlrl.plugins.kinds import stage_named
from vlrl.plugins.registry import ConfigError, find, suggest

MAX_SEED = 2**32 - 1  # numpy's seeds
MAX_THREADS = 4096
_NAMED = "expected named plug-ins, like `{slot}: {{my_name: {{name: ...}}}}`"


def check_keys(config: Config) -> None:
    """Refuse keys that no config has, and keys in a phase that are the same in all. Raises ConfigError."""
    known = {*SLOTS, *OTHER_KEYS, *Settings.__dataclass_fields__}
    for key in config.tree:
        if key not in known:
            raise ConfigError(f"{key}: {_unknown(key, known, config)}")
    phases = config.tree.get("phases") or {}
    for name, override in phases.items():
        for key in override or {}:
            if key == "keeps":
                _check_keeps(name, override[key], known)
            elif key not in known - {
                "phases",
                "seed",
                "threads",
                "output",
                "plugins",
                "policy",
                "engine",
                "about",
            }:
                if key in known:
                    reason = "this key is the same in all phases; set it at the top of the config"
                else:
                    reason = _unknown(key, known, config, f"phases.{name}.")
                raise ConfigError(f"phases.{name}.{key}: {reason}")


def _check_keeps(phase: str, keeps: Any, known: Iterable[str]) -> None:
    if keeps == "all":
        return
    if not isinstance(keeps, list):
        raise ConfigError(
            f"phases.{phase}.keeps: expected a list of keys, like [steps, optimizer], or all, got {keeps!r}"
        )
    for key in keeps:
        if not isinstance(key, str) or key not in known:
            raise ConfigError(f"phases.{phase}.keeps: unknown key {key!r}.{suggest(str(key), known)}")


def _unknown(key: str, known: Iterable[str], config: Config, where: str = "") -> str:
    origin = first_origin(where + key, config.origins)
    if not where and key in TRL_NAMES:
        return f"unknown key ({origin}); {trl_renames(name for name in config.tree if name not in known)}"
    top = {
        name: value
        for name, value in config.tree.items()
        if name not in ("phases", "data", "rewards", "about")
    }
    deeper = [*nested_fields(), *(path for path in leaves(top) if "." in path)]
    by_name = {path.rpartition(".")[2]: path for path in reversed(deeper)}
    if found := by_name.get(key):
        return f"unknown key ({origin}). Did you mean {where + found!r}?"
    if not difflib.get_close_matches(key, known, n=1, cutoff=0.6) and (
        near := difflib.get_close_matches(key, by_name, n=1, cutoff=0.75)
    ):
        return f"unknown key ({origin}). Did you mean {where + by_name[near[0]]!r}?"
    return f"unknown key ({origin}).{suggest(key, known)}"


def check_tree(config: Config) -> None:
    """Refuse values whose form cannot be meant: a list where a map is expected, a number for a folder. Raises
    ConfigError."""
    for where, tree in {
        "": config.tree,
        **{f"phases.{name}.": own or {} for name, own in (config.tree.get("phases") or {}).items()},
    }.items():
        for key, value in tree.items():
            problem = "" if value is None else _form(key, value)
            if problem:
                inner, _, text = problem.partition(": ")
                path = f"{where}{inner}"
                raise ConfigError(
                    f"{path}: {text}, got {_short(at(config.tree, path))} "
                    f"({first_origin(path, config.origins)})"
                )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


def _form(key: str, value: Any) -> str:
    """ "path: what is expected" for a value of the wrong form; "" for all others."""
    if key in _TOP:
        fits, expected = _TOP[key]
        return "" if fits(value) else f"{key}: expected {expected}"
    if key == "data":
        if not isinstance(value, Mapping) or set(value) - {"train", "heldout", "*"}:
            return "data: expected the maps `train` and `heldout`"
        return next(
            (
                found
                for split, members in value.items()
                if (found := _members(f"data.{split}", members, "source"))
            ),
            "",
        )
    if key in MAP_SLOTS:
        return _members(key, value, SLOTS[key])
    return _plugin(key, value, SLOTS[key]) if key in SLOTS else ""


def _members(slot: str, members: Any, kind: str) -> str:
    if members is None:
        return ""
    if not isinstance(members, Mapping):
        return f"{slot}: {_NAMED.format(slot=slot)}"
    return next(
        (found for name, spec in members.items() if (found := _plugin(f"{slot}.{name}", spec, kind))), ""
    )


def _plugin(path: str, spec: Any, kind: str) -> str:
    name = spec.get("name", "x") if isinstance(spec, Mapping) else spec
    if name is None or dataclasses.is_dataclass(name) or (isinstance(name, str) and name.strip()):
        return ""
    if isinstance(spec, Mapping):
        return f"{path}.name: expected a name (`vlrl list {kind}`)"
    return f"{path}: expected a plug-in, like `{path}: {{name: ...}}` (`vlrl list {kind}`)"


def _count(low: int, high: int) -> tuple[Callable[[Any], bool], str]:
    return lambda value: type(value) is int and low <= value <= high, f"a whole number from {low} to {high}"


def _is_outcome(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, Mapping) and all(isinstance(slot, str) for slot in value.values())
    )


_TOP: dict[str, tuple[Callable[[Any], bool], str]] = {
    "seed": _count(0, MAX_SEED),
    "threads": _count(1, MAX_THREADS),
    "output": (
        lambda value: isinstance(value, str) and bool(value.strip()) and "\x00" not in value,
        "a folder, like runs/mine",
    ),
    "about": (lambda value: isinstance(value, Mapping), "a map, like `about: {paper: ...}`"),
    "eval": (
        lambda value: isinstance(value, Mapping),
        "a map of options, like `eval: {suites: [mathvista]}`",
    ),
    "outcome": (_is_outcome, "the name of a reward, or a map from tasks to such names"),
    "plugins": (lambda value: isinstance(value, list), "a list of Python files, like [my_reward.py]"),
}


def check_stated(config: Config, stated: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Refuse stated values that cannot hold. Raises ConfigError with the value, its place and the fix."""
    for key, value in stated.items():
        if key in Settings.__dataclass_fields__ and value is not None:
            try:
                check_value(key, _plain(value))
            except ConfigError as error:
                path = str(error).partition(":")[0]
                mine = [leaf for leaf in leaves({key: value}) if leaf == path or leaf.startswith(f"{path}.")]
                origin = next((origins[leaf] for leaf in mine if leaf in origins), "") or _first(
                    key, value, origins
                )
                raise ConfigError(f"{error} ({origin})") from None
        elif key in SLOTS or key == "data":
            _check_slot(config, key, value, origins)


def _plain(value: Any) -> Any:
    return (
        {key: inner for key, inner in value.items() if inner is not None}
        if isinstance(value, Mapping)
        else value
    )


def _first(key: str, value: Any, origins: Mapping[str, str]) -> str:
    return next((origins[path] for path in leaves({key: value}) if path in origins), "config")


def _check_slot(config: Config, slot: str, stated: Any, origins: Mapping[str, str]) -> None:
    """Every plug-in that the user states a field of has this field, in every phase where the value holds."""
    for path, kind, fields in _plugins(slot, stated) if isinstance(stated, Mapping) else ():
        specs = {phase: at(config.phase(phase), path) for phase in config.phases}
        for field in fields:
            having = {
                phase: spec for phase, spec in specs.items() if isinstance(spec, Mapping) and field in spec
            }
            problems = {
                phase: problem
                for phase, spec in having.items()
                if (problem := _problem(config, spec, path, kind, field))
            }
            fine = [phase for phase in having if phase not in problems]
            if problems:
                phase, problem = next(iter(problems.items()))
                origin = _first(f"{path}.{field}", at({slot: stated}, f"{path}.{field}"), origins)
                words = " ".join(
                    f"phases.{name}.{path}.{field}={at({slot: stated}, f'{path}.{field}')}" for name in fine
                )
                raise ConfigError(
                    f"{problem} (phase {phase!r}; {origin}). Name the phases where it holds: {words}"
                    if fine
                    else f"{problem} ({origin})"
                )


def _plugins(slot: str, stated: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    """(dotted path, kind, stated fields) of the plug-ins that `stated` sets fields of."""
    if slot == "data":
        groups: Any = {f"data.{split}": ("source", members) for split, members in stated.items()}
    elif slot in MAP_SLOTS:
        groups = {slot: (SLOTS[slot], stated)}
    else:
        return [(slot, SLOTS[slot], list(stated))]
    found = []
    for where, (kind, members) in groups.items():
        for name, spec in members.items() if isinstance(members, Mapping) else ():
            if isinstance(spec, Mapping):
                found.append((f"{where}.{name}", kind, list(spec)))
    return found


def _problem(config: Config, spec: Mapping[str, Any], path: str, kind: str, field: str) -> str:
    if "name" not in spec:
        near = (
            [
                name
                for name in (at(config.tree, path.rpartition(".")[0]) or {})
                if name != path.rpartition(".")[2]
            ]
            if "." in path
            else []
        )
        return (
            f"{path}.{field}: there is no plug-in at {path}; give its `name` "
            f"too.{suggest(path.rpartition('.')[2], near) if near else ''}"
        )
    cls: Any = find(stage_named(kind), str(spec["name"]))  # None: a user's, whose file is not imported yet
    fields = [item.name for item in dataclasses.fields(cls) if item.init] if cls is not None else []
    if field in ("name", "*") or cls is None or field in fields:
        return ""
    return f"{path}.{field}: unknown field of {spec['name']!r}.{suggest(field, fields)}"
