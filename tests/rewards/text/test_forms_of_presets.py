"""What the form rewards of presets pay, beside what their releases pay."""

import pytest

from vlrl.config import load
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward


def rewards_of(preset):
    return load([f"methods/{preset}"]).tree["rewards"]


@pytest.mark.parametrize(
    ("text", "paid"),
    [
        ("<answer>B</answer>", 1.0),
        ("<answer>4</answer>", 1.0),
        ("<answer>2 1, 4\n3</answer>", 1.0),
        ("<answer>[12, 30, 45, 60]</answer>", 1.0),
        ("<answer>b</answer>", 0.0),
        ("<answer>BC</answer>", 0.0),
        ("<answer>2 1 x</answer>", 0.0),
        ("<answer>the left one</answer>", 0.0),
        ("<answer></answer>", 0.0),
        ("So <answer>B</answer>", 0.0),
        ("B", 0.0),
    ],
)
def test_a_puzzle_has_its_form_where_its_answer_can_be_read(rollout, text, paid):
    assert build(Reward, rewards_of("jigsaw_r1")["format"])(rollout("B", text)) == paid


@pytest.mark.parametrize("preset", ["composeskills", "verl", "latr", "ampo"])
@pytest.mark.parametrize(
    ("text", "paid"),
    [
        ("One and two: <answer>3</answer> it is.", 1.0),
        ("<answer></answer>", 1.0),
        ("3", 0.0),
        ("<answer>3", 0.0),
        ("</answer>3<answer>", 0.0),
        ("", 0.0),
    ],
)
def test_a_closed_answer_anywhere_is_the_form(rollout, preset, text, paid):
    assert build(Reward, rewards_of(preset)["format"])(rollout("3", text)) == paid


def test_ampo_wants_each_tag_once(rollout):
    twice = rollout("3", "<answer>1</answer><answer>3</answer>")
    assert build(Reward, rewards_of("ampo")["format"])(twice) == 0.0
    assert build(Reward, rewards_of("latr")["format"])(twice) == 1.0


@pytest.mark.parametrize(
    ("preset", "slot", "right", "levels"),
    [
        ("verl", "", 1.0, [1.0, 0.5, -0.5, -1.0]),  # right in a box, right, wrong in a box, neither
        ("composeskills", "compose", 1.0, [1.0, None, 0.0, -1.0]),
        ("latr", "chains", 0.9, [1.0, None, 0.1, 0.0]),
        ("ampo", "arithmetic", 0.9, [1.0, 0.9, 0.1, 0.0]),
    ],
)
def test_levels_are_those_of_the_release_up_to_a_factor_and_a_constant(preset, slot, right, levels):
    rewards = rewards_of(preset)
    assert not slot or rewards[slot]["weight"] == right
    form = rewards["format"]["weight"]
    ours = [right + form, right, form, 0.0]
    scale = (levels[0] - levels[3]) / (ours[0] - ours[3])
    for said, released in zip(ours, levels, strict=True):
        assert released is None or said * scale + levels[3] == pytest.approx(released, abs=1e-4)
