"""Conversations: loss masks, tool replies, images in replies."""

import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import engine_kit
import numpy as np
import pytest
from PIL import Image
from run_kit import View
from vlrl_rewards.code.sandbox import available

from vlrl.engine.fake import Fake
from vlrl.engine.hf.engine import HF
from vlrl.environments.python import Python
from vlrl.environments.zoom import Crop, Zoom
from vlrl.methods.common.conversation import tool_reply_ids
from vlrl.methods.core.reward_shaping import LastTurnReward
from vlrl.methods.core.rollout import MultiTurn
from vlrl.methods.core.sampling import Plain
from vlrl.plugins.episodes import Action, Episode, Observation
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import Environment
from vlrl.plugins.tool_calls import last_call
from vlrl.types import CoordinateSpace, Group, Media, Prompt, Rollout, Row


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class Echo(Episode):
    """Answers the first turns."""

    def __init__(self, replies, heard):
        self.replies, self.heard = replies, heard

    def step(self, action):
        self.heard.append(action.text)
        return (
            Observation(self.replies[action.turn - 1])
            if action.turn <= len(self.replies)
            else Observation(done=True)
        )


@dataclass(frozen=True)
class Echoes(Environment):
    """Episodes of `Echo`."""

    name = "echo"
    stops = ("!",)
    replies: tuple = ()
    heard: list = field(default_factory=list)

    def episode(self):
        return Echo(self.replies, self.heard)


def echo(*replies, **settings):
    return Echoes(replies=replies, **settings)


def make_run(policy, env, respond, max_tokens=60):
    engine = Fake(function=respond)
    run = View(policy=policy, engine=engine, sampling=Plain(max_tokens=max_tokens), environment=env)
    engine.setup(run)
    return run


def test_replies_carry_no_loss_and_are_not_part_of_the_text(text_policy, tools):
    said = ["first!", "second!", "<answer>3</answer>"]
    turns = iter(said * 2)
    env = echo("tool says <answer>9</answer>", "more <|im_end|>")
    run = make_run(text_policy, env, lambda request, index: next(turns))
    (group,) = MultiTurn()([tools.prompt("Go")], [1], run)
    (rollout,) = group
    decode = text_policy.tokenizer.decode
    own = decode([i for i, mine in zip(rollout.ids, rollout.loss_mask) if mine])
    others = decode([i for i, mine in zip(rollout.ids, rollout.loss_mask) if not mine])
    assert own == "".join(f"{text}<|im_end|>" for text in said)
    assert "tool says <answer>9</answer>" in others and others.count("<|im_end|>") == 2, (
        "the tool's own end of turn was broken up"
    )
    assert rollout.text == "\n".join(said) and "9" not in rollout.text and "9" in rollout.info["transcript"]
    assert (
        len(rollout.ids) == len(rollout.logp) == len(rollout.loss_mask)
        and rollout.info["turns"] == 3
        and rollout.info["calls"] == 2
    )
    assert env.heard == ["first!", "second!", "<answer>3</answer>"]
    conversation = (
        *tools.prompt("Go").messages,
        {"role": "assistant", "content": "first!"},
        {"role": "user", "content": env.replies[0]},
    )
    begun = text_policy.render(Prompt(row=Row("a", "q"), messages=conversation))
    assert decode([*text_policy.encode(tools.prompt("Go")).ids, *rollout.ids]).startswith(begun), (
        "the tokens are what the template would have written"
    )


@pytest.mark.parametrize(
    ("strategy", "turns"),
    [(MultiTurn(max_turns=1), 1), (MultiTurn(max_turns=2), 2), (MultiTurn(max_turns=9), 3)],
)
def test_turns_end(text_policy, tools, strategy, turns):
    run = make_run(text_policy, echo("a", "b"), lambda request, index: "x!")
    for rollout in strategy([tools.prompt("Go")], [2], run)[0]:
        assert rollout.info["turns"] == turns
    cut = make_run(text_policy, echo("a", "b"), lambda request, index: "long " * 50, max_tokens=4)
    (rollout,) = strategy([tools.prompt("Go")], [1], cut)[0]
    assert rollout.finish == "length" and rollout.info["turns"] == 1 and len(rollout) == 4


def test_a_cut_turn_can_be_carried_out_like_any_other(text_policy, tools):
    env = echo("told", "told again")
    run = make_run(text_policy, env, lambda request, index: "long " * 50, max_tokens=4)
    (rollout,) = MultiTurn(act_on_cut=True, max_turns=3)([tools.prompt("Go")], [1], run)[0]
    assert rollout.info["turns"] == 3 == len(env.heard) and rollout.info["episode_end"] == "done"
    assert rollout.loss_mask.count(True) == 12 and rollout.info["transcript"].count("told") == 2
    # a turn that the conversation's room cuts ends it, as without act_on_cut
    env = echo("told", "told again")
    run = make_run(text_policy, env, lambda request, index: "long " * 50, max_tokens=4000)
    full = len(text_policy.encode(tools.prompt("Go"))) + 9
    (rollout,) = MultiTurn(act_on_cut=True, max_turns=3, max_context=full)([tools.prompt("Go")], [1], run)[0]
    assert not env.heard and rollout.info["turns"] == 1 and rollout.info["episode_end"] == "context"


def test_long_replies_are_cut(text_policy, tools):
    run = make_run(text_policy, echo("word " * 500), lambda request, index: "x!")
    (rollout,) = MultiTurn(max_reply_tokens=10)([tools.prompt("Go")], [1], run)[0]
    assert "(cut)" in rollout.info["transcript"] and rollout.loss_mask.count(False) < 60


def test_with_a_real_model_the_trainer_scores_what_was_sampled(policy, tools, monkeypatch):
    from vlrl.trainer.step.loss_inputs import make_batch

    run = make_run(policy, echo("reply", "reply"), None, max_tokens=5)
    run.engine = HF().attach(policy)
    monkeypatch.setattr(Echoes, "stops", ())
    run.sampling = Plain(max_tokens=5, stop_ids=tuple(range(0, 500, 3)))
    groups = MultiTurn()([tools.prompt("Go", tools.Noise(1)), tools.prompt("Stop")], [3, 3], run)
    assert any(r.info["calls"] for g in groups for r in g)
    out = policy.forward(make_batch(groups, policy.pad_id))["logp"]
    for logp_T, rollout in zip(out, [r for g in groups for r in g]):
        for t, mine in enumerate(rollout.loss_mask or [True] * len(rollout)):
            if mine:
                assert rollout.logp[t] == pytest.approx(logp_T[t].item(), abs=1e-4)


def test_an_image_in_a_reply_starts_a_new_rollout(policy, tools):
    picture = tools.Noise(1, (112, 112))
    run = make_run(policy, Zoom(side=56), None, max_tokens=200)
    space = policy.spaces(tools.prompt("Find", picture))[0]
    box = list(space.from_original([10, 20, 50, 60]))
    speak = iter([call("zoom", box=box), "<answer>1</answer>"])
    run.engine = Fake(function=lambda request, index: next(speak))
    run.engine.setup(run)
    (group,) = MultiTurn()([tools.prompt("Find", picture)], [1], run)
    first, last = group
    assert first.text.startswith("<tool_call>") and last.text == "<answer>1</answer>"
    assert len(first.prompt.images) == 1 and len(last.prompt.images) == 2
    crop = last.prompt.images[1]
    assert crop == Crop(picture, (10, 20, 50, 60), 56) and crop.load().size == (56, 56)
    shown = policy.encode(last.prompt)
    assert len(shown.features) == 2 and "<tool_call>" in policy.decode(shown.ids)
    first.reward, last.reward = 0.0, 1.0
    assert LastTurnReward()(group) == [1.0, 1.0] and (first.info["segment"], last.info["segment"]) == (0, 1)
    lone = Rollout(prompt=first.prompt, ids=[1], reward=0.3)
    assert LastTurnReward()(Group(prompt=first.prompt, rollouts=[lone, first, last])) == [0.3, 1.0, 1.0]


def zoomed(text, image=None):
    image = image or engine_kit.Noise(1, (100, 80))
    return (
        Zoom()
        .episode()
        .step(Action(text, images=(image,), spaces=(CoordinateSpace((100, 80), (50, 40), "seen"),)))
    )


def test_zoom_reads_the_policys_units_and_clips():
    (crop,) = zoomed("so " + call("zoom", box=[-5, 10, 20, 400], image=0)).media
    assert crop.box == (0, 20, 40, 80), "pixels after the resize are half of the original ones"
    assert crop.load().size == (224, 336)
    gradient = np.arange(100 * 80 * 3, dtype=np.uint8).reshape(80, 100, 3)
    assert np.array_equal(
        np.asarray(Crop(Still(gradient), (10, 20, 42, 60), 8).load()), gradient[20:60, 10:42]
    )


@dataclass(frozen=True)
class Still(Media):
    """An image with given pixels."""

    pixels: np.ndarray
    kind = "image"

    @property
    def key(self):
        return "still"

    def load(self):
        return Image.fromarray(self.pixels)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call>{box}</tool_call>", "not valid JSON"),
        ("<tool_call>[1]</tool_call>", "a tool call is"),
        (call("rotate", box=[0, 0, 9, 9]), "no tool 'rotate'"),
        (call("zoom", box=[0, 0, 9]), "four numbers"),
        (call("zoom", box=[0, 0, "9", 9]), "four numbers"),
        (call("zoom", box=[0, 0, 1e400, 9]), "four numbers"),
        (call("zoom", box=[0, 0, 20, 20], image=1), "between 0 and 0"),
        (call("zoom", box=[0, 0, 20, 20], image=True), "of type integer"),
        (call("zoom", box=[10, 10, 11, 11]), "at least 8 pixels"),
        (call("zoom", box=[90, 90, 99, 99]), "at least 8 pixels"),
    ],
)
def test_zoom_replies_with_the_error(text, problem):
    answer = zoomed(text)
    assert problem in answer.text and not answer.media and answer.invalid and not answer.done


def test_no_call_no_reply():
    assert zoomed("<answer>3</answer>").done and last_call("") is None
    assert last_call(call("a") + call("b", x=1)) == ("b", {"x": 1})


def python(text, **settings):
    answer = (
        Python(**{"mode": "unsafe" if available() else "bubblewrap", **settings}).episode().step(Action(text))
    )
    return None if answer.done else answer.text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (call("python", code="print(6 * 7)"), "42"),
        (call("python", code="x = 1"), "(no output)"),
        (call("python", code="1 / 0"), "Error"),
        (call("python", code="while True: pass"), "Error"),
        (call("python", code=""), "Error: ValueError: call"),
        (call("shell", code="ls"), "Error: there is no tool"),
        ("<tool_call>{", None),
        ("no call", None),
    ],
)
def test_python_runs_in_the_sandbox(text, answer):
    out = python(text, seconds=2.0)
    assert out is None if answer is None else out.strip().startswith(answer)


def test_python_output_is_bounded_and_the_run_is_checked(monkeypatch):
    assert len(python(call("python", code="print('x' * 100000)"), max_output=50)) <= 80
    with pytest.raises(ConfigError, match="mode"):
        Python(mode="open").check(None)
    with pytest.raises(ValueError, match="seconds"):
        Python(seconds=0)
    monkeypatch.setattr("vlrl_rewards.code.sandbox.available", lambda: "bwrap is missing")
    with pytest.raises(ConfigError, match="bwrap is missing"):
        Python().check(None)


def run_with(environment, *others):
    """A run with these plug-ins."""
    provided = [capability for plugin in (environment, *others) for capability in plugin.provides]
    return SimpleNamespace(environment=environment, has=lambda capability: capability in provided)


def test_the_strategy_is_checked(text_policy):
    with pytest.raises(ConfigError, match="needs an environment"):
        MultiTurn().check(View())
    with pytest.raises(ConfigError, match="conversation"):
        MultiTurn().check(run_with(Zoom()))
    MultiTurn().check(run_with(Zoom(), LastTurnReward()))
    ids = tool_reply_ids(
        text_policy, engine_kit.make_prompt("q"), [{"role": "user", "content": "r"}], text_policy.eos_id
    )
    assert text_policy.tokenizer.decode(ids) == "\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n"


def odd_ids(policy, count):
    """Ids that the tokenizer would not give for their text: the letters of words, one by one."""
    ids = [
        i
        for letter in ["a", "b", "c", "d", "e", "f", "g", "h"]
        for i in policy.tokenizer.encode(letter, add_special_tokens=False)
    ]
    ids = (ids * count)[:count]
    assert policy.encode_text(policy.decode(ids)) != ids
    return ids


@dataclass(frozen=True)
class Shows(Environment):
    """Shows two pictures, one after each of the first two turns."""

    name = "shows"

    def episode(self):
        return ShowsEpisode()


class ShowsEpisode(Episode):
    def step(self, action):
        return (
            Observation("look", (engine_kit.Noise(action.turn, (112, 56)),))
            if action.turn <= 2
            else Observation(done=True, reward=1.0)
        )


def test_tokens_of_earlier_turns_stay_when_a_picture_is_shown(policy, tools):
    """The prompt of a later segment begins with the ids of the earlier one, token by token, though their text
    would be tokenised otherwise."""
    from vlrl.engine.vllm.prompts import prompt_ids
    from vlrl.trainer.step.loss_inputs import make_batch

    run = make_run(policy, Shows(), None, max_tokens=6)
    run.engine = HF().attach(policy)
    run.sampling = Plain(max_tokens=6, stop_ids=tuple(range(0, 500, 3)))
    groups = MultiTurn(max_turns=5)([tools.prompt("Go", tools.Noise(9)), tools.prompt("Stop")], [4, 4], run)
    followed = 0
    for group in groups:
        for before, after in zip(group.rollouts, group.rollouts[1:]):
            if after.info["segment"] != before.info["segment"] + 1:
                continue
            followed += 1
            begun = [*policy.encode(before.prompt).ids, *before.ids]
            encoded = policy.encode(after.prompt)
            assert (
                encoded.ids[: len(begun)] == begun and len(encoded.features) == len(before.prompt.images) + 1
            )
            shown = [t for t in encoded.types if t]
            assert len(shown) == sum(f.num_embeds for f in encoded.features), (
                "as many placeholders as embeddings"
            )
            short = prompt_ids(policy, after.prompt)
            assert short[: -len(encoded.ids) + len(begun) or None] and len(short) < len(encoded.ids)
            positions, following = policy.family.positions(
                policy.model, encoded.ids, encoded.types, encoded.features
            )
            assert (positions == encoded.positions).all() and following == encoded.next_position
    assert followed >= 4
    out = policy.forward(make_batch(groups, policy.pad_id))["logp"]
    for logp_T, rollout in zip(out, [r for g in groups for r in g]):
        for t, mine in enumerate(rollout.trained_mask):
            if mine:
                assert rollout.logp[t] == pytest.approx(logp_T[t].item(), abs=1e-4)


def test_exact_ids_equal_those_of_the_template_where_nothing_was_sampled_oddly(policy, tools):
    """One-shot encoding of the conversation gives the same ids and positions as appending."""
    run = make_run(policy, Shows(), lambda request, index: "a word", max_tokens=60)
    (group,) = MultiTurn(max_turns=5)([tools.prompt("Go", tools.Noise(9))], [1], run)
    last = group.rollouts[-1].prompt
    assert last.continues is not None and len(last.images) == 3
    exact, written = policy.encode(last), policy.encode(replace(last, continues=None))
    assert (
        exact.ids == written.ids
        and exact.types == written.types
        and (exact.positions == written.positions).all()
    )
    masked = replace(last, images=(tools.Noise(20), *last.images[1:]))
    assert policy.encode(masked).features[0].key != exact.features[0].key, "other pictures in their places"


def test_a_continued_prompt_keeps_ids_that_no_tokenizer_would_give(policy, tools):
    prompt = tools.prompt("Go", tools.Noise(9))
    ids = odd_ids(policy, 8)
    more = replace(
        prompt,
        images=(*prompt.images, tools.Noise(2)),
        continues=(prompt, tuple(ids), "<|im_end|>\n<|vision_start|><|image_pad|><|vision_end|>"),
    )
    encoded, begun = policy.encode(more), policy.encode(prompt).ids
    assert encoded.ids[: len(begun) + 8] == [*begun, *ids] and len(encoded.features) == 2
    with pytest.raises(ValueError, match="placeholders"):
        policy.encode(replace(more, images=(*more.images, tools.Noise(3))))
