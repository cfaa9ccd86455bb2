"""The trackers that a run can write to, and whether their packages are installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from vlrl.plugins.registry import ConfigError, suggest
from vlrl.services.third_party import pip_install

TRACKERS = ("mlflow", "swanlab", "tensorboard", "trackio", "wandb")  # each is its package and its extra, too


def check_trackers(names: Sequence[str]) -> None:
    """Raise ConfigError for a tracker that is unknown, named twice or whose package is not installed. Imports
    and starts nothing."""
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"watch.trackers: no tracker named {name!r}.{suggest(name, TRACKERS)}")
        if find_spec(name) is None:
            raise ConfigError(
                f"watch.trackers: {name!r} needs its package: {pip_install(name)}, or remove it from "
                "watch.trackers"
            )
    if twice := sorted({name for name in names if list(names).count(name) > 1}):
        raise ConfigError(f"watch.trackers: {', '.join(twice)} is named twice; name each tracker once")
