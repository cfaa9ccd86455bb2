"""Small questions in plain English: the answer follows from the text, splits share neither numbers nor words,
rows do not repeat early."""

import re
from collections import Counter

import pytest
from vlrl_data.generators.easy import KINDS, WORDS

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward, Source


def rows(count=200, **options):
    return list(build(Source, {"name": "gen_easy", "count": count, **options})())


def solved(question):
    """The answer, worked out from the question's text alone."""
    numbers = [int(n) for n in re.findall(r"\d+", question)]
    if "letter" in question:
        letter, text = re.search(r"letter (\w) appear in (?:the word )?([\w ]+)\?", question).groups()
        return text.count(letter)
    return numbers[0] - numbers[1] if "away" in question or "minus" in question else sum(numbers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_answers_follow_from_the_questions(kind, split):
    reward = build(Reward, "numeric")
    for row in rows(ask=[kind], split=split):
        assert row.answer == solved(row.question) and row.task == kind
        assert reward.score(row.target, row.answer) == 1.0 == reward.score(f"{row.answer}", row.answer)
        assert reward.score(f"{row.answer + 1}", row.answer) == 0.0 == reward.score("the answer", row.answer)


def content(row):
    """What a split must not share with the other one: the unordered numbers, or the word."""
    if row.task in ("letters", "spelled"):
        return row.question.partition("appear in")[2].removeprefix(" the word").replace(" ", "")
    return tuple(sorted(re.findall(r"\d+", row.question)))


@pytest.mark.parametrize("kind", KINDS)
def test_splits_share_nothing(kind):
    train, heldout = (
        rows(1000, ask=[kind], split=split, largest=9 if kind == "three" else 20)
        for split in ("train", "heldout")
    )
    mine, theirs = ({content(row) for row in some} for some in (train, heldout))
    assert not mine & theirs and 0.1 < len(theirs) / len(mine | theirs) < 0.3


def test_a_fifth_of_the_pairs_is_held_out_with_mirrors_and_nothing_repeats_early():
    sums = {split: [row.question for row in rows(100, split=split)] for split in ("train", "heldout")}
    counts = {split: len(set(questions)) for split, questions in sums.items()}
    assert sum(counts.values()) == 100 and all(
        len(set(sums[split][: counts[split]])) == counts[split] for split in sums
    )
    for question in sums["heldout"]:
        a, b = re.findall(r"\d+", question)
        assert f"What is {b} plus {a}?" in sums["heldout"]
    assert rows(100)[7] == rows(50)[7] != rows(100, seed=1)[7]


def test_stories_of_both_kinds_stay_grammatical():
    some = rows(300, ask=["story"])
    assert 0.2 < sum("away" in row.question for row in some) / 300 < 0.6
    assert not any(re.search(r"has [01] ", row.question) or row.answer < 1 for row in some)


@pytest.mark.parametrize("kind", ["letters", "spelled"])
def test_no_single_answer_solves_letters(kind):
    for split in ("train", "heldout"):
        assert Counter(row.answer for row in rows(60, ask=[kind], split=split)) == {1: 20, 2: 20, 3: 20}
    assert len(WORDS) == len(set(WORDS)) and sum(max(map(word.count, word)) == 3 for word in WORDS) > 30


def test_kinds_take_turns():
    assert [row.task for row in rows(4, ask=["plus", "letters"])] == ["plus", "letters", "plus", "letters"]


@pytest.mark.parametrize(
    "bad",
    [
        {"ask": []},
        {"ask": ["divided"]},
        {"largest": 3},
        {"ask": ["plus", "three"], "largest": 30},
        {"least": 9},
        {"least": -1},
        {"largest": 200},
        {"least": 6, "largest": 7, "split": "heldout"},
    ],
)
def test_impossible_values_are_refused(bad):
    with pytest.raises(ConfigError, match="ask|least"):
        rows(**bad)
