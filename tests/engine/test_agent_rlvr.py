"""Agent-RLVR: guidance in the prompt, second attempts of what failed, and what joins the group."""

from types import SimpleNamespace

import pytest
from run_kit import View

from vlrl.engine.fake import Fake
from vlrl.environments.calculator import Calculator
from vlrl.methods.core.sampling import Plain
from vlrl.methods.papers.agent_rlvr import GUIDED, AgentRlvr
from vlrl.plugins.episodes import CONVERSATION
from vlrl.types import Prompt, Row

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "1/0"}}</tool_call>'


def prompt(**fields):
    row = Row("r", "What is 3+4?", "7", **fields)
    return Prompt(row, ({"role": "user", "content": [{"type": "text", "text": row.question}]},))


def play(policy, strategy, first, count=2, helped="7", limit=4096):
    """One group: unguided attempts call the tool, and then write those of `first` in turn; guided ones write
    `helped`."""
    answers = iter(first)
    seen = []

    def respond(request, index):
        text = request.prompt.text
        if "plan" in text:
            seen.append(text)
            return helped
        return next(answers) if request.prefix_ids else CALL

    run = View(
        policy=policy,
        engine=Fake(function=respond),
        sampling=Plain(max_tokens=120),
        settings=SimpleNamespace(error_limit=1.0, max_prompt_tokens=limit),
        environment=Calculator(),
        warn=pytest.fail,
    )
    run.engine.setup(run)

    def score(groups):
        for group in groups:
            for rollout in group:
                rollout.correct = rollout.text.strip().endswith("7")

    run.score = score
    (group,) = strategy([prompt(meta={"guidance": "add the two"})], [count], run)
    return group, seen


def test_failed_attempts_are_tried_again_with_guidance(text_policy):
    strategy = AgentRlvr(text="\nA plan: {guidance}. Before: {attempt}", max_turns=3)
    group, seen = play(text_policy, strategy, ["8", "7"])
    assert [rollout.correct for rollout in group] == [False, True, True] and [
        GUIDED.on(rollout) for rollout in group
    ] == [False, False, True]
    assert len(seen) == 1 and "A plan: add the two" in seen[0] and "ZeroDivisionError" in seen[0], (
        "the tool's error is part of the guidance"
    )
    assert [CONVERSATION[rollout] for rollout in group] == [0, 1, 2] and group.rollouts[
        2
    ].prompt.train is None
    assert all("plan" not in rollout.prompt.text for rollout in group.rollouts[:2])
    strategy.end_step(None)
    assert strategy.metrics() == {"agent_rlvr/tried": (1.0, 0.0), "agent_rlvr/solved": (1.0, 1.0)}


@pytest.mark.parametrize(
    ("keep", "helped", "correct"),
    [
        ("both", "9", [False, False]),
        ("solved", "9", [False, False]),
        ("all", "9", [False, False]),
        ("solved", "7", [True, True]),
        ("all", "7", [True, True]),
    ],
)
def test_what_takes_the_place_of_a_failed_attempt(text_policy, keep, helped, correct):
    group, _ = play(
        text_policy, AgentRlvr(text="plan {guidance}", keep=keep, max_turns=3), ["8", "9"], helped=helped
    )
    assert [rollout.correct for rollout in group] == correct
    assert sum(GUIDED.on(rollout) for rollout in group) == (2 if helped == "7" or keep == "all" else 0)


def test_the_update_may_leave_the_guidance_out(text_policy):
    group, _ = play(text_policy, AgentRlvr(text="plan {guidance}", train_on="plain", max_turns=3), ["8", "8"])
    second = group.rollouts[-1]
    assert (
        second.source == "guided"
        and "plan" not in second.prompt.for_training.text
        and "plan" in second.prompt.text
    )


def test_no_guidance_no_second_attempt(text_policy):
    group, seen = play(text_policy, AgentRlvr(text="plan {guidance}", max_turns=3), ["8", "8"], limit=3)
    assert len(group) == 2 and not seen, "the guided prompt is too long"
    assert AgentRlvr().guided(prompt(), group.rollouts[0], None) is None, (
        "the row has neither guidance nor a demonstration"
    )
    with pytest.raises(ValueError, match="text="):
        AgentRlvr(text="a plan")
