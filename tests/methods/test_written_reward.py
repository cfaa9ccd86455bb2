"""Programs that pay: what the critic refuses, what the sandbox says, how failures go back to the writer."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from make import group
from run_kit import View
from vlrl_rewards.code import written
from vlrl_rewards.code.written import WrittenReward, evaluate, faults, trajectory

from vlrl.beside.service import Reply
from vlrl.methods.common.written_reward import SHARED, means, shown_episode, success
from vlrl.methods.papers.text2reward import Text2Reward
from vlrl.plugins.episodes import CONVERSATION, END_STATE, EPISODE_RETURN, TURN_REWARDS, TURN_STATES
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.scoring import NoScore

FUNCTIONS, DRIVER = Text2Reward.FUNCTIONS, Text2Reward.DRIVER
HEAD = "def compute_dense_reward(state, action, next_state):\n"
NEARER = HEAD + '    return abs(state["x"]) - abs(next_state["x"])\n'
WALK = [[{"x": 2}, "go", {"x": 1}], [{"x": 1}, "go", {"x": 0}]]
STAY = [[{"x": 2}, "stay", {"x": 2}]]


def paid(program, *episodes):
    return evaluate(program, DRIVER, episodes, "unsafe", 2.0)


class Writer:
    """Replies by what a prompt contains, the first key that fits; keeps what was asked."""

    def __init__(self, **lines):
        self.lines, self.asked, self.usage = lines, [], SimpleNamespace()

    def ask(self, asks):
        self.asked += [one.text for one in asks]
        return [
            next(reply for key, reply in self.lines.items() if key.replace("_", " ") in one.text)
            for one in asks
        ]


def block(program):
    return Reply(f"Here it is.\n```python\n{program}```")


def callback(cls=Text2Reward, **fields):
    """A callback with a fake model; `lines` are its replies."""
    lines = fields.pop("lines")
    made = cls(writer={"model": "m@1", "engine": {}}, sandbox="unsafe", **fields)
    environment = SimpleNamespace(state_description="x: int\n", actions=("go", "stay"))
    rows = {"all": [group(1.0).row]}
    run = View(environment=environment, rows=rows, shared=None)
    shared = {SHARED: {"writer": made}}
    run.shared = lambda name, make: shared.setdefault(name, make())
    made._attached[:] = [run]
    made.state.service = Writer(**lines)
    return made, run


def rollouts(*episodes):
    """A group whose rollouts have these episodes."""
    made = group(*[0.0] * len(episodes))
    for number, (rollout, episode) in enumerate(zip(made, episodes)):
        states = [{**episode[0][0], "action": ""}] if episode else [{"x": 2, "action": ""}]
        states += [{**after, "action": action} for _, action, after in episode]
        texts = [json.dumps(state) for state in states]
        TURN_STATES.set(rollout, texts[: max(len(episode), 1)])
        END_STATE.set(rollout, texts[-1] if episode else "")
        TURN_REWARDS.set(rollout, [0.0] * max(len(episode), 1))
        CONVERSATION.set(rollout, number)
    return made


# --- the critic ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("", "no program"),
        ("def compute_dense_reward(:\n", "line 1: SyntaxError"),
        ("def other(state, action, next_state):\n    return 1\n", "compute_dense_reward is not defined"),
        ("def compute_dense_reward(state):\n    return state\n", "takes 1 arguments; it is called with 3"),
        (HEAD + "    return 1.0\n", "reads none of its arguments"),
        (HEAD + '    state["x"]\n', "returns nothing"),
        ("import os\n" + NEARER, "line 1: os cannot be imported"),
        ("from socket import socket\n" + NEARER, "socket cannot be imported"),
        (HEAD + '    return open(state["x"])\n', "open may not be used"),
        (HEAD + "    return state.__class__\n", "__class__ may not be used"),
        (HEAD + '    return next_state["door"]\n', "a state has no 'door'; it has x"),
        (NEARER + "#" * written.MAX_CHARS, "characters; at most"),
    ],
)
def test_the_critic_refuses_before_anything_runs(program, fault):
    assert any(fault in one for one in faults(program, FUNCTIONS, ["x"])), faults(program, FUNCTIONS, ["x"])


def test_the_critic_lets_a_program_pass():
    assert faults("import math\n" + NEARER, FUNCTIONS, ["x"]) == []
    assert (
        faults(HEAD.replace("next_state)", "next_state, scale=1.0)") + "    return state\n", FUNCTIONS) == []
    )


# --- the run ------------------------------------------------------------------------------------------------


def test_a_program_pays_turn_by_turn():
    walk, stay = paid(NEARER, WALK, STAY)
    assert [one.value for one in walk] == [1.0, 1.0] and [one.value for one in stay] == [0.0]
    assert means([walk, stay, "failed"]) == {"reward": [0.5, 1.0]}


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("    return state['y']\n", "KeyError"),
        ("    return 1 / state['x'] / next_state['x']\n", "ZeroDivisionError"),
        ("    return float('nan') * state['x']\n", "turn 1: the reward is nan, which is not finite"),
        ("    return float('inf') + state['x']\n", "which is not finite"),
        ("    return state['x'] == 2\n", "a bool and no number"),
        ("    return str(state)\n", "a str and no number"),
        ("    return None if state else 1\n", "a NoneType and no number"),
        ("    while state:\n        pass\n    return 1\n", "timeout"),
        ("    import sys\n    sys.exit(state['x'])\n    return 1\n", "exit status 1"),
    ],
)
def test_a_failure_is_a_text_and_no_number(body, failure):
    (found,) = evaluate(HEAD + body, DRIVER, [WALK], "unsafe", 0.3)
    assert isinstance(found, str) and failure in found


def test_a_program_cannot_say_what_it_paid():
    """What it writes on its output is no result, and a driver of its own does not replace the real one."""
    forged = HEAD + '    print("[[9, {}], [9, {}]]")\n    return 0 * state["x"]\n'
    own = NEARER + "def f(steps):\n    return [[9, {}] for _ in steps]\n"
    assert [[one.value for one in found] for found in paid(forged, WALK)] == [[0.0, 0.0]]
    assert [[one.value for one in found] for found in paid(own, WALK)] == [[1.0, 1.0]]


# --- the reward ---------------------------------------------------------------------------------------------


def reward(made, run, **fields):
    found = WrittenReward(**fields)
    found.setup(run)
    return found


def test_right_wrong_garbage_and_empty_episodes():
    made, run = callback(lines={"": block(NEARER)})
    away = [[{"x": 2}, "go", {"x": 3}]]
    garbage = [[{"x": 2}, "invalid", {"x": 2}]]
    batch = rollouts(WALK, away, garbage, [])
    found = reward(made, run, weight=0.5)
    found.prepare([batch])
    assert found.score_group(batch) == [2.0, -1.0, 0.0, 0.0]
    assert [TURN_REWARDS[one] for one in batch] == [[0.5, 0.5], [-0.5], [0.0], [0.0]]
    assert len(made.state.service.asked) == 1 and found(batch.rollouts[0]) == 2.0


def test_a_failure_goes_back_to_the_writer_and_is_never_a_score():
    broken = HEAD + '    return missing(state["x"])\n'
    made, run = callback(lines={"cannot_be_used": block(NEARER), "": block(broken)})
    batch = rollouts(WALK, STAY)
    assert reward(made, run).score_group(batch) == [2.0, 0.0]
    asked = made.state.service.asked
    assert len(asked) == 2 and "name 'missing' is not defined" in asked[1] and broken in asked[1]
    assert made.figures() == {"written": 2, "fed_back": 1, "unusable": 0}


def test_a_program_that_fails_later_is_mended_then():
    fragile = HEAD + '    return 1 / state["x"]\n'
    made, run = callback(lines={"ZeroDivisionError": block(NEARER), "": block(fragile)})
    found = reward(made, run)
    assert found.score_group(rollouts(STAY)) == [0.5]
    found.prepare([rollouts(STAY, WALK, [[{"x": 0}, "go", {"x": 1}]])])
    assert made.state.program == NEARER.strip("\n") and made.state.fed_back == 1
    assert found.score_group(rollouts([[{"x": 0}, "go", {"x": 1}]], WALK)) == [-1.0, 2.0]


def test_without_a_program_there_is_no_score():
    made, run = callback(lines={"": Reply("I would rather not.")}, repairs=1)
    batch = rollouts(WALK)
    (found,) = reward(made, run).score_group(batch)
    assert isinstance(found, NoScore) and "no program could be written" in str(found)
    assert TURN_REWARDS[batch.rollouts[0]] == [0.0, 0.0] and made.state.unusable == 1
    with pytest.raises(NoScore):
        reward(made, run)(batch.rollouts[0])
    silent, run = callback(lines={"": Reply(failure="no route")})
    (found,) = reward(silent, run).score_group(rollouts(WALK))
    assert isinstance(found, NoScore) and silent.state.written == 0


def test_before_setup_and_without_states():
    with pytest.raises(RuntimeError, match="before setup"):
        WrittenReward().score_group(rollouts(WALK))
    made = rollouts(WALK)
    END_STATE.set(made.rollouts[0], "5")
    with pytest.raises(ValueError, match="no JSON object"):
        trajectory(made.rollouts[0])
    assert trajectory(rollouts(WALK).rollouts[0]) == WALK and trajectory(rollouts([]).rollouts[0]) == []


def test_episodes_as_text_and_their_success():
    assert (
        shown_episode([*WALK, *STAY])
        == 'begin: {"x": 2}\n1. go -> {"x": 1}\n2. go -> {"x": 0}\n3. stay -> no change'
    )
    assert shown_episode([]) == "begin: {}"
    batch = rollouts(WALK, STAY)
    EPISODE_RETURN.set(batch.rollouts[0], 0.9)
    assert success([batch]) == pytest.approx(0.45) and success([]) == 0.0
    CONVERSATION.set(batch.rollouts[1], 0)  # two segments of one conversation: the last one counts
    assert success([batch]) == 0.0


# --- Text2Reward's rounds -----------------------------------------------------------------------------------


def test_feedback_writes_the_program_anew_and_the_policy_begins_again(tmp_path):
    import torch

    file = tmp_path / "trajectory.jsonl"
    line = {"general_code": "x", "description": "It stays.", "feedback": "Pay for steps to the left."}
    left = HEAD + '    return 2 * (state["x"] - next_state["x"])\n'
    made, run = callback(lines={"Pay_for_steps": block(left), "": block(NEARER)}, every=2, feedback=str(file))
    model = torch.nn.Linear(1, 1)
    run.policy = SimpleNamespace(model=model)
    run.optimizer = SimpleNamespace(state={"moments": 1})
    run.engine = SimpleNamespace(sync=lambda policy: None)
    run.settings = SimpleNamespace(steps=10)
    made.keep_start(run)
    first = model.weight.item()
    reward(made, run).score_group(rollouts(WALK))
    with torch.no_grad():
        model.weight.add_(1.0)
    run.phase_step = 1
    assert made(run, [])["rounds"] == 0.0 and model.weight.item() == pytest.approx(first + 1)  # no line yet
    file.write_text(json.dumps(line) + "\n")
    run.phase_step = 2
    assert made(run, [])["rounds"] == 0.0  # not the end of a round
    run.phase_step = 3
    assert made(run, [])["rounds"] == 1.0
    assert made.state.program == left.strip("\n") and model.weight.item() == first and not run.optimizer.state
    asked = made.state.service.asked[-1]
    assert "It stays." in asked and NEARER.strip() in asked
    again = Text2Reward(writer=made.writer, every=2, feedback=str(file))
    again.load_state_dict(made.state_dict())
    assert again.state.program == made.state.program and again.state.history == made.state.history


def test_an_unusable_new_program_changes_nothing(tmp_path):
    file = tmp_path / "trajectory.jsonl"
    file.write_text('{"description": "a", "feedback": "b"}\n')
    made, run = callback(lines={"An_earlier": Reply("no"), "": block(NEARER)}, every=1, feedback=str(file))
    run.settings = SimpleNamespace(steps=10)
    reward(made, run).score_group(rollouts(WALK))
    made(run, [])
    assert made.state.program == NEARER.strip("\n") and "stays as it was" in run.warnings[0]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"every": 3}, "belong together"),
        ({"repairs": -1}, "must not be negative"),
        ({"seconds": 0.0}, "must be above 0"),
    ],
)
def test_bad_settings_say_so(fields, error):
    with pytest.raises(ValueError, match=error):
        Text2Reward(writer={"model": "m@1", "engine": {}}, **fields)


def test_a_writer_needs_a_model_and_one_process():
    with pytest.raises(ConfigError, match="callbacks: 'text2reward': writer"):
        Text2Reward().check(View())
    made, run = callback(lines={"": block(NEARER)})
    with pytest.raises(ConfigError, match="train in one process"):
        replace(made).setup(View(ranks=2))
    run.params_sharded, run.policy = True, None
    with pytest.raises(ConfigError, match="ZeRO-2"):
        made.keep_start(run)
