"""YAML configs: `extends`, merging, removal by null, strict names, and where every value came from.

Maps merge, scalars and lists replace, null removes a key, and a mapping whose `name` changes replaces the old
one whole (the fields of one plug-in mean nothing to another). A null inside a phase is kept: it removes the
key for that phase; `"*": null` in a map removes all that it inherits. Several files and `a.b=c` overrides are
merged left to right. `plugins` of several files are appended, each path relative to its file.

**Which value holds in a phase.** Among shipped configs, a value inside a phase wins over the value at the
top. What a user states wins over both:

- `steps=50` on the command line, and `steps: 50` at the top of a file that is not shipped with vlrl, hold in
  every phase that came before.
- `phases.rl.steps=50` (or `phases: {rl: {steps: 50}}` in the file) holds in that phase alone, and wins over
  `steps=50` in any order.
- A phase with `keeps: [steps, optimizer]` keeps the values of these keys that it sets itself, one with
  `keeps: all` everything that it sets itself (a cold start, a phase that only measures). Only naming the
  phase changes them. `Config.kept` lists what was kept; `vlrl show` and `vlrl train` print it.
- A value that cannot hold is refused: a wrong type, an unknown key, a field that the plug-in of a phase does
  not have, a value that every phase keeps.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vlrl.config.heldout import derive_heldout
from vlrl.config.trl_names import TRL_NAMES
from vlrl.config.yaml import read, read_file
from vlrl.plugins.registry import ConfigError, suggest
from vlrl.services.redaction import without_secrets

Tree = dict[str, Any]
Origins = dict[str, str]

COMMAND_LINE = "command line"
_ABSENT = object()
_DATA = (".jsonl", ".ndjson", ".parquet", ".csv", ".tsv", ".arrow", ".feather")

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
MAP_SLOTS = (
    "select",
    "rewards",
    "reward_shaping",
    "group_filters",
    "aux_tensors",
    "token_weights",
    "loss_terms",
    "callbacks",
    "metrics",
)
OTHER_KEYS = ("about", "outcome", "seed", "threads", "output", "plugins", "data", "eval", "phases")


@dataclass(frozen=True)
class Kept:
    """A value that a phase with `keeps` has instead of the one that the user set for all phases."""

    phase: str
    path: str
    value: Any
    origin: str

    def __str__(self) -> str:
        value = (
            yaml.safe_dump(self.value, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()
        )
        return (
            f"phase {self.phase} keeps its own {self.path} ({value}): {self.origin}; "
            f"phases.{self.phase}.{self.path}=... changes it"
        )


@dataclass
class Config:
    """A resolved config. `origins` maps dotted paths to "file:line" (or "command line"); `kept` is what
    phases kept against the user's values."""

    tree: Tree
    origins: Origins = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)

    @classmethod
    def load(cls, names: Sequence[str | Path], overrides: Iterable[str] = ()) -> Config:
        """`load`: read configs by path or name, merged left to right, then overrides like "steps=20". Raises
        ConfigError."""
        return load(names, overrides)

    def phase(self, name: str) -> Tree:
        """The tree that holds during one phase."""
        base = {key: value for key, value in self.tree.items() if key != "phases"}
        own = {
            key: value
            for key, value in ((self.tree.get("phases") or {}).get(name) or {}).items()
            if key != "keeps"
        }
        return _merge(base, own, "", {}, {})

    @property
    def phases(self) -> list[str]:
        """Names of the phases in order; a config without any is one phase called "main"."""
        return list(self.tree.get("phases") or {}) or ["main"]

    def dump(self) -> str:
        """YAML that loads to the same tree, with references to environment variables in place of secrets
        (`vlrl.services.redaction`).

        A plug-in that was built in Python stands in it with its name and its plain fields.
        """
        tree, references = without_secrets(_without_objects(self.tree), MAP_SLOTS)
        notes = [
            (
                f"# {path}: a secret that is not stored; set the environment variable {name} before this "
                "file "
                "is used\n"
            )
            for name, path in references.items()
        ]
        return "".join(notes) + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


@dataclass
class _Layer:
    """What one file (with what it extends) or one override adds. `stated` is the part that a user states for
    all phases."""

    tree: Tree
    origins: Origins
    stated: Tree = field(default_factory=dict)


def folders() -> list[Path]:
    """Where configs are found by name: the working directory's `configs`, then those of the package."""
    return [folder for folder in (Path("configs"), *_shipped()) if folder.is_dir()]


def _shipped() -> list[Path]:
    here = Path(__file__).parents[1]
    return [here / "configs", here.parent / "configs"]


def is_shipped(path: Path) -> bool:
    """Whether a config file is one of the package's own."""
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in _shipped())


def find(name: str | Path, beside: Path | None = None) -> Path:
    """The file of a config given by path or by name. Raises ConfigError naming the nearest ones."""
    roots = [Path(), *([beside] if beside else []), *folders()]
    for root in roots if Path(name).suffix not in _DATA else ():
        for candidate in (root / name, root / f"{name}.yaml"):
            if _is_file(candidate):
                return candidate
    if len(str(name)) > 4000 or len(Path(name).name) > 255 or not str(name).isprintable():
        raise ConfigError(f"no config {str(name)[:80]!r}...: this is no name of a file")
    if Path(name).suffix in _DATA:
        raise ConfigError(
            f"{str(name)!r} holds data and is no config; name it as a source: data.train.mine='{{name: "
            f"files, path: {name}}}'"
        )
    if Path(name).is_dir() and not any((folder / name).is_dir() for folder in folders()):
        inner = "/config.yaml" if (Path(name) / "config.yaml").is_file() else ""
        raise ConfigError(
            f"no config {str(name)!r}: this is a folder; give "
            f"{f'{name}{inner}' if inner else 'a config file'}"
        )
    if known_key(str(name)):
        raise ConfigError(f"no config {str(name)!r}; a setting is written with its value: {name}=...")
    near = [path for root in dict.fromkeys(roots) if (path := root / Path(name).parent).is_dir()]
    siblings = {str(Path(name).parent / path.name) for folder in near for path in folder.glob("*.yaml")}
    close = (
        difflib.get_close_matches(str(name), sorted(siblings), n=1, cutoff=0.7)
        if str(name).endswith(".yaml")
        else []
    )
    known = {
        path.relative_to(folder).with_suffix("").as_posix()
        for folder in folders()
        for path in folder.rglob("*.yaml")
    }
    raise ConfigError(f"no config {str(name)!r}.{suggest(str(name), close or known)}")


def known_key(name: str) -> bool:
    """Whether a name is a key of a config, or a field of the nested settings like optimizer.lr."""
    from vlrl.config.settings import Settings, nested_fields

    return name.partition(".")[0] in {*SLOTS, *OTHER_KEYS, *Settings.__dataclass_fields__} and (
        "." not in name or name in nested_fields()
    )


def _refuse_other_files(path: Path, own: Tree) -> None:
    """Files of `configs` that are no config of a run: evaluation suites and launch files. Raises
    ConfigError."""
    kind = path.parent.name if is_shipped(path) else ""
    if kind == "eval":
        raise ConfigError(
            f"{path.stem!r} is an evaluation suite, not a run; use vlrl eval --suite {path.stem}, or "
            f"eval.suites=[{path.stem}]"
        )
    if kind in ("accelerate", "deepspeed") or "compute_environment" in own:
        raise ConfigError(
            f"{path.stem!r} is a launch file of accelerate, not a run; give the run's config and "
            f"--processes N --sharding {path.stem}"
        )


def load(names: Sequence[str | Path], overrides: Iterable[str] = ()) -> Config:
    """Read, merge and check. `overrides` are "a.b=value" (YAML values). Raises ConfigError."""
    total = _Layer({}, {})
    kept: dict[tuple[str, str], None] = {}  # (phase, path) in order
    for name in names:
        total = _add(total, _read(find(name), ()), kept)
    for text in sorted(overrides, key=_turn):
        total = _add(total, _override(text, total.tree), kept)
    config = Config(
        total.tree, {path: origin for path, origin in total.origins.items() if _has(total.tree, path)}
    )
    _check_keys(config)
    _list_kept(config, kept)
    from vlrl.config.checks import check_stated, check_tree

    check_tree(config)
    check_stated(config, total.stated, total.origins)
    return config


def own_tree(name: str | Path) -> Tree:
    """What a config file says itself, without what it extends (`extends` stands in it). Raises
    ConfigError."""
    return read_file(find(name))[0] or {}


def _list_kept(config: Config, kept: Iterable[tuple[str, str]]) -> None:
    """Fill `config.kept`. Raises ConfigError for a value that holds nowhere, because every phase keeps its
    own."""
    by_path: dict[str, list[Kept]] = {}
    for phase, path in kept:
        if found := _kept(config, phase, path):
            config.kept += [found] if found not in config.kept else []
            by_path.setdefault(path, []).append(found)
    for path, keeping in by_path.items():
        if len(keeping) == len(config.phases):
            fix = " or ".join(f"phases.{one.phase}.{path}=..." for one in keeping)
            raise ConfigError(
                f"{path}: every phase keeps its own ({', '.join(one.origin for one in keeping)}); name the "
                f"phase: {fix}"
            )


def _turn(text: str) -> int:
    """Overrides act in this order: what phases keep, values of all phases, values that name a phase."""
    path = text.partition("=")[0].strip()
    return 0 if re.fullmatch(r"phases\.[^.]+\.keeps", path) else 2 if path.startswith("phases") else 1


def _check_phases(layer: _Layer) -> None:
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


def _add(base: _Layer, over: _Layer, kept: dict[tuple[str, str], None], keep: bool = False) -> _Layer:
    """Merge `over` into `base`, and make what it states hold in the phases of `base`. Changes the origins of
    `base`."""
    _check_phases(over)
    origins = base.origins
    phases = base.tree.get("phases")
    named = over.tree.get("phases", {})
    tree = _merge(base.tree, over.tree, "", origins, over.origins, keep)
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
                if not _has(named.get(phase) or {}, path):
                    kept[phase, path] = None
            values = _without(own, stated, base.tree)
            for path in leaves(stated):
                if _has(values, path) and path in over.origins:
                    origins[f"phases.{phase}.{path}"] = over.origins[path]
            tree["phases"][phase] = _merge(
                values, named.get(phase) or {}, f"phases.{phase}", origins, over.origins, keep
            )
    return _Layer(tree, origins, _merge(base.stated, over.stated, "", {}, {}, keep=True))


def _kept(config: Config, phase: str, path: str) -> Kept | None:
    """What a phase has instead of the value that the user stated for all phases; None where it has that
    value, or where the command line names it."""
    if at(config.phase(phase), path) in (_ABSENT, at(config.tree, path)) and not _replaced(
        config, phase, path
    ):
        return None
    own = f"phases.{phase}.{path}"
    while not _has(config.tree, own):
        own = own.rpartition(".")[0]
    origin = config.origins.get(own) or next(
        (config.origins[leaf] for leaf in leaves({own: at(config.tree, own)}) if leaf in config.origins), ""
    )
    return None if origin == COMMAND_LINE else Kept(phase, own.split(".", 2)[2], at(config.tree, own), origin)


def _replaced(config: Config, phase: str, path: str) -> bool:
    """Whether a phase has another plug-in, or none, where the value would hold."""
    return _has(config.tree, path) and not _has(config.phase(phase), path)


def _without(own: Mapping[str, Any], stated: Mapping[str, Any], below: Mapping[str, Any]) -> Tree:
    """A phase's own values without those that `stated` sets, so that the value at the top holds. `below` is
    what the phase's values are merged into.

    Where the phase removes what `stated` adds to, or has another plug-in there, the stated values are put
    among the phase's own.
    """
    if "*" in stated:
        own = {}
    result = dict(own)
    for key, value in stated.items():
        mine, under = result.get(key, _ABSENT), below.get(key)
        if mine is _ABSENT:
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
                result[key] = _merge(dict(mine), value, "phases._._", {}, {})
            elif rest := _without(mine, value, under):
                result[key] = rest
            else:
                del result[key]
    return result


def _check_keys(config: Config) -> None:
    from vlrl.config.settings import Settings

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
    from vlrl.config.settings import nested_fields

    origin = first_origin(where + key, config.origins)
    if not where and key in TRL_NAMES:
        return f"unknown key ({origin}); TRL's {key!r} is {TRL_NAMES[key]!r} here"
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


def _read(path: Path, stack: tuple[Path, ...]) -> _Layer:
    if path.resolve() in stack:
        raise ConfigError(
            f"{path}: `extends` goes in a circle: {' -> '.join(p.name for p in (*stack, path))}"
        )
    own, origins = read_file(path)
    own = {} if own is None else own
    if not isinstance(own, dict):
        raise ConfigError(
            f"{path}: expected a mapping at the top, like `steps: 50`, got {type(own).__name__}"
        )
    _refuse_other_files(path, own)
    parents = own.pop("extends", None) or []
    if not isinstance(parents, (str, list)) or not all(
        isinstance(parent, str) and parent for parent in parents
    ):
        raise ConfigError(
            f"{origins['extends']}: extends: expected a list of configs, like [base/rl], got {parents!r}"
        )
    if own.get("plugins") is not None:
        own["plugins"] = _plugin_paths(own["plugins"], path.parent, origins["plugins"])
    derive_heldout(own, origins)
    layer = _Layer({}, {})
    for parent in [parents] if isinstance(parents, str) else parents:
        layer = _add(layer, _read(find(parent, path.parent), (*stack, path.resolve())), {}, keep=True)
    return _add(layer, _Layer(own, origins, {} if is_shipped(path) else _stated(own)), {}, keep=True)


def _stated(tree: Tree) -> Tree:
    """What is set for all phases."""
    return {key: value for key, value in tree.items() if key not in ("phases", "about", "plugins")}


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long for a path, or with a null byte
        return False


def _plugin_paths(value: Any, folder: Path, origin: str) -> list[str]:
    """Paths of plug-in files as absolute paths. Raises ConfigError for what is no path, or no file."""
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ConfigError(
            f"plugins: expected a list of Python files, like [my_reward.py], got {value!r} ({origin})"
        )
    out = []
    for path in paths:
        try:
            file = (folder / Path(path).expanduser()).resolve()
        except (OSError, ValueError, RuntimeError):
            raise ConfigError(
                f"plugins: {path[:80]!r} is no name of a file ({origin}); give a list of Python files, "
                "like [my_reward.py]"
            ) from None
        if not _is_file(file):
            known = {str(other.relative_to(folder)) for other in folder.glob("*.py")}
            near = suggest(path, known) if known else ""
            raise ConfigError(
                f"plugins: no file {str(file)!r} ({origin}); give a path relative to {str(folder)!r}, or "
                f"an absolute one.{near}"
            )
        out.append(str(file))
    return out


def _override(text: str, tree: Tree) -> _Layer:
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path:
        raise ConfigError(f"override {text!r}: expected key=value, for instance optimizer.lr=1e-5")
    parsed = read(value, f"override {text[:80]!r}", lines=False)[0] if value.strip() else ""
    if path == "plugins" and parsed is not None:
        parsed = _plugin_paths(parsed, Path(), COMMAND_LINE)
    keys = path.split(".")
    if keys[0] == "phases" and len(keys) > 2 and keys[1] not in (tree.get("phases") or {}):
        near = (
            suggest(keys[1], tree["phases"])
            if tree.get("phases")
            else f" This config has no phases; write {'.'.join(keys[2:])}={value}"
        )
        raise ConfigError(f"{path}: no phase named {keys[1]!r}.{near}")
    layer: Any = parsed
    for key in reversed(keys):
        layer = {key: layer}
    origins = {path: COMMAND_LINE}
    derive_heldout(layer, origins)
    return _Layer(layer, {**origins, **{leaf: COMMAND_LINE for leaf in leaves(layer)}}, _stated(layer))


def _merge(
    base: Tree,
    over: Mapping[str, Any],
    where: str,
    origins: Origins,
    over_origins: Origins,
    keep: bool = False,
) -> Tree:
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
            if isinstance(below, str) and "name" not in value:
                below = {"name": below}  # the short form of a plug-in
            if not isinstance(below, dict):
                below = (
                    {"*": None} if keep and key in result else {}
                )  # removed before, so nothing of what is below comes back
            result[key] = _merge(below, value, path, origins, over_origins, keep)
        elif path == "plugins":
            result[key] = list(dict.fromkeys([*(result.get(key) or []), *value]))
        else:
            result[key] = value
        if path in over_origins:
            origins[path] = over_origins[path]
    return result


def first_origin(path: str, origins: Mapping[str, str]) -> str:
    """Where the value at a path came from, or the first value below it, or the nearest around it; "config" if
    that is not known."""
    if found := origins.get(path) or next(
        (origin for leaf, origin in origins.items() if leaf.startswith(f"{path}.")), ""
    ):
        return found
    return first_origin(path.rpartition(".")[0], origins) if "." in path else "config"


def leaves(tree: Any, where: str = "") -> list[str]:
    """Dotted paths of the scalars, lists and empty maps of a tree."""
    if not isinstance(tree, Mapping) or not tree:
        return [where] if where else []
    return [path for key, value in tree.items() for path in leaves(value, f"{where}.{key}".lstrip("."))]


def at(tree: Any, path: str) -> Any:
    """The value at a dotted path; a marker that equals nothing else where there is none."""
    for key in filter(None, path.split(".")):
        if not isinstance(tree, Mapping) or key not in tree:
            return _ABSENT
        tree = tree[key]
    return tree


def _without_objects(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_objects(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_objects(inner) for inner in value]
    if not dataclasses.is_dataclass(value):
        return value
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    plain = {
        name: inner
        for name, inner in fields.items()
        if inner is None or isinstance(inner, (str, int, float, bool))
    }
    return {"name": getattr(value, "name", type(value).__name__), **plain}


def _has(tree: Any, path: str) -> bool:
    return at(tree, path) is not _ABSENT
