"""What is checked before torch is imported: the config, the output folder, the rows, and each reward on the
rows' own gold answers.

Plug-ins are built as the run builds them: none imports torch before it is set up or called.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlrl.config import Config
from vlrl.config.model_folder import check_cached
from vlrl.config.settings import Settings
from vlrl.logging.trackers import check_trackers
from vlrl.plugins import stages as S
from vlrl.plugins.contexts import RunContext
from vlrl.plugins.registry import ConfigError, build, load_plugin_file
from vlrl.policy import Family
from vlrl.trainer.data.check_golds import check_golds
from vlrl.trainer.data.rows import check_rows
from vlrl.trainer.phase import Phase, build_parts
from vlrl.types import Row


@dataclasses.dataclass
class Preflight:
    """The part of a run that needs no torch: its phases and their rows.

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
        build(Family, tree["policy"], "policy")
        build(S.Engine, tree.get("engine") or {"name": ""}, "engine")
        self.phases = [build_parts(self.config, name) for name in self.config.phases]
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
