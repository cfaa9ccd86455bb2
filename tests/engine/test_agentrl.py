"""AgentRL: normalisation within tasks by hand, and turns of two policies."""

import math

import pytest
from run_kit import View

from vlrl.engine.fake import Fake
from vlrl.methods.papers.agentrl import Agentrl, AgentrlTaskAdvantage, token_moments
from vlrl.types import Group, Prompt, Request, Rollout, Row, Sampling


def group(task, *pairs):
    prompt = Prompt(Row("a", "q", task=task), ())
    return Group(prompt, [Rollout(prompt, [0] * n, reward=reward) for reward, n in pairs])


def test_each_task_has_mean_0_and_variance_1_over_its_tokens():
    groups = [group("a", (1, 3), (0, 1)), group("b", (5, 2), (0, 2), (0, 6)), group("a", (0, 1), (1, 1))]
    values = AgentrlTaskAdvantage(scale="none", eps=0.0)(groups)
    plain = {"a": [(0.5, 3), (-0.5, 1), (-0.5, 1), (0.5, 1)], "b": [(10 / 3, 2), (-5 / 3, 2), (-5 / 3, 6)]}
    for task, pairs in plain.items():
        mean = sum(v * n for v, n in pairs) / sum(n for _, n in pairs)
        std = math.sqrt(sum(n * (v - mean) ** 2 for v, n in pairs) / sum(n for _, n in pairs))
        found = [value for g, own in zip(groups, values) if g.row.task == task for value in own]
        assert found == pytest.approx([(v - mean) / std for v, _ in pairs])
    lengths = [len(rollout) for g in groups for rollout in g if g.row.task == "b"]
    assert sum(v * n for v, n in zip(values[1], lengths)) == pytest.approx(0)


def test_a_task_without_differences_gets_0_and_masked_tokens_do_not_count():
    assert AgentrlTaskAdvantage()([group("a", (1, 2), (1, 3))]) == [[0.0, 0.0]]
    made = group("a", (1, 4), (0, 4))
    made.rollouts[0].loss_mask = [True, False, False, False]
    assert token_moments([(1.0, made.rollouts[0]), (0.0, made.rollouts[1])])[0] == pytest.approx(1 / 5)
    assert token_moments([]) == (0.0, 0.0)


@pytest.mark.parametrize(("share", "stale"), [(0.0, 0), (1.0, 40)])
def test_turns_come_from_the_policy_that_was_drawn(text_policy, tools, share, stale):
    def engine(word):
        made = Fake(function=lambda request, index: word)
        made.setup(View(policy=text_policy))
        return made

    run, strategy = View(engine=engine("now")), Agentrl(share=share)
    strategy.state.engine = engine("before")
    requests = [Request(tools.prompt("Go"), Sampling(), seed=seed) for seed in range(40)]
    texts = [completion.text for completion in strategy.turns(requests, run)]
    assert texts.count("before") == stale and len(texts) == 40
    mixed = Agentrl(share=0.5)
    mixed.state.engine = engine("before")
    drawn = {c.request.seed: c.text for c in mixed.turns(requests, run)}
    assert 8 < list(drawn.values()).count("before") < 32
    assert drawn == {c.request.seed: c.text for c in mixed.turns(requests[::-1], run)}, (
        "the draw belongs to the request"
    )


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="share="):
        Agentrl(share=2.0)
    with pytest.raises(ValueError, match="every=0"):
        Agentrl(every=0)
