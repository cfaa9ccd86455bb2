"""Findings from a config alone, before a step is taken: schedules that outlast the phase, slots given twice,
histories that see a row once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from vlrl.activity.figures import Finding
from vlrl.trainer.phase import PhasePlan

# fields that hold the step where something begins
STARTS = ("start", "begin", "after", "warmup", "delay", "start_step", "from_step", "first_step", "switch")


def config_findings(phase: PhasePlan) -> list[Finding]:
    """All findings about the current phase, from its settings and its rows."""
    return [*_warmup(phase), *_late_starts(phase), *_given_twice(phase), *_visits(phase)]


def _warmup(phase: PhasePlan) -> Iterator[Finding]:
    settings = phase.settings
    updates = settings.steps * settings.num_minibatches * settings.ppo_epochs
    if settings.optimizer.warmup_steps(updates) >= updates:
        never = f"the learning rate never reaches {settings.optimizer.lr:g}"
        message = (
            f"warmup={settings.optimizer.warmup} optimizer steps outlast the phase, which has {updates}: "
            f"{never}"
        )
        yield Finding("optimizer", "contradictory", message)


def _late_starts(phase: PhasePlan) -> Iterator[Finding]:
    plugins: Iterator[tuple[str, Any]] = phase.plugins()
    for slot, plugin in plugins:
        for field in dataclasses.fields(plugin) if dataclasses.is_dataclass(plugin) else ():
            value = getattr(plugin, field.name)
            if (
                field.name in STARTS
                and isinstance(value, int)
                and not isinstance(value, bool)
                and value >= phase.settings.steps
            ):
                yield Finding(
                    slot,
                    "contradictory",
                    (
                        f"{field.name}={value} is not before the end of the phase, which has "
                        f"{phase.settings.steps} steps"
                    ),
                )


def _given_twice(phase: PhasePlan) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for slot, plugin in phase.plugins():
        group, _, name = slot.rpartition(".")
        if not name or group in ("data.train", "data.heldout", "aux_tensors"):
            continue
        key = f"{group}/{plugin!r}/{plugin.name}"
        if key in seen:
            yield Finding(slot, "contradictory", f"is the same plug-in with the same fields as {seen[key]}")
        seen.setdefault(key, slot)


def _visits(phase: PhasePlan) -> Iterator[Finding]:
    needing: list[tuple[str, Any]] = [(slot, plugin) for slot, plugin in phase.plugins() if plugin.visits > 1]
    rows = sum(len(rows) for rows in phase.rows("train").values())
    drawn = phase.settings.steps * phase.settings.prompts_per_step
    for slot, plugin in needing:
        if drawn < plugin.visits * rows:
            message = (
                f"{plugin.name!r} acts from visit {plugin.visits} of a row on; {phase.settings.steps} steps "
                f"of {phase.settings.prompts_per_step} prompts "
                f"visit {rows} rows {drawn / rows:.2g} times; use fewer rows, or more steps"
            )
            yield Finding(slot, "contradictory", message)
