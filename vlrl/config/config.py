"""A resolved config: the tree of values, the tree of each phase, and where every value came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vlrl.config.merging import ABSENT, Origins, Tree, at, has, leaves, merge
from vlrl.plugins.registry import ConfigError
from vlrl.services.redaction import without_secrets

COMMAND_LINE = "command line"  # the origin of a value that no file sets

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
        from vlrl.config.loading import load

        return load(names, overrides)

    def phase(self, name: str) -> Tree:
        """The tree that holds during one phase."""
        base = {key: value for key, value in self.tree.items() if key != "phases"}
        own = {
            key: value
            for key, value in ((self.tree.get("phases") or {}).get(name) or {}).items()
            if key != "keeps"
        }
        return merge(base, own, "", {}, {})

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


def list_kept(config: Config, kept: Iterable[tuple[str, str]]) -> None:
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


def _kept(config: Config, phase: str, path: str) -> Kept | None:
    """What a phase has instead of the value that the user stated for all phases; None where it has that
    value, or where the command line names it."""
    if at(config.phase(phase), path) in (ABSENT, at(config.tree, path)) and not _replaced(
        config, phase, path
    ):
        return None
    own = f"phases.{phase}.{path}"
    while not has(config.tree, own):
        own = own.rpartition(".")[0]
    origin = config.origins.get(own) or next(
        (config.origins[leaf] for leaf in leaves({own: at(config.tree, own)}) if leaf in config.origins), ""
    )
    return None if origin == COMMAND_LINE else Kept(phase, own.split(".", 2)[2], at(config.tree, own), origin)


def _replaced(config: Config, phase: str, path: str) -> bool:
    """Whether a phase has another plug-in, or none, where the value would hold."""
    return has(config.tree, path) and not has(config.phase(phase), path)


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
