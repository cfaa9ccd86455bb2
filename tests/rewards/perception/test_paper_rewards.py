"""Rewards of single papers: values by hand, limits, wrong answers."""

from types import SimpleNamespace

import numpy as np
import pytest
from vlrl_rewards.charts.chart_code import ChartCode, parsed
from vlrl_rewards.charts.crashes import crash_reason
from vlrl_rewards.format.tags import TagFormat
from vlrl_rewards.gui.actions import GuiAction
from vlrl_rewards.gui.grounding import Blink
from vlrl_rewards.puzzles.plans import PlanFormat
from vlrl_rewards.recognition.verdicts import EntityNamed, Preference, concluded
from vlrl_rewards.text.embedding_match import Bmas, bmas
from vlrl_rewards.text.mentions import Keywords
from vlrl_rewards.text.process import rouge_mean

from vlrl.types import CoordinateSpace


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\n\n</think><answer>3</answer>", 1.0),  # TON's empty thought scores like a full one
        ("<think>so</think><answer>3</answer>", 1.0),
        ("<think></think><answer></answer>", 0.0),
        ("<answer>3</answer>", 0.0),
    ],
)
def test_empty_thoughts_may_score(rollout, text, expected):
    assert TagFormat(may_be_empty=("think",))(rollout("3", text)) == expected


def test_empty_thoughts_do_not_score_by_default(rollout):
    assert TagFormat()(rollout("3", "<think>\n\n</think><answer>3</answer>")) == 0.0
    with pytest.raises(ValueError, match="may_be_empty"):
        TagFormat(tags=("answer",), may_be_empty=("think",))


@pytest.mark.parametrize(
    ("point", "expected"),
    [([100, 100], 1), ([112, 100], 1), ([115, 100], 0), ([100, 128], 1), ([100, 129], 0)],
)
def test_btl_ui_tolerance_is_relative_to_each_side(point, expected):
    """W = 100, H = 200, 0.14: 14 pixels across and 28 down from the gold point (100, 100), edge excluded, in
    a gold box that holds all."""
    gold = {"action": "click", "box": [0, 0, 199, 199], "point": [100, 100]}
    scene = {"spaces": (CoordinateSpace((100, 200), (100, 200)),)}
    point = [min(point[0], 1000), point[1] - (point[1] == 128)]
    assert (
        GuiAction(relative=0.14)
        .verify(gold, f'<answer>{{"action": "click", "point": {point}}}</answer>', **scene)
        .score
        == expected
    )


@pytest.mark.parametrize(
    ("blink", "expected"), [("None", 1.0), ("[]", 1.0), ('[{"bbox_2d": [1, 1, 9, 9]}]', 0.0)]
)
def test_blink_of_an_action_without_a_place(blink, expected):
    gold = {"action": "scroll", "direction": "up"}
    assert Blink().verify(gold, f"<blink>{blink}</blink><think>so</think><link>x</link>").score == expected


def plan(*steps, keys=("reasoning_and_reflection", "visual_state_description", "language_plan")):
    import json

    return json.dumps(
        {
            **dict.fromkeys(keys, "x"),
            "executable_plan": [dict(zip(("action_id", "action_name"), step, strict=True)) for step in steps],
        }
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (plan((0, "go"), (1, "TAKE")), 0.5),
        (plan((0, "go"), (0, "take")), 0.125 + 0.125 + 0.125),  # the second number is another action's
        (plan((0, "go"), ("1", "take")), 0.125 + 0.0625 + 0.125),  # a number as text is not well-typed
        (plan((7, "go")), 0.25),
        (plan(), 0.125),
        (plan((0, "go"), keys=()), 0.375),
        ("go, take", 0.0),
    ],
)
def test_plan_format(rollout, text, expected):
    assert PlanFormat()(rollout(["go"], text, actions=["go", "take"])) == pytest.approx(expected)


def test_plan_format_needs_the_actions(rollout):
    with pytest.raises(ValueError, match="meta.actions"):
        PlanFormat()(rollout(["go"], plan()))


HEAD = "import matplotlib.pyplot as plt\n"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (HEAD + "plt.bar(['a', 'b'], [1, 2])\nplt.show()", ""),
        ("plt.bar([1], [2])", "the name 'plt' is not defined"),
        (HEAD + "plt.bar(names, [1, 2])", "'names' is not defined"),
        (HEAD + "plt.bar([1, 2, 3], [1, 2])", "bar of 3 and 2 values"),
        (HEAD + "x = [1, 2]\ny = [1]\nplt.plot(x, y)", "plot of 2 and 1 values"),
        (HEAD + "plt.barchart([1], [2])", "no function 'barchart'"),
        (HEAD + "raise SystemExit\nplt.bar([1], [2])", "raise"),
        (
            HEAD
            + (
                "def f(a):\n    return a + b\nfor i in range(3):\n    plt.text(i, 0, str(i))\nplt.bar([1], "
                "[2])"
            ),
            "",
        ),
        (HEAD + "values = [v * 2 for v in range(3)]\nplt.bar(range(3), values, label=lambda q: q)", ""),
        (
            HEAD + "try:\n    import seaborn as sns\nexcept ImportError:\n    sns = None\nplt.bar([1], [2])",
            "",
        ),
        ("from matplotlib.pyplot import *\nbar([1], [2])", ""),
        (HEAD + "fig, ax = plt.subplots()\nax.bar([1], [2])\nif (n := 3) > 2:\n    print(n)", ""),
    ],
)
def test_scripts_that_stop(code, reason):
    found = crash_reason(parsed(code))
    assert (reason in found) if reason else not found


def test_a_script_that_stops_scores_nothing():
    gold = HEAD + 'plt.bar(["a", "b"], [1, 2], color="red")\nplt.title("T")'
    assert ChartCode().verify(gold, f"```python\n{gold}\n```").score == 1.0
    assert ChartCode().verify(gold, f"```python\n{gold}\nplt.title(name)\n```").score == 0.0


def test_bmas_by_hand():
    """s = (e1, e2), g = (e1): max cosines of s are 1 and 0, of g 1: (1/2 + 1) / 2 = 3/4; the same the other
    way round."""
    one, two = np.array([[2.0, 0.0], [0.0, 3.0]]), np.array([[5.0, 0.0]])
    assert bmas(one, two) == pytest.approx(0.75) and bmas(two, one) == pytest.approx(0.75)
    assert (
        bmas(one, one) == pytest.approx(1.0) and bmas(one, -one) == 0.0 and bmas(one, np.zeros((0, 2))) == 0.0
    )


class Words:
    """A policy whose tokens are words; word k has the k-th unit vector as embedding."""

    names = ("red", "green", "circle", "square")

    def __init__(self):
        import torch

        self.weight = torch.eye(len(self.names))
        self.model = SimpleNamespace(get_input_embeddings=lambda: SimpleNamespace(weight=self.weight))

    def encode_text(self, text):
        return [self.names.index(word) for word in text.split() if word in self.names]


@pytest.mark.parametrize(
    ("said", "length", "expected"),
    [
        ("red circle", 1.0, 1.0),
        ("red square", 1.0, 0.5),
        ("red", 1.0, 0.5 * (1 + 0.5) / 2),
        ("red circle red circle", 0.0, 1.0),  # the paper's form: repetition is free
        ("red circle red circle", 1.0, 0.5),
        ("nothing", 1.0, 0.0),
    ],
)
def test_bmas_of_texts(rollout, said, length, expected):
    reward = Bmas(length=length)
    reward.setup(SimpleNamespace(policy=Words()))
    assert reward(rollout("red circle", f"<answer>{said}</answer>")) == pytest.approx(expected)


def test_bmas_needs_a_run(rollout):
    with pytest.raises(RuntimeError, match="setup"):
        Bmas()(rollout("red", "<answer>red</answer>"))


@pytest.mark.parametrize(
    ("thought", "answer", "expected"),
    [
        ("Answer 1 is better.", "1", 1.5),
        ("Answer 2 is better.", "1", 0.5),
        ("Hard to say.", "1", 1.0),
        ("Answer 1 is better.\nAnswer 2 is better.", "1", 1.0),
        ("Answer 1 is better.", "2", 0.0),
        ("Answer 2 is better.\nno\nno\nno", "1", 1.0),  # only the last three lines count
    ],
)
def test_preference(rollout, thought, answer, expected):
    reward = Preference()
    value = reward(rollout("1", f"<think>{thought}</think><answer>{answer}</answer>"))
    assert value == pytest.approx(expected) and reward.correct(None, value) == (answer == "1")


def test_concluded_reads_closed_thoughts_alone():
    assert concluded("<think>I prefer answer 2</think>") == "2" and concluded("Answer 2 is better") == ""


def test_entity_named(rollout):
    reward = EntityNamed()

    def scored(thought, entity="blue", headline="A blue circle moves to the left"):
        return reward(
            rollout("yes", f"<think>{thought}</think><answer>yes</answer>", entity=entity, headline=headline)
        )

    assert (
        scored("It is not red.") == 0.0
        and scored("The word blue is false.") == 1.0
        and scored("I see a circle. It isn't blue.") == 1.0
    )
    # one of two words that are called false, one of three, and all five: the headline again
    assert scored("The blue circle is wrong.") == 0.5 and scored(
        "Blue is wrong. Left is wrong.\nA circle? Not shown"
    ) == pytest.approx(1 / 2)
    assert (
        scored("Blue circle left is wrong.") == pytest.approx(1 / 3)
        and scored("Blue circle moves to the left: false") == 0.0
    )
    assert (
        scored("A blue circle moves to the left")
        == scored("Blue is not wrong.")
        == scored("No blue circle is not there")
        == 0.0
    )
    # E of two words: 2 / 3
    assert scored("The blue circle on the left is fake", entity="blue circle") == pytest.approx(2 / 3)
    assert scored("left is fake, the circle is blue", entity="blue circle") == 0.0
    # a headline of its false part alone
    assert scored("Blue is wrong", headline="Blue") == 1.0
    assert (
        reward(rollout("no", "<answer>no</answer>", entity="")) == 1.0
        and reward(rollout("no", "", entity="")) == 0.0
    )
    with pytest.raises(ValueError, match="headline.*must hold the headline, with its false part 'blue'"):
        scored("x", headline="A red circle")
    with pytest.raises(ValueError, match="entity"):
        reward(rollout("no", "<answer>no</answer>"))


def test_keywords_that_are_not_there_cost(rollout):
    """Both of two keywords and two phrases of the vocabulary that are no keywords: 2 / (2 + 2)."""
    text = (
        "I can see here that there is a cat and also a dog, and I can see that there is a bird and also a "
        "fish."
    )
    assert Keywords()(rollout(["cat", "dog"], text)) == 1.0
    assert Keywords()(
        rollout(["cat", "dog"], text, vocabulary=["cat", "dog", "bird", "fish", "cow"])
    ) == pytest.approx(0.5)


def test_rouge_mean_by_hand():
    """said "a red cat", gold "a red dog": ROUGE-1 and -L 2/3, ROUGE-2 1/2: 11/18; one word has no bigrams."""
    assert rouge_mean("a red cat", "a red dog") == pytest.approx(11 / 18)
    assert rouge_mean("dog", "dog") == 1.0 and rouge_mean("cat", "dog") == 0.0
