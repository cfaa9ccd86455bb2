"""What denies, bounds or takes back an answer does so for every reader: letters, numbers, boxes, options by
their words."""

import pytest
from vlrl_rewards.math.written_numbers import numbers_in
from vlrl_rewards.parsing import committed
from vlrl_rewards.text.choice import Options, by_text
from vlrl_rewards.text.denials import bounded, denied, taken_back
from vlrl_rewards.text.letters import mentions

DENIALS = [
    "not",
    "never",
    "except",
    "except for",
    "excluding",
    "all but",
    "anything but",
    "rather than",
    "instead of",
    "the opposite of",
    "without",
]


@pytest.mark.parametrize("denial", DENIALS)
def test_what_is_denied_is_denied_to_all(denial):
    options = Options.of(("Paris", "Rome"))
    assert (
        mentions(f"{denial} B", 4) == []
        and numbers_in(f"{denial} 7") == []
        and by_text(f"{denial} Paris it is", options, whole=False) == []
    )
    text = f"{denial} [1, 2, 3, 4]"
    assert denied(text, text.index("["), len(text))
    assert (
        mentions("it is B", 4) == ["B"]
        and numbers_in("it is 7") == [(7.0, 6)]
        and by_text("it is Paris", options, whole=False) == ["A"]
    )


@pytest.mark.parametrize(
    "text", ["more than 7", "at least 7", "7 or more", "7 and up", "nearly 7", "7 or so"]
)
def test_a_bound_is_no_number(text):
    assert bounded(text) and numbers_in(text) == []
    assert not bounded("seven is 7") and numbers_in("it is 7") == [(7.0, 6)]


@pytest.mark.parametrize(
    "turn", ["on second thought", "on second thoughts", "scratch that", "I mean", "just kidding"]
)
def test_what_takes_back_also_amends(turn):
    assert (
        taken_back(f", {turn}, 8")
        and committed(f"The answer is 7. {turn.capitalize()}, it is 8").text.strip() == "8"
    )
    assert not taken_back(". Checked: 8 - 1.")
