"""IKEA: the released rewards by hand, and the balanced training set."""

import pytest

from vlrl.methods.papers.ikea import Ikea, IkeaBalance
from vlrl.plugins.episodes import ACTIONS, EPISODE_END, INVALID_ACTIONS, TRANSCRIPT
from vlrl.plugins.registry import ConfigError
from vlrl.types import Group, Prompt, Rollout, Row

PROMPT = Prompt(row=Row("a", "q", "Rome"), messages=())


def rollout(text, correct, end="done", invalid=0, actions=()):
    made = Rollout(prompt=PROMPT, ids=[1], text=text)
    made.outcome, made.correct = float(correct), correct
    EPISODE_END.set(made, end)
    ACTIONS.set(made, list(actions))
    INVALID_ACTIONS.set(made, invalid)
    return made


def searched(times, answer="Rome"):
    return "<think>so</think>" + "<search>x</search>\n" * times + f"<answer>{answer}</answer>"


@pytest.mark.parametrize(
    ("times", "right", "wrong"),
    [(0, 1.6, 0.0), (1, 1.4, 0.05), (2, 1.2, 0.05), (3, 1.0, 0.05), (9, 1.0, 0.05)],
)
def test_released_values(times, right, wrong):
    group = Group(PROMPT, [rollout(searched(times), True), rollout(searched(times, "Oslo"), False)])
    assert Ikea()(group) == pytest.approx([right, wrong], abs=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "<answer>Rome</answer>",  # no thought
        "<think>so</think>(search)x(/search)<answer>Rome</answer>",
        "<think>so</think><answer>Rome</answer>[answer",
        "<think>so</think> I give up.",  # neither a search nor an answer
    ],
)
def test_malformed_is_minus_one_even_where_it_is_correct(text):
    assert Ikea().value(rollout(text, True)) == -1.0


def test_a_passage_with_a_tag_in_other_brackets_is_malformed_as_in_the_release():
    # qa_em.py looks for "search)" in the whole conversation, passages included
    said = rollout(searched(1), True)
    for passage, pays in (
        ("Rome is in Italy (research: Reed).", 1.4),
        ("Rome (research) is in Italy.", -1.0),
    ):
        TRANSCRIPT.set(said, said.text.replace("</search>", f"</search><information>{passage}</information>"))
        assert Ikea().value(said) == pytest.approx(pays, abs=1e-12)


def test_calls_of_another_tool_cost_as_searches_do():
    called = rollout("<think></think><tool_call>{}</tool_call>\n<think></think><answer>Rome</answer>", True)
    assert Ikea(call="<tool_call>").value(called) == pytest.approx(1.4, abs=1e-12) and Ikea().value(
        called
    ) == pytest.approx(1.6, abs=1e-12)
    called.correct = False
    assert Ikea(call="<tool_call>").value(called) == 0.05 and Ikea().value(called) == 0.0
    with pytest.raises(ValueError, match="call is empty"):
        Ikea(call="")


def test_invalid_actions_and_ends():
    assert Ikea().value(rollout(searched(1), True, invalid=1)) == -1.0
    assert Ikea().value(rollout("<think>so</think><search>x</search>", False, end="max_turns")) == 0.05, (
        "cut short is not malformed"
    )


def test_nothing_answers_the_last_turn():
    # qa_em.py looks for "My previous action is invalid", which all turns but the last get (generation.py)
    thought, search = "<think>so</think>", "<search>x</search>"
    last = rollout(thought + search + "so", False, "max_turns", 1, [thought + search, "so"])
    before = rollout(thought + search, False, "max_turns", 1, [thought, search])
    both = rollout(thought + "so", False, "max_turns", 2, [thought, "so"])
    assert [Ikea().value(made) for made in (last, before, both)] == [0.05, -1.0, -1.0]


def test_as_many_known_as_unknown_rows():
    rows = [Row(str(i), "q", "a", meta={"known": int(i % 4 == 0)}) for i in range(40)]
    kept = IkeaBalance()(rows)
    assert len(kept) == 20 and sum(row.meta["known"] for row in kept) == 10
    assert [int(row.id) for row in kept] == sorted(int(row.id) for row in kept)
    assert (
        [row.id for row in kept]
        == [row.id for row in IkeaBalance()(rows)]
        != [row.id for row in IkeaBalance(seed=1)(rows)]
    )
    with pytest.raises(ConfigError, match="both kinds"):
        IkeaBalance()(rows[1:4])
    with pytest.raises(ConfigError, match=r"no meta\['known'\]"):
        IkeaBalance()([Row("a", "q")])
