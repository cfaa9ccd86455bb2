"""SSRL: what is masked, and which texts have the form."""

from types import SimpleNamespace

import pytest
from make import group, inputs
from vlrl_rewards.format.tags import SearchFormat

from vlrl.methods.papers.ssrl import Ssrl, spans
from vlrl.types import Prompt, Rollout, Row


class Pieces:
    """Tokens are pieces of text, by number."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def decode(self, ids):
        return "".join(self.pieces[i] for i in ids)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a<i>bc</i>d", [(1, 10)]),
        ("<i>a</i><i>b</i>", [(0, 8), (8, 16)]),
        ("x<i>yz", []),
        ("</i>a", []),
        ("", []),
    ],
)
def test_spans(text, found):
    assert spans(text, "i") == found


def test_information_is_not_trained_on():
    mask = Ssrl(tag="i")
    mask.setup(
        SimpleNamespace(policy=SimpleNamespace(tokenizer=Pieces("a", "<i>", "b", "c</", "i>", "d", "")))
    )
    g = group(1, 0, lengths=[6, 2])
    g.rollouts[0].ids, g.rollouts[1].ids = [0, 1, 2, 3, 4, 5], [0, 5]
    x = inputs([[-1.0] * 6] * 2, lengths=[6, 2], groups=[g])
    # the tags are masked with what they hold; a rollout without the tag keeps all
    assert mask(x).tolist() == [[1, 0, 0, 0, 0, 1], [1] * 6]
    assert Ssrl()(x).tolist() == [[1] * 6] * 2


ASKED = "<think>a</think><search>b</search><information>c</information>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ASKED + "<think>d</think><answer>e</answer>", 1.0),
        (ASKED * 3 + "\n<think>d</think>\n<answer>e</answer>\n", 1.0),
        ("<think>d</think><answer>e</answer>", 1.0),
        ("<search>b</search><information>c</information><think>d</think><answer>e</answer>", 1.0),
        (ASKED + "<answer>e</answer>", 0.0),
        (ASKED * 11 + "<think>d</think><answer>e</answer>", 0.0),
        (ASKED + "so <think>d</think><answer>e</answer>", 0.0),
        ("<think>a</think><search>b</search><think>d</think><answer>e</answer>", 0.0),
        ("<think><search>b</search></think><answer>e</answer>", 0.0),
        ("<think>d</think><answer></answer>", 0.0),
        ("<think>d</think><answer>e", 0.0),
        ("e", 0.0),
        ("", 0.0),
    ],
)
def test_form(text, expected):
    assert SearchFormat()(Rollout(Prompt(Row("r", "q", "e"), ()), [1], text=text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ASKED + "<think>d</think><answer>e</answer>", 1.0),  # two thoughts, one search
        ("<think>d</think><answer>e</answer>", 0.5),  # one thought, no search
        (ASKED + "<answer>e</answer>", 0.25),  # one thought for one search: 1/2 of 1/2
        (ASKED * 7 + "<think>d</think><answer>e</answer>", 1.0),
        (ASKED * 8 + "<think>d</think><answer>e</answer>", 0.0),  # nine thoughts
        ("<search>b</search><information>c</information><think>d</think><answer>e</answer>", 0.0),
        (ASKED.replace("b", "b\nb") + "<think>d</think><answer>e</answer>", 0.0),
        (ASKED + "<think>d</think><answer>e</answer> done", 0.0),
    ],
)
def test_the_released_grade(text, expected):
    assert (
        SearchFormat(graded=True, most=7)(Rollout(Prompt(Row("r", "q", "e"), ()), [1], text=text)) == expected
    )
