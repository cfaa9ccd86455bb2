"""The reward for retrieval: what a tool showed, and nothing that the policy wrote itself."""

import pytest
from vlrl_rewards.tool_use import AnswerFound, replies

from vlrl.plugins.episodes import ACTIONS, TRANSCRIPT
from vlrl.types import Prompt, Rollout, Row

SEARCH, ANSWER = "<search> Ada </search>", "<answer>Arlen</answer>"


def score(actions, shown, answer="Arlen"):
    """The reward of an episode with `shown` behind each turn."""
    rollout = Rollout(Prompt(Row("a", "Where does Ada live?", answer), ()), [1], text="\n".join(actions))
    ACTIONS.set(rollout, list(actions))
    TRANSCRIPT.set(rollout, "".join(turn + reply for turn, reply in zip(actions, shown, strict=True)))
    return AnswerFound()(rollout)


@pytest.mark.parametrize(
    ("actions", "shown", "expected"),
    [
        ([SEARCH, ANSWER], ["<information>Ada lives in ARLEN.</information>", ""], 1.0),
        ([SEARCH, "<answer>Birk</answer>"], ["<information>Ada lives in Arlen.</information>", ""], 1.0),
        ([SEARCH, ANSWER], ["<information>Ada lives in Arlenburg.</information>", ""], 0.0),
        ([SEARCH, ANSWER], ["<information>No information available</information>", ""], 0.0),
        ([ANSWER], [""], 0.0),  # the answer itself is no result
        (["<information>Ada lives in Arlen.</information>" + ANSWER], [""], 0.0),
        (["zzz 9 9 9"], [""], 0.0),
        ([""], [""], 0.0),
        ([], [], 0.0),
    ],
)
def test_what_is_paid(actions, shown, expected):
    assert score(actions, shown) == expected


def test_a_turn_that_repeats_a_result_hides_nothing():
    """The second turn says what the first reply says: both replies are found where they stand."""
    shown = ["<information>Ben.</information>", "<information>Arlen.</information>"]
    assert replies("aBen" + shown[0] + "Ben" + shown[1], ["aBen", "Ben"])[-1].endswith(shown[1])
    assert score(["aBen", "Ben"], shown) == 1.0


def test_a_list_of_golds_and_a_row_without_one():
    assert score([SEARCH], ["<information>Birk.</information>"], ["Arlen", "Birk"]) == 1.0
    with pytest.raises(ValueError, match="no gold answer"):
        score([SEARCH], [""], "")
