"""The judge client: pinned, cached and priced; its audit against labels."""

from __future__ import annotations

import json

import pytest

from vlrl.beside.audit import error_rates
from vlrl.beside.client import Judge, ask_engine, read_reply
from vlrl.engine.fake import Fake
from vlrl.plugins.registry import ConfigError

YES, NO = read_reply("yes"), read_reply("no")


def test_replies_are_cached_by_model_and_prompt(tmp_path):
    sent = []

    def ask(prompts):
        sent.append(list(prompts))
        return ["yes" if "2" in prompt else "no" for prompt in prompts]

    cache = tmp_path / "folder" / "judge.jsonl"
    assert Judge("m@1", ask, cache).verdicts(["is it 2?", "is it 3?", "is it 2?"]) == [YES, NO, YES]
    assert sent == [["is it 2?", "is it 3?"]]  # a repeated prompt is sent once
    assert len(cache.read_text().splitlines()) == 2 and set(
        json.loads(cache.read_text().splitlines()[0])
    ) == {"key", "reply"}
    assert Judge("m@1", ask, cache).verdicts(["is it 3?"]) == [NO] and len(sent) == 1
    assert (
        Judge("m@2", ask, cache).verdicts(["is it 3?"]) == [NO] and len(sent) == 2
    )  # another revision is asked again


def test_the_price_counts_prompts_that_are_not_cached(tmp_path):
    judge = Judge(
        "judge@2024-08-06",
        lambda prompts: ["yes"] * len(prompts),
        tmp_path / "judge.jsonl",
        prices=(1.0, 2.0),
    )
    assert judge.price(["x" * 4_000_000])["price"] == pytest.approx(1.000004)
    judge.verdicts(["a"])
    assert judge.price(["a"]) == {"prompts": 0, "prompt_tokens": 0, "price": 0}


def test_a_judge_must_be_pinned(tmp_path):
    with pytest.raises(ConfigError, match="not pinned"):
        Judge("gpt-4o", lambda prompts: [], tmp_path / "x.jsonl")


def test_yes_and_no():
    read = [read_reply(text) for text in ("Yes", "no, since", "maybe", "", "nothing")]
    assert [verdict.correct for verdict in read] == [True, False, False, False, False]
    assert [verdict.unread for verdict in read] == [False, False, True, True, True]
    assert read_reply("<think>no</think> Yes.").span == (18, 21)


def test_an_engine_as_a_judge():
    engine = Fake(
        function=lambda request, index: (
            f"yes {request.prompt.messages[0]['content']} {request.sampling.temperature:g}"
        )
    )
    assert ask_engine(engine)(["one", "two"]) == ["yes one 0", "yes two 0"]


def test_error_rates_against_labels():
    verdicts = {"a": True, "b": False, "c": True, "d": True}
    rates = error_rates(verdicts, {"a": True, "b": True, "c": False, "unknown": False})
    assert rates == {"false_accept": 1.0, "false_reject": 0.5, "labelled": 3}
    assert error_rates({"a": True}, {"b": False})["labelled"] == 0
