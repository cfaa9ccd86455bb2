"""Every preset acts: its stated proof holds on its own task, and the activity report finds no dead or
contradictory slot.

With the mechanism off, a preset is bit-identical to what it extends; with it on, the stated observable moves
in the stated direction; with the mechanism turned round it does not.
"""

import pytest
from proof_kit.proof import FOLDER, KINDS, about_of, presets, proof_of
from proof_kit.prove import prove

PRESETS = presets()
PROVEN = [preset for preset in PRESETS if proof_of(preset)]
# the default that all others are compared with
BASES = ("methods/grpo",)
MOST_WITHOUT_OPPOSITE = 13  # proofs that state `reversed: none`


def test_every_proof_is_that_of_a_preset():
    assert [f"methods/{path.stem}" for path in sorted(FOLDER.glob("*.yaml"))] == PROVEN


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_states_kind_task_and_proof(preset):
    about = about_of(preset)
    assert about.get("kind") in KINDS, f"about.kind: one of {KINDS}"
    assert about.get("task"), "about.task: the config of tasks/ on which it is shown"
    if about["kind"] == "method" and preset not in BASES:
        assert preset in PROVEN, "tests/proofs: observe, direction, off"


@pytest.mark.parametrize("preset", PROVEN)
def test_every_proof_knows_its_direction(preset):
    proof = proof_of(preset)
    assert bool(proof.reversed) != bool(proof.why), "reversed: what is turned round, or none with `why`"
    if proof.reversed:
        assert proof.direction != "changes", "direction: up or down"


def test_few_mechanisms_have_no_opposite():
    without = [preset for preset in PROVEN if proof_of(preset).why]
    assert len(without) <= MOST_WITHOUT_OPPOSITE, without


@pytest.mark.parametrize("preset", PROVEN)
def test_proof(preset):
    verdict = prove(preset, turn=True)
    assert verdict.proven, str(verdict)
    if proof_of(preset).reversed:
        assert verdict.off is not None, f"{verdict.observe} is there only where the mechanism is"
