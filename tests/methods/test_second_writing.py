"""What the policy writes about its own rollouts: MEL's lessons, SSB's explanations, A2D's sub-questions;
and what a text is worth to a frozen solver. A fake engine speaks."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tiny import text_run
from vlrl_rewards.combine.solver_gain import SolverGain

from vlrl.methods.papers.a2d import KEY, QUALITY, A2d, A2dDecompose, A2dQuality
from vlrl.methods.papers.mel import SOLVE_RATE, Mel
from vlrl.methods.papers.ssb import Ssb
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.views import StepView
from vlrl.types import Group, Prompt, Rollout, Row


@pytest.fixture(scope="module")
def opened():
    return text_run([], ["group_size=4", "max_prompt_tokens=4096", "rewards.format=null"])


def played(run, strategy, function, rows=2, count=4):
    """The groups of a strategy whose engine says function(request, index)."""
    run.engine = replace(run.engine, function=function)
    run.engine.setup(run)
    strategy.setup(run)
    prompts = [run.current.prompt_template(run.rows["arithmetic"][i]) for i in range(rows)]
    return prompts, strategy(prompts, [count] * rows, StepView.between_steps(run))


def answer(value):
    return f"<answer>{value}</answer>"


def test_mel_keeps_lessons_that_help(opened):
    def say(request, index):
        text, row = request.prompt.text, request.prompt.row
        if "Where do they part" in text:
            assert answer(row.answer) in text and answer(0) in text
            return "carry the one" if row.id.split("/")[0].endswith("-0") else "guess"
        if "A lesson from such problems" in text:
            return answer(row.answer if "carry the one" in text else 0)
        return answer(row.answer if index == 0 else 0)

    strategy = Mel(replays=2)
    prompts, groups = played(opened, strategy, say)
    assert [group.row.id for group in groups[:2]] == [prompt.row.id for prompt in prompts] and len(
        groups
    ) == 3
    (lesson,) = groups[2].rollouts
    assert (lesson.text, lesson.source, SOLVE_RATE[lesson]) == ("carry the one", "experience", 1.0)
    assert strategy.state.counts == {"lessons": 2, "kept": 1}
    with pytest.raises(ValueError, match="right"):
        Mel(ask="{wrong}")


def test_mel_needs_a_right_and_a_wrong_rollout(opened):
    _, groups = played(opened, Mel(), lambda request, index: answer(request.prompt.row.answer))
    assert len(groups) == 2


def test_ssb_trains_verified_explanations_on_the_plain_prompt(opened):
    shown = []

    def say(request, index):
        text, row = request.prompt.text, request.prompt.row
        if "Two solutions were given" in text:
            shown.append(text)
            return f"because {answer(row.answer if index == 0 else 9999)}"
        return answer([row.answer, 7777, 8888, 7777][index])

    prompts, groups = played(opened, Ssb(tries=2), say)
    for prompt, group in zip(prompts, groups):
        (kept,) = group.rollouts
        assert kept.correct and kept.source == "teacher" and "because" in kept.text
        assert kept.prompt.for_training.key == prompt.key and "Two solutions" in kept.prompt.text
    assert all(
        answer(7777) in text and answer(8888) not in text for text in shown
    )  # the most common wrong one


def test_a2d_pays_sub_questions_that_solve_and_remembers_the_best(opened):
    def say(request, index):
        text, row = request.prompt.text, request.prompt.row
        if "Write the sub-questions" in text:
            return ["bad split", "good split"][index % 2]
        return answer(row.answer if "good split" in text and index == 0 else 0)

    strategy = A2dDecompose(solves=2)
    prompts, groups = played(opened, strategy, say)
    assert all(group.row.task == "decompose" for group in groups)
    tries = [rollout for rollout in groups[0] if not rollout.trained]
    assert len(tries) == 8 and sum(rollout.correct for rollout in tries) == 2
    groups[0].set_untrained_aside()
    rates = [QUALITY[rollout] for rollout in groups[0]]
    assert rates == [0.0, 0.75, 0.0, 0.75]  # one of two tries is right: 1 - (1/2)^2
    groups[0].rollouts[1].reward = 0.1
    assert A2dQuality(weight=2.0)(groups[0])[1] == pytest.approx(1.6)
    assert opened.history[prompts[0].row.id][KEY] == {"text": "good split", "rate": 0.75}


def test_a2d_guides_where_all_fail(opened):
    def say(request, index):
        text, row = request.prompt.text, request.prompt.row
        return answer(row.answer if "good split" in text and index < 2 else 0)

    opened.history[opened.rows["arithmetic"][0].id] = {KEY: {"text": "good split", "rate": 1.0}}
    opened.history.pop(opened.rows["arithmetic"][1].id, None)
    prompts, groups = played(opened, A2d(retries=3), say)
    guided, failed = groups
    assert [rollout.correct for rollout in guided] == [False, False, True, True]
    assert all(r.prompt.for_training.key == prompts[0].key for r in guided)
    assert not any(rollout.correct for rollout in failed) and len(failed) == 4


def solver(function, **fields):
    """A solver_gain whose frozen model answers function(prompt text)."""
    reward = SolverGain(engine={"name": "fake"}, of={"name": "numeric"}, **fields)

    def generate(requests):
        for request in requests:
            for _ in range(request.n):
                yield SimpleNamespace(request=request, ids=[1], text=function(request.prompt.text))

    reward.state.engine = SimpleNamespace(generate=generate)
    return reward


def group_of(*texts, answer="A figure.", **meta):
    prompt = Prompt(Row("1", "Describe.", answer=answer, meta=meta), ())
    return Group(prompt, [Rollout(prompt, [1], text=text) for text in texts])


def test_a_caption_is_worth_what_the_solver_gains():
    def say(text):
        return "<answer>6</answer>" if "2 and 3" in text else "<answer>5</answer>"

    group = group_of(
        "<answer>sides 2 and 3</answer>", "<answer>a box</answer>", problem="Area?", solution="6"
    )
    assert solver(say, ask="{text}\n{problem}", gold="solution").score_group(group) == [1.0, 0.0]
    known = solver(
        lambda text: "<answer>6</answer>", ask="{text}\n{problem}", bare="{problem}", gold="solution"
    )
    assert known.score_group(group) == [0.0, 0.0]  # the solver needs no caption
    assert solver(say, ask="{text}{missing}", gold="solution").score_group(group) == [0.0, 0.0]


def test_only_critiques_of_wrong_solutions_are_refined():
    reward = solver(lambda text: "<answer>6</answer>", ask="{text}", gold="gold", when="no", part="text")
    assert reward.score_group(group_of("bad", answer="no", gold="6")) == [1.0]
    assert reward.score_group(group_of("bad", answer="yes", gold="6")) == [0.0]


def test_a_solver_must_be_named_and_asked():
    with pytest.raises(ConfigError, match="engine is not set"):
        SolverGain().setup(SimpleNamespace())
    with pytest.raises(ValueError, match="must hold"):
        SolverGain(ask="{question}")
    with pytest.raises(RuntimeError, match="opened by setup"):
        SolverGain()(group_of("x").rollouts[0])
