"""OS-R1's reward by hand, and that its rows can be answered."""

from types import SimpleNamespace

import pytest
from vlrl_data.generators.kernel_options import GenKernelOptions
from vlrl_rewards.text.kernel_config import SCORES, UNCLEAR, KernelConfig

from vlrl.plugins.episodes import ACTIONS


def rollout(answer, *turns):
    made = SimpleNamespace(answer=answer, info={})
    ACTIONS.set(made, list(turns))
    return made


BOOL = {"a": "increase", "b": UNCLEAR}


@pytest.mark.parametrize(
    ("kind", "gold", "answer", "score"),
    [
        ("Bool", BOOL, f"[A - increase]\n[b - {UNCLEAR}]", 1.0),
        ("Bool", BOOL, "[A - increase]\n[b - decrease]", 0.3 + 0.35),
        ("Bool", BOOL, "A - increase\n[b - maybe]", 0.1 + 0.35),
        ("Bool", BOOL, "[A - increase]\n[A - increase]", 0.3 + 0.35),
        ("Bool", BOOL, "A", 0.1 * 1),
        ("Bool", BOOL, "", 0.2),
        ("Menu", ["A", "B"], "[a]\n[b]\n[c]", 1.0),
        ("Menu", ["A", "B"], "a", 0.45),
        ("Menu", ["A", "B"], "[c]", 0.1),
        ("Choice", "A", "[a]", 1.0),
        ("Choice", "A", "a", 0.8),
        ("Choice", "A", "[b]", 0.2),
        ("Choice", "A", "", 0.0),
        ("Value", ["A=1", "B=2"], "a=1\nB=2", 1.0),
        ("Value", ["A=1", "B=2"], "A=1\nA=1\nA=1", 0.5),
        ("Value", ["A=1", "B=2"], "A=2", 0.0),
        ("Value", ["A=1", "B=2"], "A=1\nA=2\nB=2", 0.5),
    ],
)
def test_answers_by_kind(kind, gold, answer, score):
    assert SCORES[kind](answer, gold) == pytest.approx(score)


LOOK, SAY = (
    '<think>x</think>\n<tool_call>{"name": "describe"}</tool_call>',
    "<think>x</think>\n<answer>[a]</answer>",
)


@pytest.mark.parametrize(
    ("turns", "score"),
    [
        ((LOOK, SAY), 1.0),
        (("?", LOOK, LOOK, SAY), 1.0),
        ((LOOK, "<think>x</think><answer>[b]</answer>"), 0.2),
        ((SAY,), -0.45),
        ((LOOK, "<answer>[a]</answer>"), -0.55),
        ((LOOK,), -1.0),
        ((SAY, SAY), -0.45),
        (("<think><think>x</think>" + LOOK, SAY), -0.45),
        (("<think>" * 20000,), -1.0),
        ((), -1.0),
    ],
)
def test_form_comes_before_the_answer(turns, score):
    assert KernelConfig()(rollout({"type": "Choice", "gold": "A"}, *turns)) == pytest.approx(score)


def test_rows_can_be_answered():
    kinds = set()
    for row in GenKernelOptions(count=40)():
        head, _, rest = row.target.partition("</tool_call>")
        assert KernelConfig()(rollout(row.answer, head + "</tool_call>", rest)) == pytest.approx(1.0)
        kinds.add(row.answer["type"])
        assert all(
            option in row.meta["functions"][0]["table"]
            for option in row.question.partition("Options: ")[2].split(". ")[0].split(", ")
        )
    assert kinds == set(SCORES)
