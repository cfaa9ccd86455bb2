"""Which value holds in a phase, where several files and overrides set it.

Among shipped configs, a phase's value wins over the top's. What a user states wins over both:

- `steps=50` on the command line, and `steps: 50` at the top of a user's file, hold in every phase that came
  before.
- `phases.rl.steps=50` holds in that phase alone, and wins over `steps=50` in any order.
- A phase with `keeps: [steps, optimizer]` keeps its own values of these keys, one with `keeps: all` all of
  its own values; only naming the phase changes them. `Config.kept` lists what was kept.
- Refused: a wrong type, an unknown key or field, a value that every phase keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vlrl.config.merging import Origins, Tree, first_origin, has, leaves, merge, without
from vlrl.plugins.registry import ConfigError


@dataclass
class Layer:
    """What one file (with what it extends) or one override adds. `stated` is the part that a user states for
    all phases."""

    tree: Tree
    origins: Origins
    stated: Tree = field(default_factory=dict)


def _check_phases(layer: Layer) -> None:
    """Raise ConfigError where `phases`, or one of them, is no map: before it is merged, since merging looks
    into it."""
    phases = layer.tree.get("phases")
    named = phases.items() if isinstance(phases, Mapping) else ()
    for path, value in (("phases", phases), *((f"phases.{name}", own) for name, own in named)):
        if not isinstance(value, (Mapping, type(None))):
            origin = first_origin(path, layer.origins)
            raise ConfigError(
                f"{path}: expected a map from names to settings, like `phases: {{rl: {{steps: 50}}}}`, got "
                f"{str(value)[:60]!r} ({origin})"
            )


def add_layer(base: Layer, over: Layer, kept: dict[tuple[str, str], None], keep: bool = False) -> Layer:
    """Merge `over` into `base`, and make what it states hold in the phases of `base`. Changes the origins of
    `base`."""
    _check_phases(over)
    origins = base.origins
    phases = base.tree.get("phases")
    named = over.tree.get("phases", {})
    tree = merge(base.tree, over.tree, "", origins, over.origins, keep)
    if over.stated and isinstance(phases, Mapping) and isinstance(named, Mapping):
        for phase, own in phases.items():
            if phase not in tree["phases"] or not isinstance(own, Mapping):
                continue
            keeps = (tree["phases"][phase] or {}).get("keeps") or []
            stated = {
                key: value
                for key, value in over.stated.items()
                if not (keeps == "all" or (isinstance(keeps, list) and key in keeps))
            }
            for path in leaves(
                {key: value for key, value in over.stated.items() if key in own and key not in stated}
            ):
                if not has(named.get(phase) or {}, path):
                    kept[phase, path] = None
            values = without(own, stated, base.tree)
            for path in leaves(stated):
                if has(values, path) and path in over.origins:
                    origins[f"phases.{phase}.{path}"] = over.origins[path]
            tree["phases"][phase] = merge(
                values, named.get(phase) or {}, f"phases.{phase}", origins, over.origins, keep
            )
    return Layer(tree, origins, merge(base.stated, over.stated, "", {}, {}, keep=True))
