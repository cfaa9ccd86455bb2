"""R-Horizon's chain with a box for each answer: the last boxes outside the thoughts, in order."""

import pytest
from vlrl_rewards.puzzles.generated import Chain

from vlrl.plugins.scoring import Response, Unread
from vlrl.types import Row

CHAIN = Chain(mode="all", answer_in="box")
ROW = Row("a", "question", None)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (r"\boxed{48} \boxed{21}", 1.0),
        (r"\boxed{1}, no: \boxed{48} \boxed{21}", 1.0),
        (r"\boxed{21} \boxed{48}", 0.0),
    ],
)
def test_the_last_boxes_count_in_order(text, wanted):
    assert CHAIN.grade(Response(text), [48, 21], ROW).score == wanted


@pytest.mark.parametrize(
    "text", [r"\boxed{48}", r"<think>\boxed{48}\boxed{21}</think>", r"\boxed{48}\boxed{2 1}", "48, 21", ""]
)
def test_fewer_boxes_are_no_answer(text):
    with pytest.raises(Unread):
        CHAIN.grade(Response(text), [48, 21], ROW)
