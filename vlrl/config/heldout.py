"""Held-out rows that derive from a training source.

`heldout: 200` in an entry of `data.train` stands for an entry of `data.heldout` under the same name: the same
source with `split: heldout` and `count: 200`. A map changes other fields too: `heldout: {count: 50, depth:
3}`, or, of a file, `heldout: {path: val.jsonl}`; `heldout: null` removes the entry. Where a training entry
without a `name` changes the source of another file, `heldout: {}` has the held-out rows change likewise. What
`data.heldout` states itself wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlrl.plugins.registry import ConfigError


def derive_heldout(tree: dict[str, Any], origins: dict[str, str]) -> None:
    """Move `heldout` of the training sources of one file, or of one override, into `data.heldout`, in place.
    `origins`: dotted path -> place. Raises ConfigError."""
    phases = tree.get("phases")
    parts = {"": tree}
    if isinstance(phases, Mapping):
        parts |= {f"phases.{name}.": own for name, own in phases.items() if isinstance(own, dict)}
    for where, part in parts.items():
        data = part.get("data")
        if isinstance(data, dict) and isinstance(data.get("train"), dict):
            _derive(data, f"{where}data", origins)


def _derive(data: dict[str, Any], where: str, origins: dict[str, str]) -> None:
    for slot, spec in data["train"].items():
        if not isinstance(spec, dict) or "heldout" not in spec:
            continue
        spec = data["train"][slot] = dict(spec)
        stated = spec.pop("heldout")
        place = origins.get(f"{where}.train.{slot}.heldout", "")
        if isinstance(stated, bool) or not isinstance(stated, (int, Mapping, type(None))):
            raise ConfigError(
                f"{where}.train.{slot}.heldout: expected a number of rows, or a map of what differs, like "
                f"{{count: 200}}, got {stated!r} ({place})"
            )
        others = data.setdefault("heldout", {})
        if not isinstance(others, dict):
            continue
        own = others.get(slot, {})
        if stated is None or not isinstance(own, dict):
            others.setdefault(slot, None)
            continue
        changes = {"count": stated} if isinstance(stated, int) else dict(stated)
        origins.setdefault(f"{where}.heldout.{slot}", place)
        same = {key: value for key, value in spec.items() if key != "weight"}  # a share of what is trained on
        elsewhere = "name" not in spec or "path" in changes
        others[slot] = {**same, **({} if elsewhere else {"split": "heldout"}), **changes, **own}
