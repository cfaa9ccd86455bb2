"""Names of reward slots in plug-ins, and the one name of the format reward in all shipped configs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vlrl.config import load
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session

CONFIGS = Path(__file__).parents[2] / "configs"
LAB = ["base/rl", "models/tiny_text", "tasks/lab_arithmetic"]
FORMAT_REWARDS = {"tag_format", "boxed_format", "json_format", "search_format"}


@pytest.mark.parametrize(
    ("method", "override", "where"),
    [
        (
            "visurf",
            "reward_shaping.label.excluded=[formt]",
            "reward_shaping.label.excluded: 'formt' is no reward slot.*Did you mean 'format'",
        ),
        (
            "dapo",
            "group_filters.mixed.slot=accuracy",
            "group_filters.mixed.slot: 'accuracy'.*Known: arithmetic, format",
        ),
        ("drive", "phases.focus.prompt_sampler.slot=gold", "phase 'focus'"),
    ],
)
def test_a_slot_that_no_reward_has_is_refused(method, override, where):
    with pytest.raises(ConfigError, match=where):
        Session(Plan.of(load([*LAB, f"methods/{method}"], [override])))


def test_named_slots_and_empty_names_pass():
    made = Session(Plan.of(load([*LAB, "methods/visurf"], ["reward_shaping.label.excluded=[]"])))
    assert made.reward_shaping["label"].excluded == ()
    assert (
        Session(Plan.of(load([*LAB, "methods/dapo"], ["group_filters.mixed.slot=arithmetic"])))
        .group_filters["mixed"]
        .slot
        == "arithmetic"
    )


def test_a_format_reward_is_called_format():
    """Presets, tasks and experiments share one name, so that a preset replaces a task's format reward instead
    of paying beside it."""
    others = []
    for path in sorted(CONFIGS.glob("*/*.yaml")):
        tree = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
        for part in (
            tree,
            *(phase for phase in (tree.get("phases") or {}).values() if isinstance(phase, dict)),
        ):
            for slot, spec in (part.get("rewards") or {}).items():
                if not isinstance(spec, dict) or spec.get("name") not in FORMAT_REWARDS or slot == "format":
                    continue
                if {"think", "answer"} & set(spec.get("tags") or ("answer",)):  # not of sub-questions, say
                    others.append(f"{path.name}: {slot}")
    assert not others
