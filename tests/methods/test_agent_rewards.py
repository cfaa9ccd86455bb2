"""Rewards of agents by hand: gates, bonuses for calls, F1 of calls."""

from types import SimpleNamespace

import pytest
from vlrl_rewards.tool_use import ToolF1, ToolFormat, ToolSuccess

from vlrl.methods.papers.g_ra import GRa
from vlrl.methods.papers.retool import RetoolCallBonus
from vlrl.methods.papers.tool_star import ToolStarHierarchicalReward
from vlrl.plugins.episodes import ACTIONS, CALLS, INVALID_ACTIONS, TURN_PARTS
from vlrl.plugins.registry import ConfigError
from vlrl.types import Group, Prompt, Rollout, Row

CALL = '<tool_call>{"name": "NAME", "arguments": {}}</tool_call>'


def rollout(*actions, invalid=0, solved=0.0, correct=False, rewards=None, row=None):
    made = Rollout(
        Prompt(row or Row("a", "q", 7), ()),
        [1],
        "\n".join(actions),
        correct=correct,
        rewards=dict(rewards or {}),
    )
    ACTIONS.set(made, [action.replace("CALL", CALL.replace("NAME", "f")) for action in actions])
    INVALID_ACTIONS.set(made, invalid)
    CALLS.set(made, len(actions) - 1)
    TURN_PARTS.set(made, {"solved": solved})
    return made


def grouped(shaping, *rollouts, rewards=None):
    slots = {slot: SimpleNamespace(weight=weight, correct_at=1.0) for slot, weight in (rewards or {}).items()}
    shaping._attached[:] = [SimpleNamespace(rewards=slots)]
    return shaping(Group(rollouts[0].prompt, list(rollouts)))


def test_g_ra_counts_a_reward_only_where_those_before_it_reach_their_thresholds():
    weights = {"answer": 2.0, "step": 0.5, "style": 0.1, "other": 1.0}
    made = [
        rollout("x", rewards={"answer": 1.0, "step": 0.6, "style": 1.0, "other": 3.0}),
        rollout("x", rewards={"answer": 1.0, "step": 0.2, "style": 1.0, "other": 3.0}),
        rollout("x", rewards={"answer": 0.0, "step": 0.6, "style": 1.0, "other": 3.0}),
        rollout("x", rewards={"step": 0.6, "style": 1.0}),
    ]
    for one in made:
        one.reward = sum(weights[slot] * value for slot, value in one.rewards.items())
    shaping = GRa(levels=(("answer", 1.0), ("step", 0.5), ("style", 9.0)))
    assert grouped(shaping, *made, rewards=weights) == pytest.approx([2 + 0.3 + 0.1 + 3, 2 + 0.1 + 3, 3, 0])
    shaping.end_step(None)
    assert shaping.metrics() == {"g_ra/closed": (2.0, 4.0)}


def test_g_ra_names_slots_that_exist():
    run = SimpleNamespace(rewards={"answer": 1, "step": 2})
    GRa(levels=(("answer", 1.0), ("step", 0.0))).check(run)
    for levels in ((("answer", 1.0),), (("answer", 1.0), ("steps", 0.0))):
        with pytest.raises(ConfigError, match="levels"):
            GRa(levels=levels).check(run)


def test_retool_pays_wrong_answers_for_calls_up_to_the_cap():
    made = [rollout(*["x"] * (calls + 1)) for calls in (0, 1, 2, 4, 10, 40)]
    assert grouped(RetoolCallBonus(), *made) == pytest.approx([-1.1, -1.05, -1.0, -0.9, -0.6, -0.6])
    assert grouped(RetoolCallBonus(), rollout("x", correct=True), rollout(*["x"] * 41, correct=True)) == [
        1.0,
        1.0,
    ]
    with pytest.raises(ValueError, match="cap"):
        RetoolCallBonus(cap=1.0)


def test_tool_star_pays_format_then_answer_then_both_tools():
    both = (CALL.replace("NAME", "search"), CALL.replace("NAME", "python"), "<answer>7</answer>")
    one = (both[0], both[0], "<answer>7</answer>")
    shaping = ToolStarHierarchicalReward(answer="a", format="f", tools=("search", "python"))
    cases = [
        (both, 0.5, 1.0),
        (one, 0.5, 1.0),
        (both, 0.0, 1.0),
        (both, 1.0, 0.0),
        (("{", "<tool_call>{</tool_call>"), 1.0, 1.0),
    ]
    made = [rollout(*actions, rewards={"a": answer, "f": form}) for actions, answer, form in cases]
    assert grouped(shaping, *made, rewards={"a": 1.0, "f": 1.0}) == pytest.approx([0.6, 0.5, 0.0, -1.0, 1.0])
    with pytest.raises(ConfigError, match="reads reward 'f'"):
        shaping.check(SimpleNamespace(rewards={"a": 1}))


def test_tool_success_is_the_share_of_good_calls():
    assert ToolSuccess()(rollout("CALL", "CALL", "CALL", "3", invalid=1)) == pytest.approx(2 / 3)
    assert ToolSuccess()(rollout("3")) == 0.0 and ToolSuccess()(rollout("CALL", invalid=1)) == 0.0
    assert ToolSuccess(mode="count", limit=2)(rollout("CALL", "CALL", "CALL", "3")) == 2.0


def test_tool_success_of_a_text_that_was_no_episode():
    text = CALL + "<tool_call>{</tool_call><answer>7</answer>"
    assert ToolSuccess()(Rollout(Prompt(Row("a", "q", 7), ()), [1], text)) == 0.5


def test_tool_f1_pays_needed_calls_and_the_answer():
    row = Row("a", "q", 1234, meta={"goals": [("f", "1"), ("f", "2")]})
    score = ToolF1()
    assert score(rollout("CALL", "CALL", "It is 1,234.", solved=2, row=row)) == pytest.approx(2 * 2 / 4 + 1)
    assert score(rollout("CALL", "CALL", "CALL", "CALL", "1234", solved=2, row=row)) == pytest.approx(
        2 * 2 / 6 + 1
    ), "calls that are not needed cost"
    assert score(rollout("CALL", "1234", solved=1, row=row)) == pytest.approx(2 / 3 + 1 / 2)
    assert score(rollout("1234", row=row)) == pytest.approx(1 / 3), "guessed"
    assert score(rollout("CALL", "9", solved=0, row=row)) == 0.0
    assert score(rollout("", row=row)) == -0.5 and score(rollout("<tool_call>{", row=row)) == -0.3
    assert score(rollout("CALL", "CALL", solved=1, row=row)) == pytest.approx(2 / 4), "cut off: no answer"
    assert score(rollout("7")) == 1.0, "no sub-questions"
    assert score(rollout("6, 7, 8")) == score(rollout("17")) == score(rollout("<think>7</think>8")) == 0.0, (
        "candidates are no answer"
    )


@pytest.mark.parametrize(
    ("turns", "settings", "score"),
    [
        (
            ("<think>a</think>CALL", "<think>b</think><answer>\\boxed{3}</answer>"),
            {"thoughts": 1, "boxed": True},
            1.0,
        ),
        (("CALL", "<answer>3</answer>"), {}, 1.0),
        (("CALL", "<answer>3</answer>"), {"thoughts": 1}, 0.0),
        (("CALL", "<answer>3</answer>"), {"boxed": True}, 0.0),
        (("<tool_call>{</tool_call>", "<answer>3</answer>"), {}, 0.0),
        (("<tool_call>", "<answer>3</answer>"), {}, 0.0),
        (("<answer>3</answer>CALL", "3"), {}, 0.0),
        (("<answer>3</answer><answer>4</answer>",), {}, 0.0),
        (("<think>a<answer>3</answer>",), {}, 0.0),
        (("CALL", "<answer> </answer>"), {}, 0.0),
        (("CALL", "<answer>\\boxed{ }</answer>"), {"boxed": True}, 0.0),
        (("CALL", "<answer>3</answer>CALL"), {}, 0.0),
        ((), {}, 0.0),
    ],
)
def test_tool_format(turns, settings, score):
    assert ToolFormat(**settings)(rollout(*turns)) == score
