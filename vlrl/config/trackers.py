"""The trackers that a run can write to, and whether their packages are installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from vlrl.plugins.registry import ConfigError, suggest

PACKAGES = {  # tracker of accelerate -> the packages that bring it, any of them
    "aim": ("aim",), "clearml": ("clearml",), "comet_ml": ("comet_ml",), "dvclive": ("dvclive",),
    "mlflow": ("mlflow",), "swanlab": ("swanlab",),
    "tensorboard": ("tensorboard", "tensorboardX"), "trackio": ("trackio",), "wandb": ("wandb",),
}  # fmt: skip


def check_trackers(names: Sequence[str]) -> None:
    """Raise ConfigError for a tracker that is unknown or whose package is not installed. Imports and starts
    nothing."""
    for name in names:
        if name not in PACKAGES:
            raise ConfigError(f"watch.trackers: no tracker named {name!r}.{suggest(name, PACKAGES)}")
        if not any(find_spec(package) for package in PACKAGES[name]):
            raise ConfigError(
                f"watch.trackers: {name!r} needs its package: pip install {PACKAGES[name][0]}, or remove "
                "it from watch.trackers"
            )
