"""Text metrics against sacrebleu, rouge-score and jiwer on 1,000 random cases each, and by hand."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vlrl_rewards import verify
from vlrl_rewards.text import metrics as metric

WORDS = ["the", "cat", "sat", "on", "mat", "Dog", "runs,", "fast.", "3.5", "x-ray", "(red)", "it's", "end"]


def pairs(n=1000):
    rng = random.Random(7)
    for _ in range(n):
        yield tuple(" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 14))) for _ in range(2))


def test_bleu_and_chrf_agree_with_sacrebleu():
    from sacrebleu.metrics import BLEU, CHRF

    sentence, characters = BLEU(effective_order=True), CHRF()
    for said, gold in pairs():
        assert metric.bleu(said, gold) == pytest.approx(
            sentence.sentence_score(said, [gold]).score / 100, abs=1e-9
        )
        assert metric.chrf(said, gold) == pytest.approx(
            characters.sentence_score(said, [gold]).score / 100, abs=1e-9
        )


def test_rouge_agrees_with_rouge_score():
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    for said, gold in pairs():
        expected = scorer.score(gold, said)
        assert metric.rouge_n(said, gold) == pytest.approx(expected["rouge1"].fmeasure)
        assert metric.rouge_n(said, gold, 2) == pytest.approx(expected["rouge2"].fmeasure)
        assert metric.rouge_l(said, gold) == pytest.approx(expected["rougeL"].fmeasure)


def test_meteor_agrees_with_nltk():
    from nltk.translate.meteor_score import single_meteor_score

    class NoWords:
        """A stemmer that changes nothing, and a dictionary without synonyms."""

        def stem(self, word):
            return word

        def synsets(self, word):
            return []

    for said, gold in [*pairs(), ("the cat the dog", "the dog the cat"), ("a b c x d e", "a b c d e")]:
        words = [metric._rouge_tokens(text) for text in (gold, said)]
        expected = single_meteor_score(*words, stemmer=NoWords(), wordnet=NoWords())
        assert metric.meteor(said, gold) == pytest.approx(expected)


def test_error_rates_agree_with_jiwer():
    import jiwer

    for said, gold in pairs():
        assert metric.word_error_rate(said, gold) == pytest.approx(jiwer.wer(gold, said))
        assert metric.char_error_rate(said, gold) == pytest.approx(jiwer.cer(gold, said))


def test_by_hand():
    assert metric.token_f1("the red cat", "a cat") == pytest.approx(2 * (1 / 2) * 1 / (1 / 2 + 1))
    assert metric.anls("hell", "hello") == pytest.approx(0.8)
    assert metric.anls("he", "hello") == 0.0
    assert metric.word_error_rate("a b", "a b c d") == 0.5
    # 3 matches of 3 and 6 words in 2 chunks: P = 1, R = 1/2
    score = 0.5 / (0.9 * 1 + 0.1 * 0.5) * (1 - 0.5 * (2 / 3) ** 3)
    assert metric.meteor("on mat sat", "the cat sat there on mat") == pytest.approx(score)


@given(st.text(max_size=40), st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_bounds_and_identity(a, b):
    for score in (
        metric.token_f1,
        metric.set_f1,
        metric.rouge_n,
        metric.rouge_l,
        metric.bleu,
        metric.meteor,
        metric.chrf,
        metric.anls,
    ):
        assert 0.0 <= score(a, b) <= 1.0 + 1e-12
    if metric.fold(a):
        assert metric.token_f1(a, a) == 1.0
        assert metric.token_f1("", a) == 0.0


@pytest.mark.parametrize(
    ("said", "gold", "expected"),
    [
        ("the Eiffel Tower", "Eiffel Tower", 0.8),  # an article is a word: precision 2/3, recall 1
        ("Tower, Eiffel. Eiffel!", "Eiffel Tower", 1.0),  # once each
        ("x-ray", "x ray", 1.0),
        ("Paris", "Rome", 0.0),
        ("", "Rome", 0.0),
        ("\u5317\u4eac", "\u5317\u4eac\u5e02", 0.8),  # characters of a script without spaces
        ("2008 \u5e74", "2008\u5e74\uff0c", 1.0),  # beside a Chinese gold numbers stay whole, and commas go
        ("\u5317\u4eac", "Beijing \u5317 \u4eac", 0.4),  # its letters are characters too: 2 of 2, 2 of 8
        ("\u5317\u4eac", "Beijing", 0.0),
        ("True", "yes", 1.0),
        ("no", "False", 1.0),
        ("true", "yes", 0.0),
        ("5\u20ac", "5 \u20ac", 0.0),  # only ASCII punctuation parts words
    ],
)
def test_word_sets_by_hand(said, gold, expected):
    assert metric.set_f1(said, gold) == pytest.approx(expected)


@pytest.mark.parametrize(
    "kind", ["f1", "set_f1", "rouge1", "rouge2", "rougeL", "bleu", "chrf", "anls", "wer", "cer"]
)
def test_kinds_right_wrong_garbage_empty_adversarial(kind):
    gold = "a small red house stands near the river"
    assert verify(gold, f"<think>hm</think><answer>{gold}</answer>", kind).score == pytest.approx(1.0)
    assert verify(gold, f"<answer>{gold}</answer>", kind).correct
    assert not verify(gold, "completely different words follow here", kind).correct
    for bad in (
        "",
        "...",
        "<answer></answer>",
        f"<think>{gold}</think>",
        f"<think>{gold}",
        "I'm sorry, I cannot answer this question.",
    ):
        verdict = verify(gold, bad, kind)
        assert verdict.score == 0.0 and not verdict.correct, bad
    assert not verify(gold, " ".join([gold, "filler"] * 60), kind, correct_at=0.9).correct
    with pytest.raises(ValueError, match="empty"):
        verify("", "x", kind)
