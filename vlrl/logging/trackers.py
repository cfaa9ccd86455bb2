"""External trackers (TensorBoard, W&B and the others that accelerate supports), through accelerate's
classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlrl.config import MAP_SLOTS
from vlrl.config.trackers import check_trackers
from vlrl.services.redaction import without_secrets


def open_trackers(names: Sequence[str], folder: Path, run_config: Mapping[str, Any]) -> list[Any]:
    """Started trackers, told the config. Raises ConfigError as `check_trackers` does."""
    check_trackers(names)
    trackers = []
    for name in names:
        cls = _class(name)
        project = "tensorboard" if cls.requires_logging_directory else "vlrl"
        extra = {"logging_dir": str(folder)} if cls.requires_logging_directory else {}
        tracker = cls(project, **extra)
        if hasattr(tracker, "start"):
            tracker.start()
        tracker.store_init_configuration(flat(without_secrets(run_config, MAP_SLOTS)[0]))
        trackers.append(tracker)
    return trackers


def _class(name: str) -> Any:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    return LOGGER_TYPE_TO_CLASS[name]


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings to {"a.b": scalar}; anything else that trackers cannot store becomes text."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return out
