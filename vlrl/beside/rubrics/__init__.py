"""Rubrics as versioned files: criteria that hold for every response, such as rules that were extracted from
preferences or a defence against what a policy was seen to do for the judge alone.

    NAME.yaml    a list of {criterion, points, veto, tiers, reward}, as in a row's `meta.rubrics`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from vlrl.plugins.registry import ConfigError, suggest

FOLDER = Path(__file__).parent
KEYS = {"criterion", "points", "veto", "tiers", "pairs", "reward", "answer"}


def rubric_names() -> list[str]:
    """The packaged rubrics."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def load_rubric(name: str) -> tuple[Mapping[str, Any], ...]:
    """A packaged rubric, or the one in a YAML file. Raises ConfigError for one without criteria, and for a
    criterion without text or points."""
    path = FOLDER / f"{name}.yaml" if re.fullmatch(r"\w+", name) else Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"rubric: {name!r} is no packaged rubric and no file.{suggest(name, rubric_names())}"
        )
    items = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(items, list) or not items:
        raise ConfigError(
            f"rubric: {name!r} holds no list of criteria; each is {{criterion: ..., points: 1}}"
        )
    for place, item in enumerate(items):
        if not isinstance(item, Mapping) or not {"criterion", "points"} <= set(item):
            raise ConfigError(f"rubric {name!r}: entry {place} needs criterion and points, got {item!r}")
        if unknown := sorted(set(item) - KEYS):
            raise ConfigError(
                f"rubric {name!r}: entry {place} has {', '.join(unknown)}; known: {', '.join(sorted(KEYS))}"
            )
        if not isinstance(item["points"], (int, float)) or not item["points"]:
            raise ConfigError(
                f"rubric {name!r}: entry {place} has points {item['points']!r}, no number but 0"
            )
    return tuple(items)
