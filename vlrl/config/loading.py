"""Reading of configs: YAML files with what they extend, then `a.b=c` overrides, merged from left to right and
checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vlrl.config.checks import check_keys, check_stated, check_tree
from vlrl.config.config import COMMAND_LINE, Config, list_kept
from vlrl.config.effects import check_file, check_override
from vlrl.config.files import find, is_shipped, plugin_paths, refuse_other_files
from vlrl.config.heldout import derive_heldout
from vlrl.config.merging import Tree, has, leaves
from vlrl.config.phases import Layer, add_layer
from vlrl.config.yaml import read, read_file
from vlrl.plugins.registry import ConfigError, suggest


def load(names: Sequence[str | Path], overrides: Iterable[str] = ()) -> Config:
    """Read, merge and check. `overrides` are "a.b=value" (YAML values). Raises ConfigError."""
    total = Layer({}, {})
    kept: dict[tuple[str, str], None] = {}  # (phase, path) in order
    for name in names:
        total = add_layer(total, _read(find(name), ()), kept)
    for text in sorted(overrides, key=_turn):
        total = add_layer(total, _override(text, total.tree), kept)
    config = Config(
        total.tree, {path: origin for path, origin in total.origins.items() if has(total.tree, path)}
    )
    check_keys(config)
    list_kept(config, kept)
    check_tree(config)
    check_stated(config, total.stated, total.origins)
    return config


def own_tree(name: str | Path) -> Tree:
    """What a config file says itself, without what it extends (`extends` stands in it). Raises
    ConfigError."""
    return read_file(find(name))[0] or {}


def _turn(text: str) -> int:
    """Overrides act in this order: what phases keep, values of all phases, values that name a phase."""
    path = text.partition("=")[0].strip()
    return 0 if re.fullmatch(r"phases\.[^.]+\.keeps", path) else 2 if path.startswith("phases") else 1


def _read(path: Path, stack: tuple[Path, ...]) -> Layer:
    resolved = path.resolve()
    if resolved in stack:
        raise ConfigError(
            f"{path}: `extends` goes in a circle: {' -> '.join(p.name for p in (*stack, path))}"
        )
    shipped = is_shipped(resolved)
    own, origins = read_file(path)
    own = {} if own is None else own
    if not isinstance(own, dict):
        raise ConfigError(
            f"{path}: expected a mapping at the top, like `steps: 50`, got {type(own).__name__}"
        )
    refuse_other_files(path, own, shipped)
    parents = own.pop("extends", None) or []
    if not isinstance(parents, (str, list)) or not all(
        isinstance(parent, str) and parent for parent in parents
    ):
        raise ConfigError(
            f"{origins['extends']}: extends: expected a list of configs, like [base/rl], got {parents!r}"
        )
    if own.get("plugins") is not None:
        own["plugins"] = plugin_paths(own["plugins"], path.parent, origins["plugins"])
    derive_heldout(own, origins)
    layer = Layer({}, {})
    for parent in [parents] if isinstance(parents, str) else parents:
        layer = add_layer(layer, _read(find(parent, path.parent), (*stack, resolved)), {}, keep=True)
    if not shipped:
        check_file(own, layer.tree, str(path))
    return add_layer(layer, Layer(own, origins, {} if shipped else _stated(own)), {}, keep=True)


def _override(text: str, tree: Tree) -> Layer:
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path:
        raise ConfigError(f"override {text!r}: expected key=value, for instance optimizer.lr=1e-5")
    parsed = read(value, f"override {text[:80]!r}", lines=False)[0] if value.strip() else ""
    if path == "plugins" and parsed is not None:
        parsed = plugin_paths(parsed, Path(), COMMAND_LINE)
    keys = path.split(".")
    if keys[0] == "phases" and len(keys) > 2 and keys[1] not in (tree.get("phases") or {}):
        near = (
            suggest(keys[1], tree["phases"])
            if tree.get("phases")
            else f" This config has no phases; write {'.'.join(keys[2:])}={value}"
        )
        raise ConfigError(f"{path}: no phase named {keys[1]!r}.{near}")
    check_override(path, parsed, tree)
    layer: Any = parsed
    for key in reversed(keys):
        layer = {key: layer}
    origins = {path: COMMAND_LINE}
    derive_heldout(layer, origins)
    return Layer(layer, {**origins, **{leaf: COMMAND_LINE for leaf in leaves(layer)}}, _stated(layer))


def _stated(tree: Tree) -> Tree:
    """What is set for all phases."""
    return {key: value for key, value in tree.items() if key not in ("phases", "about", "plugins")}
