"""YAML configs: `extends`, merging, removal by null, strict names, and where every value came from.

Maps merge, scalars and lists replace, null removes a key, and a mapping whose `name` changes replaces the old one whole (the fields of one
plug-in mean nothing to another). A null inside a phase is kept: it removes the key for that phase; `"*": null` in a map removes all that it
inherits. Several files and `a.b=c` overrides are merged left to right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vlrl.registry import ConfigError, suggest

Tree = dict[str, Any]
Origins = dict[str, str]

SLOTS = {  # config slot -> kind of its plug-ins
    "policy": "family",
    "engine": "engine",
    "prompt_sampler": "prompt_sampler",
    "prompt_template": "prompt_template",
    "sampling": "sampling_policy",
    "rollout_budget": "rollout_budget",
    "rollout": "rollout_strategy",
    "environment": "environment",
    "replay": "replay_buffer",
    "advantage": "advantage_estimator",
    "token_credit": "token_credit",
    "policy_loss": "policy_loss",
    "loss_aggregation": "loss_aggregation",
    "trainable": "trainable",
    "select": "select",
    "rewards": "reward",
    "reward_shaping": "reward_shaping",
    "group_filters": "group_filter",
    "aux_tensors": "aux_tensor",
    "token_weights": "token_weight",
    "loss_terms": "loss_term",
    "callbacks": "callback",
    "metrics": "metric",
}
OTHER_KEYS = ("about", "outcome", "seed", "threads", "output", "plugins", "data", "eval", "phases")
RENAMED = {  # keys of configs written before version 0.2 -> the present key
    "sampler": "prompt_sampler",
    "scaffold": "prompt_template",
    "decode": "sampling",
    "budget": "rollout_budget",
    "strategy": "rollout",
    "env": "environment",
    "shape": "reward_shaping",
    "gate": "group_filters",
    "credit": "token_credit",
    "fields": "aux_tensors",
    "surrogate": "policy_loss",
    "weights": "token_weights",
    "terms": "loss_terms",
    "reduce": "loss_aggregation",
    "tune": "trainable",
    "probes": "metrics",
    "iterations": "ppo_epochs",
    "minibatches": "num_minibatches",
    "micro_tokens": "micro_batch_tokens",
    "collect_rounds": "max_refill_rounds",
}


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e-3 as a number and refuses a key given twice."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


@dataclass
class Config:
    """A resolved config. `origins` maps dotted paths to "file:line" (or "command line")."""

    tree: Tree
    origins: Origins = field(default_factory=dict)

    @classmethod
    def load(cls, names: Sequence[str | Path], overrides: Iterable[str] = ()) -> Config:
        """`load`: read configs by path or name, merged left to right, then overrides like "steps=20". Raises ConfigError."""
        return load(names, overrides)

    def phase(self, name: str) -> Tree:
        """The tree that holds during one phase."""
        base = {key: value for key, value in self.tree.items() if key != "phases"}
        return _merge(base, self.tree.get("phases", {}).get(name) or {}, "", {}, {})

    @property
    def phases(self) -> list[str]:
        """Names of the phases in order; a config without any is one phase called "main"."""
        return list(self.tree.get("phases") or {}) or ["main"]

    def dump(self) -> str:
        """YAML that loads to the same tree."""
        return yaml.safe_dump(self.tree, sort_keys=False, allow_unicode=True)


def folders() -> list[Path]:
    """Where configs are found by name: the working directory's `configs`, then those of the package."""
    here = Path(__file__).parent
    return [folder for folder in (Path("configs"), here / "configs", here.parent / "configs") if folder.is_dir()]


def find(name: str | Path, beside: Path | None = None) -> Path:
    """The file of a config given by path or by name. Raises ConfigError listing what is near."""
    tried = []
    roots = [Path(), *([beside] if beside else []), *folders()]
    for root in roots:
        for candidate in (root / name, root / f"{name}.yaml"):
            if candidate.is_file():
                return candidate
        tried.append(str(root / name))
    known = {path.relative_to(folder).with_suffix("").as_posix() for folder in folders() for path in folder.rglob("*.yaml")}
    raise ConfigError(f"no config {str(name)!r}.{suggest(str(name), known)}")


def load(names: Sequence[str | Path], overrides: Iterable[str] = ()) -> Config:
    """Read, merge and check. `overrides` are "a.b=value" (YAML values). Raises ConfigError."""
    tree: Tree = {}
    origins: Origins = {}
    for name in names:
        layer, layer_origins = _read(find(name), ())
        tree = _merge(tree, layer, "", origins, layer_origins)
    for text in overrides:
        layer, layer_origins = _override(text)
        tree = _merge(tree, layer, "", origins, layer_origins)
    config = Config(tree, {path: origin for path, origin in origins.items() if _has(tree, path)})
    _check_keys(config)
    return config


def _check_keys(config: Config) -> None:
    from vlrl.settings import Settings

    known = {*SLOTS, *OTHER_KEYS, *Settings.__dataclass_fields__}
    for key in config.tree:
        if key not in known:
            raise ConfigError(f"{key}: {_unknown(key, known, config.origins.get(key, 'config'))}")
    for name, override in (config.tree.get("phases") or {}).items():
        for key in override or {}:
            if key not in known - {"phases", "seed", "threads", "output", "plugins", "policy", "engine", "about"}:
                if key in known:
                    reason = "this key is the same in all phases; set it at the top of the config"
                else:
                    reason = _unknown(key, known, config.origins.get(f"phases.{name}.{key}", "config"))
                raise ConfigError(f"phases.{name}.{key}: {reason}")


def _unknown(key: str, known: Iterable[str], origin: str) -> str:
    if key in RENAMED:
        return f"this key is now called {RENAMED[key]!r} ({origin})"
    return f"unknown key ({origin}).{suggest(key, known)}"


def _read(path: Path, stack: tuple[Path, ...]) -> tuple[Tree, Origins]:
    if path.resolve() in stack:
        raise ConfigError(f"{path}: `extends` goes in a circle: {' -> '.join(p.name for p in (*stack, path))}")
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    origins: Origins = {}
    own = _construct(node, "", path, origins) if node is not None else {}
    if not isinstance(own, dict):
        raise ConfigError(f"{path}: expected a mapping at the top, got {type(own).__name__}")
    parents = own.pop("extends", [])
    tree: Tree = {}
    tree_origins: Origins = {}
    for parent in [parents] if isinstance(parents, str) else parents:
        layer, layer_origins = _read(find(parent, path.parent), (*stack, path.resolve()))
        tree = _merge(tree, layer, "", tree_origins, layer_origins, keep=True)
    tree = _merge(tree, own, "", tree_origins, origins, keep=True)
    return tree, tree_origins


def _construct(node: yaml.Node, where: str, path: Path, origins: Origins) -> Any:
    origins[where] = f"{path}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.MappingNode):
        result: Tree = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key in result:
                raise ConfigError(f"{path}:{key_node.start_mark.line + 1}: key {key!r} is given twice")
            result[key] = _construct(value_node, f"{where}.{key}".lstrip("."), path, origins)
        return result
    loader = _Loader("")
    loader.constructed_objects = {}
    return loader.construct_object(node, deep=True)


def _override(text: str) -> tuple[Tree, Origins]:
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"override {text!r}: expected key=value, for instance optimizer.lr=1e-5")
    try:
        parsed = yaml.load(value, Loader=_Loader) if value.strip() else ""  # a SafeLoader subclass
    except yaml.YAMLError as error:
        raise ConfigError(f"override {text!r}: not valid YAML: {' '.join(str(error).split())}") from None
    tree: Any = parsed
    for key in reversed(path.strip().split(".")):
        tree = {key: tree}
    return tree, {path.strip(): "command line"}


def _merge(base: Tree, over: Mapping[str, Any], where: str, origins: Origins, over_origins: Origins, keep: bool = False) -> Tree:
    """`keep` leaves nulls in place: a file's removals must still act on what it is merged into later."""
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
            if not isinstance(below, dict):
                below = {"*": None} if keep and key in result else {}  # removed before, so nothing of what is below comes back
            result[key] = _merge(below, value, path, origins, over_origins, keep)
        else:
            result[key] = value
        if path in over_origins:
            origins[path] = over_origins[path]
    return result


def _has(tree: Any, path: str) -> bool:
    for key in filter(None, path.split(".")):
        if not isinstance(tree, Mapping) or key not in tree:
            return False
        tree = tree[key]
    return True
