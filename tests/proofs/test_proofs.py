"""Every preset acts: its stated proof holds on its own task, and the activity report finds no dead or
contradictory slot.

With the mechanism off, a preset is bit-identical to what it extends; with it on, the stated observable moves
in the stated direction.
"""

import pytest

from vlrl.activity.proof import KINDS, about_of, proof_of, prove
from vlrl.config import folders

METHODS = folders()[-1] / "methods"
PRESETS = sorted(f"methods/{path.stem}" for path in METHODS.glob("*.yaml"))
ABOUT = {preset: about_of(preset) for preset in PRESETS}
# the default that all others are compared with
BASES = ("methods/grpo",)


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_states_kind_task_and_proof(preset):
    about = ABOUT[preset]
    assert about.get("kind") in KINDS, f"about.kind: one of {KINDS}"
    assert about.get("task"), "about.task: the config of tasks/ on which it is shown"
    if about["kind"] == "method" and preset not in BASES:
        assert proof_of(about, preset) is not None, "about.proof: observe, direction, off"


@pytest.mark.parametrize("preset", [preset for preset in PRESETS if ABOUT[preset].get("proof")])
def test_proof(preset):
    verdict = prove(preset)
    assert verdict.holds and verdict.off_is_base and not verdict.bad, str(verdict)
