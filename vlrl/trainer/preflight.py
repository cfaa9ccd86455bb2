"""What is checked before torch is imported: the config, the output folder, the rows, and each reward on the
rows' own gold answers.

A plug-in whose module imports torch is not built here: its name, its fields and their types are checked
against its source file (`vlrl/plugins/index.py`), and the run builds it later. Everything else is built as the
run builds it.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vlrl.config import Config
from vlrl.config.model_folder import check_cached, check_model
from vlrl.config.settings import Settings
from vlrl.logging.trackers import check_trackers
from vlrl.plugins import stages as S
from vlrl.plugins.contexts import RunContext
from vlrl.plugins.index import PluginEntry, class_constant, imported_packages
from vlrl.plugins.registry import ConfigError, build, expanded, load_plugin_file, make, registered, shipped
from vlrl.trainer.data.check_golds import check_golds
from vlrl.trainer.data.rows import check_rows
from vlrl.trainer.phase import Phase, build_parts
from vlrl.types import Row

HEAVY = frozenset({"torch", "transformers", "accelerate", "peft", "vllm"})
_SIMPLE: dict[str, Any] = {
    **{kind.__name__: kind for kind in (int, float, bool, str, list, tuple, dict, Path)},
    **{"Any": Any, "Literal": typing.Literal, "Mapping": Mapping, "Sequence": Sequence, "Callable": Callable},
}


@dataclasses.dataclass
class Preflight:
    """The part of a run that needs no torch: phases whose heavy plug-ins are stand-ins, and their rows.

    `cached_rows` are handed to the run with their sources, so that nothing is read twice. Raises ConfigError
    for the first mistake.
    """

    config: Config
    phases: list[Phase] = dataclasses.field(default_factory=list)
    phase_index: int = 0
    cached_rows: dict[str, dict[str, Sequence[Row]]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        tree = self.config.tree
        for file in tree.get("plugins") or []:
            load_plugin_file(file)
        if "policy" not in tree:
            raise ConfigError(
                "policy: not set; add a model, for instance `extends: [models/tiny_qwen2_5_vl]`"
            )
        _check_model(build_light(_family(), tree["policy"], "policy"))
        build_light(S.Engine, tree.get("engine") or {"name": ""}, "engine")
        self.phases = [build_parts(self.config, name, build_light) for name in self.config.phases]
        for phase in self.phases:
            check_trackers(phase.settings.watch.trackers)

    @property
    def output(self) -> Path:
        """The run's folder, where a source writes down the rows that it cannot use."""
        return Path(str(self.config.tree.get("output") or "runs/unnamed"))

    @property
    def sources(self) -> list[S.Source]:
        """The sources of all phases that are built here."""
        return [
            one
            for phase in self.phases
            for one in (*phase.train.values(), *phase.heldout.values())
            if isinstance(one, S.Source)
        ]

    @property
    def current(self) -> Phase:
        """The phase in use."""
        return self.phases[self.phase_index]

    @property
    def phase(self) -> str:
        """Its name."""
        return self.current.name

    @property
    def rollout(self) -> Any:
        """Its rollout strategy, or the stand-in for it."""
        return self.current.slots["rollout"]

    @property
    def rewards(self) -> Mapping[str, S.Reward]:
        """Its rewards by slot."""
        return self.current.maps["rewards"]

    @property
    def settings(self) -> Settings:
        """Its settings."""
        return self.current.settings

    def use(self, index: int) -> None:
        """Make a phase the current one."""
        self.phase_index = index

    @property
    def row_count(self) -> int:
        """Rows of all sources, those of a source that several phases read counted once."""
        sizes = {
            (key.partition("/")[2], slot): len(rows)
            for key, sources in self.cached_rows.items()
            for slot, rows in sources.items()
        }
        return sum(sizes.values())


def preflight(config: Config, resume: bool = False, overwrite: bool = False) -> Preflight:
    """`check`, and that the output folder holds no run, or one that may be replaced. Raises ConfigError."""
    from vlrl.trainer.checkpoints.overwrite import check as check_overwrite

    output = Path(str(config.tree.get("output") or "runs/unnamed"))
    if overwrite:
        check_overwrite(output)
    elif not resume:
        check_free(output)
    return check(config)


def check(config: Config) -> Preflight:
    """Check everything that can be checked without torch: plug-ins, the output folder, rows, gold answers.
    Raises ConfigError."""
    checked = Preflight(config)
    check_cached(
        str(checked.config.tree["policy"].get("model") or "")
        if isinstance(checked.config.tree["policy"], Mapping)
        else ""
    )
    check_output(checked.output)
    run = typing.cast(RunContext, checked)  # it has what the checks of rows read of a run
    for source in checked.sources:
        source.check(run)
    check_rows(run)
    check_golds(run)
    return checked


def check_free(output: Path) -> None:
    """Raise ConfigError if the folder holds a run."""
    if (output / "metrics.jsonl").is_file() or any((output / "checkpoints").glob("step-*")):
        raise ConfigError(
            f"output: {str(output)!r} already holds a run; go on with --resume, start over with "
            "--overwrite, or give another `output=`"
        )


def check_output(output: Path) -> None:
    """Raise ConfigError if the run's folder cannot be written."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        probe = output / f".write-{os.getpid()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"output: cannot write to {str(output)!r} ({error.strerror}); give another folder, `output=...`"
        ) from None


# --- plug-ins that import torch -----------------------------------------------------------------------------


def build_light(stage: Any, spec: Any, where: str) -> Any:
    """`vlrl.plugins.registry.build`, with a stand-in for a shipped plug-in whose module imports torch. Raises
    ConfigError."""
    if isinstance(spec, S.Stage):
        return spec
    name = spec if isinstance(spec, str) else spec.get("name") if isinstance(spec, Mapping) else None
    entry = None if name in registered(stage) else shipped(stage).get(str(name))
    if entry is None or not HEAVY & imported_packages(entry.module):
        return build(stage, spec, where)
    values = (
        {}
        if isinstance(spec, str)
        else {key: value for key, value in expanded(spec, where).items() if key != "name"}
    )
    return make(stand_in(entry), values, where)


def stand_in(entry: PluginEntry) -> type:
    """A dataclass with the fields of a plug-in, made from its source: it checks names and simple types as the
    plug-in does."""
    fields: list[Any] = []
    for item in entry.fields:
        kind = simple_type(item.type)
        fields.append(
            (item.name, kind) if item.default is None else (item.name, kind, dataclasses.field(default=None))
        )
    namespace = {"name": entry.name, "kind": entry.kind, "samples": class_constant(entry, "samples", True)}
    namespace |= {
        "needs_target": class_constant(entry, "needs_target", True),
        "unbounded": class_constant(entry, "unbounded", ""),
    }
    return dataclasses.make_dataclass(entry.cls, fields, kw_only=True, namespace=namespace)


def simple_type(text: str) -> Any:
    """The type that an annotation's text names, where it is made of builtin types, Literal and containers;
    Any for all others."""
    tree = ast.parse(text, mode="eval")
    plain = (
        ast.Expression,
        ast.Name,
        ast.Load,
        ast.Constant,
        ast.Subscript,
        ast.Tuple,
        ast.List,
        ast.BinOp,
        ast.BitOr,
    )
    for node in ast.walk(tree):
        if not isinstance(node, plain) or (isinstance(node, ast.Name) and node.id not in _SIMPLE):
            return Any
    return eval(
        compile(tree, "<annotation>", "eval"), {"__builtins__": {}}, _SIMPLE
    )  # text of our own source files, names as in _SIMPLE


def _check_model(family: Any) -> None:
    """Check the model that a family, or its stand-in, names. Raises ConfigError."""
    entry = shipped(_Families).get(getattr(family, "name", ""))
    check_model(
        getattr(family, "model", "") or "",
        entry is not None and bool(class_constant(entry, "is_multimodal", True)),
    )


class _Families:
    """Stands for `vlrl.policy.Family`, which imports torch."""

    kind = "family"
    home = "vlrl.policy.families"


def _family() -> Any:
    loaded = sys.modules.get("vlrl.policy.family")
    return loaded.Family if loaded is not None else _Families
