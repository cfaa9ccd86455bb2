"""Every preset acts: its stated proof holds on its own task, and the activity report finds no dead or
contradictory slot.

With the mechanism off, a preset is bit-identical to what it extends; with it on, the stated observable moves
in the stated direction; with the mechanism turned round it does not.
"""

from pathlib import Path

import pytest
from proof_kit.proof import FOLDER, KINDS, about_of, model_of, presets, proof_of, task_of
from proof_kit.prove import prove
from task_kit import params

from vlrl.activity.config_findings import config_findings
from vlrl.config import load
from vlrl.config.config import SLOTS
from vlrl.config.yaml import read_file
from vlrl.plugins import stages as S
from vlrl.plugins.registry import get
from vlrl.trainer.plan import Plan

ROOT = Path(__file__).parents[2]
PRESETS = presets()
PROVEN = [preset for preset in PRESETS if proof_of(preset)]
# `make proofs` runs the others
IN_THE_SUITE = [
    preset
    for preset in PROVEN
    if preset.removeprefix("methods/") in read_file(ROOT / "docs" / "method_notes.yaml")[0]
]
# the default that all others are compared with
BASES = ("methods/grpo",)
MOST_WITHOUT_OPPOSITE = 13  # proofs that state `reversed: none`
THERE_ONLY_WHEN_ON = (
    "methods/tspo",
)  # the agent beside the policy is what is trained: without it none learns


def test_every_proof_is_that_of_a_preset():
    assert [f"methods/{path.stem}" for path in sorted(FOLDER.glob("*.yaml"))] == PROVEN


@pytest.mark.sweep
@pytest.mark.parametrize("preset", PRESETS)
def test_preset_states_kind_task_and_proof(preset):
    about = about_of(preset)
    assert about.get("kind") in KINDS, f"about.kind: one of {KINDS}"
    assert about.get("task"), "about.task: the config of tasks/ on which it is shown"
    if about["kind"] == "method" and preset not in BASES:
        assert preset in PROVEN, "tests/proofs: observe, direction, off"


@pytest.mark.sweep
@pytest.mark.parametrize("preset", PROVEN)
def test_every_proof_knows_its_direction(preset):
    proof = proof_of(preset)
    assert bool(proof.reversed) != bool(proof.why), "reversed: what is turned round, or none with `why`"
    assert "changes" not in proof.observables().values(), "direction: up or down"


def test_few_mechanisms_have_no_opposite():
    without = [preset for preset in PROVEN if proof_of(preset).why]
    assert len(without) <= MOST_WITHOUT_OPPOSITE, without


def reads_earlier_visits(preset):
    """The slots of a preset whose plug-ins act from a later visit of a row on."""
    tree, found = load([preset]).tree, []
    for slot, kind in SLOTS.items():
        spec = tree.get(slot)
        for name in [spec] if isinstance(spec, dict) and "name" in spec else list((spec or {}).values()):
            if isinstance(name, dict) and "name" in name and kind in S.STAGES:
                found += [slot] if get(S.STAGES[kind], name["name"], slot).visits > 1 else []
    return found


def test_what_reads_earlier_visits_ships_with_them():
    """At a preset's own steps, on its own task, every row comes again where a plug-in needs that."""
    needing = [preset for preset in PRESETS if reads_earlier_visits(preset)]
    assert {f"methods/{name}" for name in ("coba_rl", "erpo", "ar3po", "spec_rl", "dcpo")} <= set(needing)
    for preset in needing:
        task = task_of(preset)
        plan = Plan.of(load(["base/rl", model_of(task), f"tasks/{task}", preset]))
        for phase in plan.phases:
            assert not [str(finding) for finding in config_findings(phase) if "visit" in finding.message], (
                preset
            )


@pytest.mark.proof
@pytest.mark.parametrize("preset", params([preset for preset in PROVEN if preset not in IN_THE_SUITE]))
def test_proof(preset):
    verdict = prove(preset, turn=True)
    assert verdict.proven and moves(verdict), str(verdict)


@pytest.mark.sweep
@pytest.mark.parametrize("preset", params(IN_THE_SUITE))
def test_proof_of_a_method_with_a_page(preset):
    verdict = prove(preset, turn=True)
    assert verdict.proven and moves(verdict), str(verdict)


def moves(verdict):
    """Whether the number is there with the mechanism off; one that is not has at least its sign turned."""
    if verdict.off is not None or not proof_of(verdict.preset).reversed:
        return True
    turned = verdict.turned is not None and verdict.on is not None and verdict.on * verdict.turned < 0
    return turned and verdict.preset in THERE_ONLY_WHEN_ON
