"""Merging of config trees, and the values at their dotted paths.

Maps merge, scalars and lists replace, null removes a key, and a mapping whose `name` changes replaces the old
one whole (the fields of one plug-in mean nothing to another). A null inside a phase is kept: it removes the
key for that phase; `"*": null` in a map removes all that it inherits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Tree = dict[str, Any]
Origins = dict[str, str]  # dotted path -> "file:line", or "command line"

ABSENT = object()


def merge(
    base: Tree,
    over: Mapping[str, Any],
    where: str,
    origins: Origins,
    over_origins: Origins,
    keep: bool = False,
) -> Tree:
    """`base` with `over` merged into it. `keep` leaves nulls in place: a file's removals must still act on
    what
    it is merged into later. Adds the origins of `over` to `origins`."""
    if "name" in over and base.get("name", over["name"]) != over["name"]:
        base = {}
    if "*" in over and over["*"] is None and not where.startswith("phases."):
        base = {}
    result = dict(base)
    for key, value in over.items():
        path = f"{where}.{key}".lstrip(".")
        if value is None and not re.match(r"phases\.[^.]+\.", path):
            result.pop(key, None)
            if keep:
                result[key] = None
        elif isinstance(value, Mapping):
            below = result.get(key)
            if isinstance(below, str) and "name" not in value:
                below = {"name": below}  # the short form of a plug-in
            if not isinstance(below, dict):
                below = (
                    {"*": None} if keep and key in result else {}
                )  # removed before, so nothing of what is below comes back
            result[key] = merge(below, value, path, origins, over_origins, keep)
        elif path == "plugins":
            result[key] = list(dict.fromkeys([*(result.get(key) or []), *value]))
        else:
            result[key] = value
        if path in over_origins:
            origins[path] = over_origins[path]
    return result


def without(own: Mapping[str, Any], stated: Mapping[str, Any], below: Mapping[str, Any]) -> Tree:
    """A phase's own values without those that `stated` sets, so that the value at the top holds. `below` is
    what the phase's values are merged into.

    Where the phase removes what `stated` adds to, or has another plug-in there, the stated values are put
    among the phase's own.
    """
    if "*" in stated:
        own = {}
    result = dict(own)
    for key, value in stated.items():
        mine, under = result.get(key, ABSENT), below.get(key)
        if mine is ABSENT:
            if "*" in own and key != "*":
                result[key] = value
        elif not isinstance(value, Mapping):
            del result[key]
        elif mine is None:
            result[key] = {"*": None, **value}
        elif not isinstance(mine, Mapping):
            result[key] = {"name": mine, **value}
        else:
            under = under if isinstance(under, Mapping) else {}
            name = mine.get("name", None if "*" in mine else under.get("name"))
            if "name" in value and name not in (None, value["name"]):
                del result[key]
            elif "name" in mine and name != under.get("name"):
                result[key] = merge(dict(mine), value, "phases._._", {}, {})
            elif rest := without(mine, value, under):
                result[key] = rest
            else:
                del result[key]
    return result


def leaves(tree: Any, where: str = "") -> list[str]:
    """Dotted paths of the scalars, lists and empty maps of a tree."""
    if not isinstance(tree, Mapping) or not tree:
        return [where] if where else []
    return [path for key, value in tree.items() for path in leaves(value, f"{where}.{key}".lstrip("."))]


def at(tree: Any, path: str) -> Any:
    """The value at a dotted path; a marker that equals nothing else where there is none."""
    for key in filter(None, path.split(".")):
        if not isinstance(tree, Mapping) or key not in tree:
            return ABSENT
        tree = tree[key]
    return tree


def has(tree: Any, path: str) -> bool:
    """Whether there is a value at a dotted path."""
    return at(tree, path) is not ABSENT


def first_origin(path: str, origins: Mapping[str, str]) -> str:
    """Where the value at a path came from, or the first value below it, or the nearest around it; "config" if
    that is not known."""
    if found := origins.get(path) or next(
        (origin for leaf, origin in origins.items() if leaf.startswith(f"{path}.")), ""
    ):
        return found
    return first_origin(path.rpartition(".")[0], origins) if "." in path else "config"
