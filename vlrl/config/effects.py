"""Stated values that change nothing: an empty map merged into a map, a removal of what is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vlrl.config.config import OTHER_KEYS, SLOTS
from vlrl.config.merging import ABSENT, Tree, at
from vlrl.config.settings import Settings
from vlrl.plugins.registry import ConfigError, suggest

TOP = {"data.train", "data.heldout", *SLOTS, *OTHER_KEYS, *Settings.__dataclass_fields__}
_PHASE = re.compile(r"phases\.[^.]+")
_DERIVED = re.compile(
    r"data\.train\.[^.]+\.heldout|phases\.[^.]+\.data\.train\.[^.]+\.heldout"
)  # {} is all defaults


def check_override(path: str, value: Any, tree: Tree) -> None:
    """Refuse an override that changes nothing: `rewards={}`, `loss_terms.kll=null` where there is no kll.
    Raises ConfigError.

    `environment=null` is fine where there is none: the key is a slot's or a setting's.
    """
    for place, empty in _empty(path, value):
        present = _present(tree, place)
        if isinstance(empty, Mapping):
            if present or not _PHASE.fullmatch(place):  # a new phase may have nothing of its own
                _refuse_empty_map(place, present)
        elif not present and re.sub(r"^phases\.[^.]+\.", "", place) not in TOP:
            parent, _, key = place.rpartition(".")
            around = {
                name for found in _present(tree, parent) if isinstance(found, Mapping) for name in found
            }
            near = suggest(key, around or TOP) if around or not parent else ""
            raise ConfigError(f"{place}=null: there is no {place!r} to remove.{near}")


def check_file(own: Mapping[str, Any], below: Tree, place: str) -> None:
    """Refuse an empty map in a user's file over a map that it inherits. Raises ConfigError with the file."""
    for path, empty in (found for key in own for found in _empty(key, own[key])):
        if isinstance(empty, Mapping) and any(_present(below, path)):
            try:
                _refuse_empty_map(path, _present(below, path))
            except ConfigError as error:
                raise ConfigError(f"{place}: {error}") from None


def _empty(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(dotted path, null or empty map) of everything in `value` that holds nothing."""
    if value is None or (isinstance(value, Mapping) and not value):
        if path.rpartition(".")[2] != "*" and not _DERIVED.fullmatch(path):
            yield path, value
    elif isinstance(value, Mapping) and not {"*", "name"} & value.keys():
        for key, inner in value.items():
            yield from _empty(f"{path}.{key}".lstrip("."), inner)


def _present(tree: Tree, path: str) -> list[Any]:
    """The values at a path: that of all phases and those of phases; for a path inside a phase, its own or
    the one that it inherits."""
    keys = path.split(".", 2)
    if keys[0] == "phases":
        places = [path, *keys[2:]]
    else:
        places = [path, *(f"phases.{name}.{path}" for name in tree.get("phases") or ())]
    return [value for place in places if (value := at(tree, place)) is not ABSENT]


def _refuse_empty_map(path: str, present: Sequence[Any]) -> None:
    """Raise ConfigError."""
    keys = [key for value in present if isinstance(value, Mapping) for key in value if key != "*"]
    if not keys:
        raise ConfigError(f"{path}: {{}} sets nothing; give its fields, or leave it out")
    if "name" in keys:
        fix = f"{path}=null removes it"
    else:
        fix = f"{path}.{keys[0]}=null removes one, {path}.*=null all"
    raise ConfigError(f"{path}: {{}} changes nothing, since maps merge; {fix}")
