"""The fake engine, and the default rollout strategy, budget and sampling."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from run_kit import View

from vlrl.engine.fake import Fake
from vlrl.engine.hf.sampler import uniforms
from vlrl.methods.core.rollout import Expert, Independent
from vlrl.methods.core.rollout_budget import Equal
from vlrl.methods.core.sampling import Plain
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Engine, SamplingPolicy
from vlrl.types import Prompt, Request, Row, Sampling


class Bytes:
    """A tokenizer of bytes, EOS 256."""

    eos_token_id = 256

    def encode(self, text, add_special_tokens=False):
        return list(text.encode())


def make_run(engine=None, sampling=None, **more):
    policy = SimpleNamespace(
        tokenizer=Bytes(), spaces=lambda prompt: (), version=0, encode_text=Bytes().encode
    )
    return View(seed=1, step=0, policy=policy, engine=engine, sampling=sampling or Plain(), **more)


def make_prompt(name="a", **more):
    return Prompt(
        row=Row(id=name, question=f"q {name}", **more), messages=({"role": "user", "content": name},)
    )


def test_random_streams_are_keyed_by_seed_and_index():
    whole = uniforms(7, 3, 10)
    assert np.array_equal(uniforms(7, 3, 6, start=4), whole[4:])
    assert not np.array_equal(uniforms(7, 4, 10), whole)
    assert not np.array_equal(uniforms(8, 3, 10), whole)
    assert abs(uniforms(0, 0, 20000).mean() - 0.5) < 4 * math.sqrt(1 / 12 / 20000)


def test_fake_draws_from_the_table():
    engine = Fake(table={"a": ("x", "y"), "q b": ("z",)})
    texts = {
        c.index: c.text
        for c in engine.generate([Request(prompt=make_prompt("a"), sampling=Sampling(), n=20, seed=5)])
    }
    assert set(texts.values()) == {"x", "y"}
    requests = [
        Request(prompt=make_prompt(name), sampling=Sampling(), n=n, seed=5)
        for name, n in (("b", 1), ("a", 20))
    ]
    again = {c.index: c.text for c in engine.generate(requests) if c.request.prompt.row.id == "a"}
    assert again == texts
    (only,) = engine.generate([Request(prompt=make_prompt("b"), sampling=Sampling())])
    assert (only.text, only.ids, only.logp, only.finish) == ("z", [122], [0.0], "stop")


def test_fake_fills_in_the_answer_cuts_and_scores_the_choice():
    engine = build(Engine, {"name": "fake", "options": ["<answer>{answer}</answer>", "no"]})
    done = list(
        engine.generate([Request(prompt=make_prompt(answer=7), sampling=Sampling(max_tokens=4), n=30)])
    )
    assert {c.text for c in done} == {"<answer>7</answer>", "no"}
    assert {c.finish for c in done if c.text == "no"} == {"stop"} and {
        c.finish for c in done if c.text != "no"
    } == {"length"}
    assert all(len(c.ids) <= 4 and c.logp[0] == -math.log(2) and sum(c.logp[1:]) == 0 for c in done)


def test_fake_state_survives_and_counts():
    engine = Fake(function=lambda request, index: f"{request.prompt.row.id}{index}")
    engine.setup(make_run())
    engine.sync(None)
    (c,) = engine.generate([Request(prompt=make_prompt(), sampling=Sampling())])
    assert (c.ids, c.version, c.text) == ([97, 48, 256], 1, "a0")
    other = Fake()
    other.load_state_dict(engine.state_dict())
    assert other.version == 1
    with pytest.raises(ValueError, match="options"):
        Fake(options=())


@pytest.mark.parametrize(
    ("prompts", "total", "counts"), [(3, 12, [4, 4, 4]), (3, 8, [3, 3, 2]), (4, 2, [1, 1, 0, 0]), (0, 5, [])]
)
def test_equal(prompts, total, counts):
    assert Equal()([make_prompt(str(i)) for i in range(prompts)], total) == counts


@pytest.mark.parametrize(
    "bad",
    [
        {"top_p": 0.0},
        {"temperature": -1.0},
        {"top_k": -1},
        {"min_p": 2.0},
        {"max_tokens": 0},
        {"min_tokens": 99},
        {"guided": {"xml": 1}},
    ],
)
def test_plain_refuses(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        build(SamplingPolicy, {"name": "plain", **bad})


def test_plain_passes_everything_on():
    values = dict(
        temperature=((0, 1.0), (4, 0.5)),
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        max_tokens=9,
        min_tokens=2,
        stop=("x",),
        stop_ids=(1,),
        bad_ids=(2,),
        top_logprobs=3,
    )
    sampling = Plain(**values)(make_prompt(), 0)
    assert {k: getattr(sampling, k) for k in values} == values
    assert [sampling.temperature_at(p) for p in (0, 3, 4, 9)] == [1.0, 1.0, 0.5, 0.5]


def test_independent_groups_in_order_with_seeds_of_their_own():
    class Alternating(Plain):
        def __call__(self, prompt, attempt):
            return Sampling(temperature=0.0 if attempt == 1 else 1.0)

    asked = []

    class Reversed(Fake):
        def generate(self, requests):
            asked.append(requests)
            return reversed(list(super().generate(requests)))

    run = make_run(
        Reversed(function=lambda r, i: f"{r.prompt.row.id}{r.sampling.temperature}{i}"), Alternating()
    )
    strategy = Independent()
    groups = strategy([make_prompt("a"), make_prompt("b")], [3, 0], run)
    assert [[r.text for r in g] for g in groups] == [["a1.00", "a0.00", "a1.01"], []]
    assert len(asked[0]) == 2 and asked[0][0].seed != asked[0][1].seed
    strategy([make_prompt("a"), make_prompt("b")], [3, 0], run)
    assert asked[1][0].seed != asked[0][0].seed, "asked again in the same step: fresh samples"
    Independent()([make_prompt("b"), make_prompt("a")], [1, 3], run)
    assert [r.seed for r in asked[2] if r.prompt.row.id == "a"] == [r.seed for r in asked[0]], (
        "the seed does not depend on the batch"
    )
    run.step = 1
    strategy([make_prompt("a")], [3], run)
    assert asked[3][0].seed not in {asked[0][0].seed, asked[1][0].seed}


def test_expert_writes_the_target():
    (group,) = Expert()([make_prompt(target="<think>ok")], [4], make_run())
    (rollout,) = group
    assert (
        rollout.ids == [*b"<think>ok", 256]
        and rollout.text == "<think>ok"
        and rollout.source == "expert"
        and len(rollout.logp) == 10
    )
    prompt = Prompt(row=Row(id="a", question="q", target="<think>ok"), messages=(), prefix="<think>")
    (group,) = Expert()([prompt], [1], make_run())
    assert group.rollouts[0].ids == [*b"ok", 256] and group.rollouts[0].text == "<think>ok"


def test_expert_refuses():
    with pytest.raises(ValueError, match="no `target`"):
        Expert()([make_prompt()], [1], make_run())
    with pytest.raises(ValueError, match="10 tokens"):
        Expert(max_tokens=5)([make_prompt(target="<think>ok")], [1], make_run())
