"""The plan of a run: its config with every plug-in built and checked, its rows, its folder. No torch, no
model.

`vlrl train` makes it first, so that a mistake ends before anything slow is loaded; `check`, `show` and `plan`
look at the same object.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl.config import Config
from vlrl.config.model_folder import check_cached, check_model
from vlrl.config.trackers import check_trackers
from vlrl.plugins.registry import ConfigError, build, load_plugin_file
from vlrl.plugins.stages import Engine
from vlrl.policy.family import Family
from vlrl.trainer.data.check_golds import check_golds
from vlrl.trainer.data.check_tools import check_tools
from vlrl.trainer.data.rows import check_rows
from vlrl.trainer.phase import PhasePlan, RunParts, build_phase
from vlrl.trainer.ranks.sequence import check_phase

log = logging.getLogger("vlrl")


@dataclass(frozen=True, eq=False)
class Plan(RunParts):
    """A run before it begins. `threads` of torch on the CPU; 0 leaves its default.

    `Plan.of(config)` builds it; `check` reads and checks the rows, too.
    """

    threads: int = 0

    @classmethod
    def of(cls, config: Config) -> Plan:
        """Build and check every plug-in of every phase. Raises ConfigError for the first mistake."""
        tree = config.tree
        for file in tree.get("plugins") or []:
            load_plugin_file(file)
        if "policy" not in tree:
            raise ConfigError(
                "policy: not set; add a model, for instance `extends: [models/tiny_qwen2_5_vl]`"
            )
        seed, threads = _integer(tree, "seed", 0), _integer(tree, "threads", 0)
        family: Family = build(Family, tree["policy"], "policy")
        check_model(family.model or "", family.is_multimodal)
        engine: Engine = build(Engine, tree.get("engine") or {"name": ""}, "engine")
        plan = cls(config, family, engine, seed, output_of(config), threads=threads)
        for index, name in enumerate(config.phases):
            plan.phases.append(build_phase(plan, name, index))
        for phase in plan.phases:
            check_trackers(phase.settings.watch.trackers)
            phase.check()
            check_phase(phase)
        engine.check(plan.phases[-1])
        return plan

    def check(self, rows: int = 2000, golds: bool = True) -> None:
        """Check the folder, the first `rows` rows of every source, and with `golds` each reward on the rows'
        own gold answers. Raises ConfigError."""
        check_cached(self.family.model or "")
        check_output(self.output)
        with notices_once():
            check_rows(self.phases, rows)
            for tool, why in check_tools(self.phases).items():
                log.warning("environment: no call of tool %r was carried out: %s", tool, why)
            if golds:
                check_golds(self.phases)

    @property
    def row_count(self) -> int:
        """Rows of all sources that were read, those of a source that several phases read counted once."""
        sizes = {
            (split, slot): len(rows)
            for phase in self.phases
            for split, sources in phase.read_rows.items()
            for slot, rows in sources.items()
        }
        return sum(sizes.values())


class _NotSaid(logging.Filter):
    """Lets a message through once."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        new = text not in self.said
        self.said.add(text)
        return new


@contextmanager
def notices_once() -> Iterator[None]:
    """Notices about data and rewards are logged once, however many phases read the same file."""
    only, loggers = _NotSaid(), [logging.getLogger(name) for name in ("vlrl", "vlrl.data")]
    for logger in loggers:
        logger.addFilter(only)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(only)


def one_phase(
    config: Config, name: str, family: Family | None = None, engine: Engine | None = None
) -> PhasePlan:
    """One phase of a config, unchecked; the model and the engine need not be set. Raises ConfigError."""
    family = family or build(Family, config.tree.get("policy") or {"name": "text"}, "policy")
    engine = engine or build(Engine, config.tree.get("engine") or {"name": "hf"}, "engine")
    parts = RunParts(config, family, engine, 0, output_of(config))
    return build_phase(parts, name, list(config.phases).index(name))


def output_of(config: Config) -> Path:
    """The run's folder."""
    return Path(str(config.tree.get("output") or "runs/unnamed"))


def check_free(output: Path) -> None:
    """Raise ConfigError if the folder holds a run."""
    if (output / "metrics.jsonl").is_file() or any((output / "checkpoints").glob("step-*")):
        raise ConfigError(
            f"output: {str(output)!r} already holds a run; go on with --resume, start over with --overwrite, "
            "or give another `output=`"
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


def _integer(tree: Mapping[str, Any], key: str, default: int) -> int:
    value = tree.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{key}: expected a whole number, got {value!r}")
    return value
