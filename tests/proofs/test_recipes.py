"""Every slot that a recipe sets acted in its run, on its own task as it ships: plug-ins by the figures of the
activity report (slow: a run each), data by its rows, values by the phases that read them."""

from collections.abc import Iterator
from functools import cache

import pytest
from proof_kit.proof import about_of, model_of, presets, proof_of, shipped_config, task_of
from task_kit import params

from vlrl.activity.check import PhaseCheck, check
from vlrl.config import at, load, own_tree
from vlrl.trainer.plan import Plan

RECIPES = [preset for preset in presets() if about_of(preset).get("kind") == "recipe"]
STEPS = 3
ROWS = 16  # of each source that are validated
COUNTED = {"rewards": "score", "group_filters": "dropped", "callbacks": "numbers"}  # slot -> a figure of it
ABOVE_0 = {  # slot -> a figure that is above 0 where it acted
    "reward_shaping": "changed", "loss_terms": "gradient", "token_weights": "changed", "metrics": "numbers",
}  # fmt: skip
SINGLE = ("advantage", "token_credit", "policy_loss", "replay", "trainable", "rollout_budget")


def leaves(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    """(path, value) of all values of a tree, without `about` and what is taken away."""
    if not isinstance(tree, dict):
        yield path, tree
        return
    for key, value in tree.items():
        if key not in ("about", "extends", "*") and value is not None:
            yield from leaves(value, f"{path}.{key}" if path else str(key))


@cache
def ran(preset: str) -> list[PhaseCheck]:
    """The recipe on its own task, as it ships; with the values of its proof where these are needed."""
    found = check(shipped_config(preset), STEPS, rows=ROWS)
    if any(result.bad for result in found) and proof_of(preset):
        found = check(shipped_config(preset, all_values=True), STEPS, rows=ROWS)
    return found


def plan_of(*names: str) -> Plan:
    return Plan.of(load(["base/rl", *names]))


@pytest.mark.parametrize("preset", RECIPES)
def test_every_value_is_read_in_some_phase(preset):
    """A value that each phase sets for itself, or that the recipe's later parts replace, says nothing."""
    config = load(["base/rl", f"tasks/{task_of(preset)}", preset])
    phases = [config.phase(name) for name in config.phases]
    for path, value in leaves({key: own for key, own in own_tree(preset).items() if key != "phases"}):
        if path.endswith(".heldout"):
            continue  # it makes a source of data.heldout
        assert any(at(phase, path) == value for phase in phases), f"{preset}: no phase reads {path}={value}"


@pytest.mark.slow
@pytest.mark.parametrize("preset", params(RECIPES))
def test_every_plug_in_acted(preset):
    checks, tree = ran(preset), own_tree(preset)
    bad = [str(finding) for result in checks for finding in result.bad]
    assert not bad, f"{preset}: {bad}"
    assert {result.phase for result in checks} >= {
        name for name, own in (tree.get("phases") or {}).items() if own is not None
    }
    parts = [tree, *((own or {}) for own in (tree.get("phases") or {}).values())]
    notes = {finding.slot for result in checks for finding in result.findings if finding.level == "note"}
    for part in parts:
        for slot in SINGLE:
            if isinstance(part.get(slot), dict):
                assert any(result.figures.get(slot) for result in checks), f"{preset}: {slot}"
        for slot, figure in (COUNTED | ABOVE_0).items():
            for name, spec in (part.get(slot) or {}).items():
                place = f"{slot}.{name}"
                if name == "*" or spec is None or place in notes:  # a note says what it waits for
                    continue
                tallies = [result.figures.of(place, figure) for result in checks]
                did = [tally.high > 0 if slot in ABOVE_0 else tally.n for tally in tallies]
                assert any(did), f"{preset}: {place} did nothing"


@pytest.mark.parametrize("preset", [p for p in RECIPES if {"select", "data"} & set(own_tree(p))])
def test_the_rows_are_the_recipe_s(preset):
    """Every source has rows, and a selection drops some or orders them anew."""
    plan = plan_of(model_of(task_of(preset)), f"tasks/{task_of(preset)}", preset)
    for phase in plan.phases:
        assert all(len(rows) for rows in phase.rows("train").values()), f"{preset}: a source without rows"
    if "select" in own_tree(preset):
        without = Plan.of(
            load(["base/rl", model_of(task_of(preset)), f"tasks/{task_of(preset)}", preset], ["select=null"])
        )
        kept, all_ = (
            [row.id for rows in one.phases[-1].rows("train").values() for row in list(rows)[:2000]]
            for one in (plan, without)
        )
        assert kept and kept != all_, (
            f"{preset}: select keeps {len(kept)} of {len(all_)} rows, in their order"
        )
