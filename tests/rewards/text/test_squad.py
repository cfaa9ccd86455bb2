"""SQuAD's exact match and F1, by hand, and what they do not accept."""

import pytest
from vlrl_rewards.text.squad import Squad, closed_answer, squad_words

from vlrl.plugins.scoring import GoldError


def score(text, gold, **fields):
    return Squad(**fields).verify(gold, text).score


@pytest.mark.parametrize(
    ("said", "gold", "exact", "f1"),
    [
        ("Paris", "Paris", 1.0, 1.0),
        (" the PARIS. ", "Paris", 1.0, 1.0),
        ("Paris France", "Paris", 0.0, 2 / 3),  # 1 of 2 words, 1 of 1
        ("1,200", "1200", 1.0, 1.0),
        ("not 1,200 yes and", "(b) The Hague not", 0.0, 2 / 7),  # "not" of 4 words and of b, hague, not
        ("U.S.", "us", 1.0, 1.0),
        ("O'Brien", "OBrien", 1.0, 1.0),
        ("red red cat", "red cat cat", 0.0, 2 / 3),  # multisets: red and cat of three words each
        ("café –", "café", 0.0, 2 / 3),  # a dash that is not ASCII is a word
        ("three", "3", 0.0, 0.0),
        ("Paris, not Rome", "Paris", 0.0, 0.5),
        ("Rome", "Paris", 0.0, 0.0),
        ("", "Paris", 0.0, 0.0),
        ("the", "Paris", 0.0, 0.0),
    ],
)
def test_values_by_hand(said, gold, exact, f1):
    text = f"<think>so</think><answer>{said}</answer>"
    assert score(text, gold) == exact
    assert score(text, gold, metric="f1") == pytest.approx(f1)
    assert score(text, ["nowhere else", gold], metric="f1") == pytest.approx(f1)  # the best of several


def test_the_last_closed_answer_counts():
    text = "<answer>Rome</answer> no, <answer>Paris</answer> <answer>Oslo"
    assert score(text, "Paris") == 1.0 and score(text, "Rome") == score(text, "Oslo") == 0.0
    assert score("<answer> <answer>Paris</answer>", "answerParis") == 1.0  # the first tag opens it
    assert closed_answer("</answer>Paris<answer>") is None


@pytest.mark.parametrize("text", ["", "Paris", "The answer is Paris.", "\\boxed{Paris}", "<answer>Paris"])
def test_without_tags_there_is_no_answer(text):
    found = Squad().verify("Paris", text)
    assert found.score == 0.0 and found.unread and not found.correct


def test_many_tags_take_linear_time():
    assert score("<answer>" * 100_000, "Paris") == 0.0
    assert score("<answer>x</answer>" * 50_000 + "<answer>Paris</answer>", "Paris") == 1.0


@pytest.mark.parametrize("gold", ["", "the", "!?", [], ["Paris", ""]])
def test_a_gold_without_a_word_is_refused(gold):
    with pytest.raises(GoldError, match="has no word"):
        Squad().verify(gold, "<answer>Paris</answer>")


def test_articles_are_whole_words():
    assert squad_words("An anthem, a the-sis; THE end_a") == ["anthem", "thesis", "enda"]
