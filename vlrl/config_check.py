"""Checks of what a user states on the command line or in a file of their own: types of settings, fields of plug-ins in every phase.

Shipped plug-ins are known from the index of their source files, so that nothing is imported. The fields of a user's plug-ins, and the types of
plug-in fields, are checked when the phase is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlrl.config import MAP_SLOTS, SLOTS, Config, at, leaves
from vlrl.plugin_index import PluginEntry, entries
from vlrl.registry import ConfigError, suggest
from vlrl.settings import Settings, check_value


def check_stated(config: Config, stated: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Refuse stated values that cannot hold. Raises ConfigError with the value, its place and the fix."""
    for key, value in stated.items():
        if key in Settings.__dataclass_fields__ and value is not None:
            try:
                check_value(key, _plain(value))
            except ConfigError as error:
                path = str(error).partition(":")[0]
                raise ConfigError(f"{error} ({origins.get(path) or _first(key, value, origins)})") from None
        elif key in SLOTS or key == "data":
            _check_slot(config, key, value, origins)


def _plain(value: Any) -> Any:
    return {key: inner for key, inner in value.items() if inner is not None} if isinstance(value, Mapping) else value


def _first(key: str, value: Any, origins: Mapping[str, str]) -> str:
    return next((origins[path] for path in leaves({key: value}) if path in origins), "config")


def _check_slot(config: Config, slot: str, stated: Any, origins: Mapping[str, str]) -> None:
    """Every plug-in that the user states a field of has this field, in every phase where the value holds."""
    for path, kind, fields in _plugins(slot, stated) if isinstance(stated, Mapping) else ():
        specs = {phase: at(config.phase(phase), path) for phase in config.phases}
        for field in fields:
            having = {phase: spec for phase, spec in specs.items() if isinstance(spec, Mapping) and field in spec}
            problems = {phase: problem for phase, spec in having.items() if (problem := _problem(config, spec, path, kind, field))}
            fine = [phase for phase in having if phase not in problems]
            if problems:
                phase, problem = next(iter(problems.items()))
                origin = _first(f"{path}.{field}", at({slot: stated}, f"{path}.{field}"), origins)
                words = " ".join(f"phases.{name}.{path}.{field}={at({slot: stated}, f'{path}.{field}')}" for name in fine)
                raise ConfigError(
                    f"{problem} (phase {phase!r}; {origin}). Name the phases where it holds: {words}" if fine else f"{problem} ({origin})"
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
        near = [name for name in (at(config.tree, path.rpartition(".")[0]) or {}) if name != path.rpartition(".")[2]] if "." in path else []
        return f"{path}.{field}: there is no plug-in at {path}; give its `name` too.{suggest(path.rpartition('.')[2], near) if near else ''}"
    entry = _entry(kind, spec["name"])
    if field in ("name", "*") or entry is None or any(item.name == field for item in entry.fields):
        return ""
    return f"{path}.{field}: unknown field of {spec['name']!r}.{suggest(field, [item.name for item in entry.fields])}"


def _entry(kind: str, name: Any) -> PluginEntry | None:
    """The shipped plug-in, None for one of the user's own."""
    from vlrl.stages import STAGES

    home = STAGES[kind].home if kind in STAGES else "vlrl.policy.families"
    return entries(home).get((kind, str(name)))
