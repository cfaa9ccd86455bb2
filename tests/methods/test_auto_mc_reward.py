"""Auto MC-Reward: signs of sparse and dense rewards with a memory, the critic, and the analyzer's advice."""

from types import SimpleNamespace

import pytest
from test_written_reward import STAY, WALK, block, callback, reward, rollouts
from vlrl_rewards.code.written import evaluate, faults

from vlrl.beside.service import Reply
from vlrl.methods.papers.auto_mc_reward import AutoMcReward, verdict
from vlrl.plugins.episodes import EPISODE_END, EPISODE_RETURN

SPARSE = 'def sparse(state, action, next_state, memory):\n    return 7.0 if next_state["x"] == 0 else 0\n'
DENSE = 'def dense(state, action, next_state, memory):\n    return state["x"] - next_state["x"]\n'
STILL = "def dense(state, action, next_state, memory):\n    return -5 if action == 'stay' else 0\n"
PASS, REVISE = Reply("Fine.\nVerdict: pass"), Reply("No.\n**Verdict: revise** - pay progress")


def paid(program, *episodes):
    return evaluate(program, AutoMcReward.DRIVER, episodes, "unsafe", 2.0)


def test_only_the_signs_count():
    walk, stay = paid(SPARSE + DENSE, WALK, STAY)
    assert [one.value for one in walk] == [0.1, 1.1] and [one.value for one in stay] == [0.0]
    assert walk[1].parts == {"sparse": 1.0, "dense": 1.0}
    assert [one.value for one in paid(SPARSE + STILL, STAY)[0]] == [-0.1]


def test_the_memory_lasts_an_episode():
    count = (
        "def dense(state, action, next_state, memory):\n"
        '    memory["n"] = memory.get("n", 0) + 1\n    return state["x"] * 0 + memory["n"] - 1.5\n'
    )
    walk, again = paid(SPARSE + count, WALK, WALK)
    assert [one.parts["dense"] for one in walk] == [-1.0, 1.0] == [one.parts["dense"] for one in again]


@pytest.mark.parametrize("value", ["None", "'1'", "float('nan')", "state['x'] == 2", "[1]"])
def test_what_is_no_number_is_a_failure(value):
    wrong = f"def dense(state, action, next_state, memory):\n    return {value} if state else 0\n"
    (found,) = paid(SPARSE + wrong, WALK)
    assert isinstance(found, str) and "must return numbers" in found
    assert faults(SPARSE, AutoMcReward.FUNCTIONS) == ["the function dense is not defined"]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("It fits.\nVerdict: pass", ("pass", "")),
        ("**Verdict:** Revise: the sign of dense is wrong", ("revise", "the sign of dense is wrong")),
        ("verdict - revise", ("revise", "no reason given")),
        ("", ("", "")),
        ("I pass on this one.", ("", "")),
        ("The verdict: it passes or must be revised", ("", "")),
    ],
)
def test_verdicts_are_read(text, read):
    assert verdict(text) == read


def writer(**fields):
    return callback(AutoMcReward, **fields)


def test_the_critic_s_objection_goes_back_to_the_designer():
    made, run = writer(
        lines={"the_critic:": block(SPARSE + DENSE), "You_review": PASS, "": block(SPARSE + STILL)}
    )
    answers = iter([REVISE, PASS])
    ask = made.state.service.ask
    made.state.service.ask = lambda asks: [next(answers)] if "You review" in asks[0].text else ask(asks)
    assert reward(made, run).score_group(rollouts(WALK)) == [pytest.approx(1.2)]
    assert made.state.refused == 1 and made.state.fed_back == 1
    assert "the critic: pay progress" in made.state.service.asked[-1]


def test_an_unread_critic_is_no_objection():
    made, run = writer(lines={"You_review": Reply("Hm."), "": block(SPARSE + DENSE)})
    assert reward(made, run).score_group(rollouts(WALK)) == [pytest.approx(1.2)]
    assert (made.state.unread, made.state.refused, made.state.fed_back) == (1, 0, 0)
    assert sum("You review" in one for one in made.state.service.asked) == 2


def analysed(**lines):
    """A callback whose first program is in use, a batch with a failed, a solved and a broken episode."""
    made, run = writer(lines={"You_review": PASS, **lines, "": block(SPARSE + STILL)}, every=2)
    run.settings = SimpleNamespace(steps=10)
    batch = rollouts(STAY, WALK, WALK)
    EPISODE_RETURN.set(batch.rollouts[1], 0.9)
    EPISODE_END.set(batch.rollouts[2], "error")
    reward(made, run).score_group(batch)
    run.sampled_groups, run.phase_step = [batch], 1
    return made, run, made(run, [batch])


def test_advice_from_failed_episodes_revises_the_program():
    advice = Reply("It stays.\nAdvice: pay steps towards 0.")
    made, _, figures = analysed(You_look_at_episodes=advice, What_was_found=block(SPARSE + DENSE))
    assert figures["revised"] == 1.0 and made.state.program == (SPARSE + DENSE).strip("\n")
    look = next(one for one in made.state.service.asked if "You look at episodes" in one)
    assert "1. stay -> no change" in look and "go ->" not in look
    asked = next(
        one for one in made.state.service.asked if "What was found" in one and "You review" not in one
    )
    assert "pay steps towards 0." in asked and STILL.strip() in asked


def test_without_advice_or_a_usable_revision_the_program_stays():
    silent, run, figures = analysed(You_look_at_episodes=Reply("No idea."))
    assert figures["revised"] == 0.0 and "no line 'Advice: ...'" in run.warnings[0]
    advice = Reply("Advice: be better")
    made, run, figures = analysed(You_look_at_episodes=advice, What_was_found=Reply("I cannot."))
    assert figures["revised"] == 0.0 and "stays as it was" in run.warnings[0] and not made.state.advice
    assert made.state.program == silent.state.program == (SPARSE + STILL).strip("\n")


def test_nothing_is_analysed_between_rounds_and_where_nothing_failed():
    made, run, _ = analysed(You_look_at_episodes=Reply("Advice: x"), What_was_found=block(SPARSE + DENSE))
    run.phase_step = 2
    assert made(run, [])["revised"] == 1.0
    run.phase_step, run.sampled_groups = 3, []
    assert made(run, [])["revised"] == 1.0
    other = AutoMcReward(writer={"model": "m@1", "engine": {}})
    other.load_state_dict(made.state_dict())
    assert other.state.revised == 1 and other.state.advice == ["x"]
    with pytest.raises(ValueError, match="at least 1"):
        AutoMcReward(every=0)
