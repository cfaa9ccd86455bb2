"""The kinds of plug-ins by name: the stages of a step, and those that are none."""

from __future__ import annotations

import importlib
from typing import Any

from vlrl.plugins.stages import STAGES

_ELSEWHERE = {  # kind -> module and name of its class
    "family": ("vlrl.policy.family", "Family"),
    "scorer": ("vlrl.eval.scorer", "Scorer"),
    "aggregate": ("vlrl.eval.scorer", "Aggregate"),
}
KINDS = (*STAGES, *_ELSEWHERE)


def stage_named(kind: str) -> Any:
    """The class that the plug-ins of a kind derive from: "reward" -> `Reward`."""
    if kind in STAGES:
        return STAGES[kind]
    module, name = _ELSEWHERE[kind]
    return getattr(importlib.import_module(module), name)
