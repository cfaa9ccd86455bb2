"""The scripted policy: shares of right, wrong and malformed answers, lines, given tokens, hints, truncation,
log-probs of the policy."""

import re

import pytest
import torch
from run_kit import View

from vlrl.engine.hf.engine import HF
from vlrl.engine.scripted import Scripted, gold_text
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Engine
from vlrl.types import Prompt, Request, Row, Sampling

TEXT = "<think>so then</think><answer>12</answer>"
ASKED = "7+9= Reason in <think> </think> tags, then answer in <answer> </answer> tags."


def make_engine(policy, **fields):
    engine = build(Engine, {"name": "scripted", "scored": False, **fields}, "engine")
    engine.setup(View(policy=policy, seed=1, step=0))
    return engine


def make_prompt(text=ASKED, prefix="", **row):
    row = {
        "id": "row-1",
        "question": text,
        "answer": 16,
        "target": "<think>sum</think><answer>16</answer>",
        **row,
    }
    return Prompt(row=Row(**row), messages=({"role": "user", "content": text},), prefix=prefix)


def texts(engine, prompt=None, n=200, seed=5, **sampling):
    sampling = {"max_tokens": 400, **sampling}
    request = Request(prompt=prompt or make_prompt(), sampling=Sampling(**sampling), n=n, seed=seed)
    return [
        completion.text
        for completion in sorted(engine.generate([request]), key=lambda completion: completion.index)
    ]


def test_same_seed_same_text(text_policy):
    first, second = make_engine(text_policy), make_engine(text_policy)
    assert texts(first) == texts(second)
    assert texts(first) != texts(second, seed=6)
    assert texts(first, n=3) == texts(first)[:3]  # a completion depends on its own number alone
    other = make_prompt(id="row-2")
    assert texts(first, other) != texts(second)


def test_shares_of_right_wrong_and_malformed(text_policy):
    engine = make_engine(text_policy, skill=0.3, spread=0.0, form=0.8, long=0.0)
    written = texts(engine, n=1000)
    formed = [text for text in written if re.fullmatch(r"<think>.+</think><answer>\d+</answer>", text)]
    right = [text for text in written if re.search(r"\b16(</answer>)?$", text)]
    # within five standard deviations of a share of 1000 draws: 63 at 0.8, 72 at 0.3
    assert 737 <= len(formed) <= 863
    assert 228 <= len(right) <= 372
    assert all(re.search(r"\d+(</answer>)?$", text) for text in written)


def test_skill_is_clipped_and_grows_with_each_sync(text_policy):
    engine = make_engine(text_policy, skill=0.0, spread=0.0, gain=0.5)
    row = make_prompt().row
    skills = []
    for _ in range(4):
        skills.append(engine._skill(row, ""))
        engine.sync(text_policy)
    assert skills == [0.02, 0.5, 0.98, 0.98] and engine.version == 4
    spread = make_engine(text_policy, spread=0.8)
    assert len({spread._skill(make_prompt(id=f"row-{i}").row, "") for i in range(20)}) == 20


def test_tags_stand_in_the_order_of_the_prompt(text_policy):
    engine = make_engine(text_policy, skill=1.0, spread=0.0, form=1.0, long=0.0)
    asked = make_prompt(
        "Write <answer> </answer>, then <confidence> </confidence>, last <analysis> </analysis>. <image>"
    )
    for text in texts(engine, asked, n=20):
        assert [tag for tag in re.findall(r"<([a-z]+)>", text)] == ["answer", "confidence", "analysis"]
        assert 0 <= float(re.search(r"<confidence>(.+)</confidence>", text)[1]) <= 1
    facts = (
        "<context>Anna lives in Rome, and Ben lives in Oslo, far away.</context> Where? <answer> </answer>"
    )
    assert set(texts(engine, make_prompt(facts), n=5)) == {
        "<answer>16</answer>"
    }  # the context is a part of the question
    (boxed,) = texts(engine, make_prompt("7+9= Put it into \\boxed{}.", target=""), n=1, seed=2)
    assert re.search(r"\\boxed\{(16|\d+)\}$", boxed)
    (shown,) = texts(engine, make_prompt("7+9="), n=1)
    assert re.fullmatch(r"<think>.+</think><answer>\d+</answer>", shown)  # as the demonstration
    assert set(texts(engine, make_prompt("7+9=", target=""), n=50)) >= {
        "16"
    }  # neither asked nor shown: the bare answer


def test_lines(text_policy):
    lines = {"7+9": ["a {answer}", "w {wrong}", "n {near}", "t {target}"], "7": ["never"]}
    written = set(texts(make_engine(text_policy, lines=lines), n=100))
    assert {"a 16", "t <think>sum</think><answer>16</answer>"} <= written and "never" not in written
    for text in written - {"a 16", "t <think>sum</think><answer>16</answer>"}:
        assert re.fullmatch(r"[wn] \d+", text) and not text.endswith(" 16")
    assert "never" in texts(make_engine(text_policy, lines={"no": ["x"], "": ["never"]}), n=1)
    near = texts(
        make_engine(text_policy, lines={"": ["{near}"]}),
        make_prompt(target="<answer>2020-01, 5: 31</answer>"),
        n=20,
    )
    assert all(re.fullmatch(r"2020-01, 5: \d+", text) and not text.endswith(" 31") for text in near)
    with pytest.raises(ValueError, match="at least one completion"):
        Scripted(lines={"x": ()})


def test_wrong_answers(text_policy):
    engine = make_engine(text_policy, skill=0.0, spread=0.0, form=1.0, long=0.0)

    def wrong(answer, **row):
        prompt = make_prompt(answer=answer, target=f"<answer>{answer}</answer>", **row)
        return {
            re.search(r"<answer>(.*)</answer>", text, re.DOTALL)[1] for text in texts(engine, prompt, n=60)
        } - {str(answer)}

    assert wrong("B", choices=("w", "x", "y", "z"), task="letters") == {"A", "C", "D"}
    assert all(re.fullmatch(r"\d+\.\d+|\d+", text) for text in wrong("2.5", task="decimals"))
    assert all(re.fullmatch(r"0\d|\d\d", text) for text in wrong("07", task="months"))
    assert wrong("Arlen", task="towns") == {"nelrA?"}  # no other answer was seen
    assert wrong("Birk", task="towns") == {"Arlen"}


@pytest.mark.parametrize(
    ("answer", "target", "expected"),
    [
        (16, "<think>a</think><answer>12</answer><think>b</think><answer> 16 </answer>", "16"),
        ({"m.py": "x"}, "<think>a</think><solution>block</solution>", "block"),
        ([{"id": "rule"}], "i like dates", "i like dates"),
        ([3, 1, 2], "", "3 1 2"),
        ([3, 1, 2], "<think>a</think>3, 1, 2", "3 1 2"),
        ("Arlen", "", "Arlen"),
        (
            "assert f(1) == 2",
            "```python\ndef f(x):\n    return x + 1\n```",
            "```python\ndef f(x):\n    return x + 1\n```",
        ),
        ("4", "two and two are ```4```", "4"),
    ],
)
def test_gold_text(answer, target, expected):
    assert gold_text(Row(id="r", question="q", answer=answer, target=target)) == expected


def test_prefix_is_not_written_again(text_policy):
    engine = make_engine(text_policy, skill=1.0, spread=0.0, form=1.0, long=0.0)
    prompt = make_prompt("7+9= Answer in <answer> </answer> tags.", prefix="<think>")
    for text in texts(engine, prompt, n=10):
        assert not text.startswith("<think>") and text.endswith("</answer>")


def test_prefix_ids_limit_and_stop(text_policy):
    engine = make_engine(text_policy, lines={"": ["one two STOP three"]})
    tokenizer = text_policy.tokenizer
    start = tuple(tokenizer.encode("so ", add_special_tokens=False))

    def only(**more):
        fields = {"prompt": make_prompt(), "sampling": Sampling(max_tokens=400), "n": 1, **more}
        (completion,) = engine.generate([Request(**fields)])
        return completion

    whole = only(prefix_ids=start)
    assert (
        tuple(whole.ids[: len(start)]) == start
        and whole.text == "so one two STOP three"
        and whole.finish == "stop"
    )
    assert whole.ids[-1] == tokenizer.eos_token_id and whole.logp == [0.0] * len(whole.ids)
    assert only(sampling=Sampling(max_tokens=400, stop=("STOP",))).text == "one two STOP"
    exact = only(sampling=Sampling(max_tokens=len(only().ids)))
    assert exact.finish == "stop"
    cut = only(sampling=Sampling(max_tokens=len(only().ids) - 1))
    assert cut.finish == "length" and cut.ids == only().ids[:-1]


def test_long_thoughts_are_cut(text_policy):
    engine = make_engine(text_policy, long=1.0)
    request = Request(prompt=make_prompt(), sampling=Sampling(max_tokens=32), n=10, seed=1)
    assert all(
        completion.finish == "length" and len(completion.ids) == 32
        for completion in engine.generate([request])
    )


def test_log_probs_are_those_of_the_policy(text_policy):
    engine = make_engine(text_policy, scored=True)
    prompt = make_prompt()
    completions = list(
        engine.generate(
            [Request(prompt=prompt, sampling=Sampling(max_tokens=40, top_logprobs=1), n=3, seed=4)]
        )
    )
    reference = HF().attach(text_policy)
    for completion in completions:
        expected = reference.score(prompt, completion.ids)
        assert torch.allclose(torch.tensor(completion.logp), torch.tensor(expected), atol=1e-6)
        assert max(completion.logp) < 0
        assert completion.top_logprobs == [
            {token: value} for token, value in zip(completion.ids, completion.logp, strict=True)
        ]


@pytest.mark.parametrize(
    "fields", [{"skill": 1.5}, {"form": -0.1}, {"long": 2}, {"words": (3, 1)}, {"words": (-1, 1)}]
)
def test_impossible_settings_are_refused(fields):
    with pytest.raises(ValueError, match="between 0 and 1|least and a greatest"):
        Scripted(**fields)
