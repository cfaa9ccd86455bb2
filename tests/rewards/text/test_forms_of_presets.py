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


@pytest.mark.parametrize(
    ("text", "paid"),
    [
        ("One and two.\nSo <answer> 3 </answer>", 1.0),
        ("<answer>3</answer>", 1.0),
        ("One and two.\n<answer>4</answer>", 0.1),
        ("<answer>3</answer>\nSo it is three.", 0.0),
        ("<answer>\n3\n</answer>", 0.0),
        ("3", 0.0),
        ("", 0.0),
    ],
)
def test_rover_pays_for_tags_in_the_last_line(rollout, text, paid):
    rewards = rewards_of("rover")
    pays = [build(Reward, rewards[slot])(rollout("3", text)) * rewards[slot]["weight"] for slot in rewards]
    assert sum(pays) == pytest.approx(paid)


@pytest.mark.parametrize(
    ("text", "paid"),
    [
        ("<think>1+2=3</think><answer>3</answer>", 1.0),
        ("<think>1+2=3</think><answer>3", 1.0),
        ("<think>1+2=3</think>3", 0.0),
        ("<think>1+2=3</think>The answer is 3.", 0.0),
        ("<think>1+2=3</think><answer>4</answer>", 0.0),
    ],
)
def test_interplay_pays_answers_in_their_tag(rollout, text, paid):
    answer = build(Reward, rewards_of("premidrl_interplay")["chains"]["parts"]["answer"])
    assert answer(rollout("3", text)) == paid


def test_gui_r1_pays_actions_in_answer_tags(rollout):
    reward = build(Reward, rewards_of("gui_r1")["gui"])
    action = "[{'action': 'press_home', 'point': [-100, -100], 'input_text': 'no input text'}]"
    gold = {"action": "press_home"}
    assert reward(rollout(gold, f"<think>Home.</think><answer>{action}</answer>")) == 1.0
    assert reward(rollout(gold, f"<answer>{action}</answer>")) == 1.0
    assert reward(rollout(gold, action)) == reward(rollout(gold, f"<think>Home.</think>{action}")) == 0.0


@pytest.mark.parametrize(
    ("preset", "slot", "gold", "said"),
    [
        ("zerosearch", "answer", "Rome", "Rome"),
        ("ssrl", "answer", "Rome", "Rome"),
        ("asearcher", "answer", "Rome", "Rome"),
        ("rover", "chains", "3", "3"),
        ("univg_r1", "grounding", [10, 10, 30, 30], "(10,10),(30,30)"),
    ],
)
def test_an_answer_without_its_tags_earns_nothing_as_in_the_release(rollout, preset, slot, gold, said):
    reward = build(Reward, rewards_of(preset)[slot])
    assert reward(rollout(gold, f"<think>So.</think><answer>{said}</answer>")) == 1.0
    for untagged in (said, f"<think>So.</think>{said}", f"<think>So.</think>The answer is {said}."):
        assert reward(rollout(gold, untagged)) == 0.0
