"""SSRL: what is masked, and which texts have the form."""

import re

import pytest
from tiny import text_run
from vlrl_rewards.format.tags import SearchFormat

from vlrl.methods.papers.ssrl import outside, spans
from vlrl.trainer.step.loop import sample
from vlrl.trainer.views import StepView
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


@pytest.mark.parametrize(
    ("text", "one_line", "any_lines"),
    [
        ("<i>a\nb</i>", [], [(0, 10)]),
        ("<i>a\n<i>b</i>c", [(5, 13)], [(0, 13)]),  # the pattern finds the block on the second line
        ("<i>a</i>\n<i>b\n</i><i>c</i>", [(0, 8), (18, 26)], [(0, 8), (9, 18), (18, 26)]),
        ("<i>a\nb", [], []),
    ],
)
def test_the_released_pattern_stays_on_one_line(text, one_line, any_lines):
    assert spans(text, "i") == one_line == [m.span() for m in re.finditer("<i>(.*?)</i>", text)]
    assert spans(text, "i", across_lines=True) == any_lines
    decode = Pieces(*text).decode
    kept = outside(range(len(text)), "i", decode)
    assert [i for i, keep in enumerate(kept) if not keep] == [i for a, b in one_line for i in range(a, b)]


def test_information_is_not_trained_on():
    decode = Pieces("a", "<i>", "b", "c</", "i>", "d", "").decode
    # the tags are left out with what they hold; a token that begins outside is trained on
    assert outside([0, 1, 2, 3, 4, 5], "i", decode) == [True, False, False, False, False, True]
    assert outside([0, 5], "i", decode) == [True, True] and outside([], "i", decode) == []
    assert outside([0, 1, 2], "i", decode) == [True] * 3  # not closed
    assert outside([1, 0, 6, 3, 4], "i", decode) == [False, False, True, False, False]
    # `create_information_loss_mask` encodes the text up to the closing tag, of which ">\n" is one token more
    ends = Pieces("a <", "i>b</i", ">\n", "c").decode
    assert outside([0, 1, 2, 3], "i", ends) == [True, False, False, True]
    assert outside([0, 1, 0], "i", Pieces("a", "b<i>c</i>").decode) == [True] * 3


def test_what_is_left_out_is_sampled_and_not_trained_on():
    told = "<information>b</information>"
    run = text_run(
        ["methods/grpo"],
        [
            "rollout={name: ssrl}",
            "sampling.max_tokens=99",
            f"engine.options=['a{told}<answer>1</answer>', '<answer>1</answer>']",
        ],
    )
    groups = sample(StepView.between_steps(run), run.prompt_sampler(2))
    rollouts = [rollout for group in groups for rollout in group]
    assert len({rollout.text for rollout in rollouts}) == 2
    for rollout in rollouts:
        left = [t for t, trained in zip(rollout.ids, rollout.trained_mask, strict=True) if not trained]
        assert run.policy.tokenizer.decode(left) == (told if told in rollout.text else "")
        assert rollout.sampled_tokens == len(rollout) and (rollout.loss_mask is None) == (not left)


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
        (ASKED + "<think>a <b>d</b></think><answer>e</answer>", 0.0),  # naive.py:281-285: any other tag
        (ASKED + "<think>1 < 2</think><answer>e</answer>", 0.0),  # "< 2</think>" is none of the tags
        (ASKED + "<think>2 > 1, <></think><answer>e</answer>", 1.0),
    ],
)
def test_the_released_grade(text, expected):
    assert (
        SearchFormat(graded=True, most=7)(Rollout(Prompt(Row("r", "q", "e"), ()), [1], text=text)) == expected
    )
