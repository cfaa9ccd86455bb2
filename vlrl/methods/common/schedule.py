"""Schedules: lengths given in steps, or as a share of the phase."""

from __future__ import annotations

from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.registry import ConfigError


def steps_of(value: float, run: PhaseContext) -> int:
    """`value` in steps: as it is from 1 on; below 1 a share of the phase's steps, rounded to a whole step."""
    return round(value * run.settings.steps) if value < 1 else int(value)


def check_begins(run: PhaseContext, where: str, value: float) -> None:
    """Raise ConfigError if what begins at step `value` (steps, or a share below 1) would not begin before the
    phase ends. `where` names the field."""
    steps = run.settings.steps
    if value < 0 or (value and steps_of(value, run) >= steps):
        raise ConfigError(
            f"{where}={value:g}: the phase has {steps} steps, so this part would never act; give fewer "
            f"than {steps} steps, or a share below 1"
        )
