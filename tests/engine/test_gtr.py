"""GTR: tokens of thoughts, their weight, and corrected thoughts that are aggregated."""

from types import SimpleNamespace

import pytest
import torch
from run_kit import View

from vlrl.engine.fake import Fake
from vlrl.methods.core.sampling import Plain
from vlrl.methods.papers.gtr import Gtr, GtrThoughtWeight, thought_tokens
from vlrl.types import Group, Rollout


def rollout(policy, prompt, text, source="policy"):
    return Rollout(prompt, policy.encode_text(text), text, source=source)


def test_thought_tokens_end_with_the_closing_tag(text_policy, tools):
    for text in (
        "<think>a b c</think><answer>3</answer>",
        "<answer>3</answer>",
        "<think>open",
        "</think>",
        "",
    ):
        made = rollout(text_policy, tools.prompt("Go"), text)
        n = thought_tokens(made, text_policy)
        head = text_policy.decode(made.ids[:n])
        assert ("</think>" in head) == ("</think>" in text) and "</think>" not in text_policy.decode(
            made.ids[: max(n - 1, 0)]
        )


def test_weights(text_policy, tools):
    prompt = tools.prompt("Go")
    made = [
        rollout(text_policy, prompt, "<think>x</think>y"),
        rollout(text_policy, prompt, "y"),
        rollout(text_policy, prompt, "<think>x</think>", "corrected"),
    ]
    weight = GtrThoughtWeight(thought=0.25)
    weight._attached[:] = [View(policy=text_policy)]
    batch = SimpleNamespace(rollouts=made)
    length = max(map(len, made))
    values = weight(SimpleNamespace(mask_BT=torch.ones(3, length), batch=batch))
    n = thought_tokens(made[0], text_policy)
    assert (
        values[0].tolist() == [0.25] * n + [1.0] * (length - n)
        and values[1].tolist() == [1.0] * length
        and values[2].tolist() == [0.0] * length
    )


def test_corrected_thoughts_are_aggregated_and_drawn(text_policy, tools):
    prompt, asked = tools.prompt("Go"), []

    def correct(request, index):
        asked.append(request.prompt.text)
        return "<think>better</think><answer>9</answer>" if "bad" in request.prompt.text else "good"

    run = View(policy=text_policy, sampling=Plain(max_tokens=99))
    replay = Gtr(asked=3, batch=2, size=4)
    replay._attached[:] = [run]
    replay.state.corrector = Fake(function=correct)
    replay.state.corrector.setup(run)
    thoughts = ["<think>bad</think>1", "<think>good</think>2", "no thought", "<think>bad <|im_end|></think>1"]
    groups = [Group(prompt, [rollout(text_policy, prompt, text) for text in thoughts])]
    found = replay(groups)
    assert found[0] is groups[0] and len(found) == 3 and len(replay.state.pairs) == 3 and len(asked) == 3
    texts = [group.rollouts[0].text for group in replay.state.pairs]
    assert sorted(texts) == ["<think>better</think>", "<think>better</think>", "<think>good</think>"], (
        "the thought alone, without an action"
    )
    assert all(
        len(group) == 1 and group.rollouts[0].source == "corrected" and group.prompt is prompt
        for group in found[1:]
    )
    assert not any("<|im_end|>" in text for text in asked), "a thought cannot end the corrector's prompt"
    replay.end_step(run)
    assert replay.metrics() == {"gtr/corrected": (3.0, 0.0), "gtr/rewritten": (2.0, 3.0)}
    run.step = 2
    replay(groups)
    assert len(replay.state.pairs) == 4, "the newest `size` stay"


def test_a_drawn_thought_brings_no_values_of_an_earlier_step(text_policy, tools):
    run = View(policy=text_policy, sampling=Plain(max_tokens=99))
    replay = Gtr(asked=1, batch=1)
    replay._attached[:] = [run]
    replay.state.corrector = Fake(function=lambda request, index: "better")
    replay.state.corrector.setup(run)
    groups = [Group(tools.prompt("Go"), [rollout(text_policy, tools.prompt("Go"), "<think>bad</think>1")])]
    (first,) = replay(groups)[-1]
    assert first.logp == [], "the policy has not sampled it"
    first.signals["old_logp"], first.info["return"] = [-1.0] * len(first), [0.5]
    run.step = 2
    (again,) = replay([])[-1]
    assert again.ids == first.ids and again is not first and again.signals == {} and again.info == {}


def test_wrong_settings_are_refused():
    for settings in ({"asked": 0}, {"text": "correct it"}):
        with pytest.raises(ValueError, match="asked="):
            Gtr(**settings)
    with pytest.raises(ValueError, match="thought="):
        GtrThoughtWeight(thought=-1.0)
