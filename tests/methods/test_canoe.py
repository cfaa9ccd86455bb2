"""CANOE: the long answer in place of the context, and the rewards of it."""

from __future__ import annotations

import json

import pytest
from run_kit import last_step
from tiny import text_run

from vlrl.config import load
from vlrl.methods.papers.canoe import PROXY_ANSWER, Canoe
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward
from vlrl.trainer.step.loop import train_step
from vlrl.types import Prompt, Rollout, Row

ROW = Row(
    "c",
    "<context>Ann lives in Rome, and Bob in Oslo.</context>\nWhere does Ann live?",
    "Rome",
    task="context",
)  # a context of 35 characters


def reward(name, text, info=None, **fields):
    return build(Reward, {"name": name, **fields})(Rollout(Prompt(ROW, ()), [1], text, info=info or {}))


@pytest.mark.parametrize(
    ("text", "question"),
    [
        (
            "<long_answer>Ann is in <image>Rome.</long_answer>",
            "<context>Ann is in Rome.</context>\nWhere does Ann live?",
        ),
        ("<long_answer> </long_answer>", None),
        ("<long_answer>a</long_answer><long_answer>b</long_answer>", None),
        ("Rome", None),
    ],
)
def test_the_question_is_asked_again(text, question):
    row = Canoe().restated(ROW, text)
    assert (row and row.question) == question and (row is None or (row.answer, row.id) == ("Rome", "c"))


def test_a_row_without_context_is_refused():
    with pytest.raises(ConfigError, match="no single <context>"):
        Canoe().restated(Row("x", "Where?"), "<long_answer>a</long_answer>")


@pytest.mark.parametrize(
    ("proxy", "score"),
    [
        ("<answer>Rome</answer>", 1.0),
        ("<answer>rome</answer>", 1.0),
        ("<answer>Oslo</answer>", 0.0),
        ("", 0.0),
        (None, 0.0),
    ],
)
def test_proxy_reads_the_second_answer(proxy, score):
    assert reward("proxy", "<answer>Paris</answer>", {"proxy": proxy}) == score


@pytest.mark.parametrize(("said", "score"), [("Rome", 1.0), (" Rome\n", 1.0), ("rome", 0.0), ("ROME", 0.0)])
def test_the_preset_heeds_case(said, score):
    """grpo.py:124-160, influence_reward, and :86-105, accuracy_reward: `student_answer == ground_truth`."""
    rewards = load(["methods/canoe"]).tree["rewards"]
    text = f"<think>so</think><long_answer>It is.</long_answer><answer>{said}</answer>"
    for name in ("proxy", "answer"):
        made = build(Reward, {key: value for key, value in rewards[name].items() if key != "weight"})
        assert made(Rollout(Prompt(ROW, ()), [1], text, info={"proxy": text})) == score, name


def test_proxy_needs_its_strategy():
    with pytest.raises(ValueError, match="canoe"):
        reward("proxy", "<answer>Rome</answer>")


@pytest.mark.parametrize(
    ("long", "score"),
    [
        ("a" * 7, 0.0),
        ("a" * 8, 1.0),
        (" a\n" + "a" * 20, 1.0),
        ("a" * 27, 1.0),
        ("a" * 28, 0.0),
        ("", 0.0),
    ],  # 0.2 * 35 = 7 and 0.8 * 35 = 28
)
def test_length_of_the_long_answer(long, score):
    assert reward("part_of_context", f"<long_answer>{long}</long_answer>") == score


@pytest.mark.parametrize("text", ["", "no tags at all", "<long_answer>aaaaaaaaaa</long_answer>" * 2])
def test_no_long_answer(text):
    assert reward("part_of_context", text) == 0.0


def test_canoe_asks_twice(tmp_path):
    rows = [
        {
            "question": f"<context>{i} is one more than {i - 1}.</context> What is it?",
            "answer": str(i),
            "task": "context",
        }
        for i in range(4)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = [
        "<think>so</think><long_answer>It is {answer}.</long_answer><answer>{answer}</answer>",
        "<long_answer>no</long_answer><answer>9</answer>",
    ]
    words = [
        f"data={{train: {{'*': null, qa: {{name: files, path: {tmp_path}/rows.jsonl}}}}, heldout: null}}",
        "sampling.max_tokens=120",
    ]
    made = text_run(
        ["methods/canoe"],
        [*words, f"engine={{name: fake, options: {json.dumps([*said, '<answer>{answer}</answer>'])}}}"],
    )
    train_step(made)
    rollouts = [rollout for group in last_step(made).groups for rollout in group]
    for rollout in rollouts:
        long = "<long_answer>" in rollout.text
        assert (PROXY_ANSWER[rollout] is not None) is long and rollout.rewards["format"] == float(
            "<think>" in rollout.text
        )
        assert rollout.rewards["proxy"] == (
            float(f"<answer>{rollout.answer}<" in PROXY_ANSWER[rollout]) if long else 0.0
        )
    assert 0 < sum(rollout.rewards["proxy"] for rollout in rollouts) < len(rollouts)
