"""Rewards of what was heard: error rates against numbers by hand and rapidfuzz, hallucinations, keywords,
SoundMind's label, form and length."""

from __future__ import annotations

import random

import pytest
from rapidfuzz.distance import Levenshtein
from vlrl_rewards.text import transcripts
from vlrl_rewards.text.entailment import label_of, reference_words

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.scoring import GoldError
from vlrl.plugins.stages import Reward
from vlrl.types import Row

GOLD = "The quick brown fox jumps."  # five words


def pay(name: str, text: str, gold: object = GOLD, **row) -> float:
    options = row.pop("options", {})
    return build(Reward, {"name": name, **options}).score(text, gold, **row)


@pytest.mark.parametrize(
    ("text", "paid"),
    [
        ("the quick brown fox jumps", 1.0),
        ("<answer>The quick, brown fox jumps!</answer>", 1.0),
        ("the quick brown box jumps", 0.8),  # one of five words
        ("the quick fox", 0.6),  # two left out
        ("the quick brown fox jumps over the dog", 0.4),  # three added
        ("lorem ipsum", 0.0),
        ("", 0.0),
        ("the " * 6000, 0.0),  # over 20,000 characters
        ("ha " * 500, 0.0),  # far more edits than words: not negative
        ("<answer>a</answer><answer>the quick brown fox jumps</answer> but I take that back", 0.0),
    ],
)
def test_accuracy_by_words(text: str, paid: float) -> None:
    assert pay("transcript", text) == pytest.approx(paid)


def test_accuracy_by_characters() -> None:
    assert pay("transcript", "今天天气好", "今天天气很好", options={"unit": "char"}) == pytest.approx(5 / 6)
    assert pay("transcript", "abcx", "abcd", options={"unit": "char"}) == pytest.approx(0.75)


def test_error_rates_are_edits_over_the_reference() -> None:
    rng = random.Random(0)
    for _ in range(200):
        said, meant = (" ".join(rng.choices("abc", k=rng.randint(1, 8))) for _ in range(2))
        words = Levenshtein.distance(said.split(), meant.split()) / len(meant.split())
        assert transcripts.error_rate(said, meant, "word") == pytest.approx(words)
        letters = Levenshtein.distance(said, meant) / len(meant)
        assert transcripts.error_rate(said, meant, "char") == pytest.approx(letters)


@pytest.mark.parametrize("gold", ["", " ... ", None, 7])
@pytest.mark.parametrize("name", ["transcript", "transcript_faults"])
def test_a_reference_without_words_is_no_gold_answer(name: str, gold: object) -> None:
    with pytest.raises(ValueError, match="is empty or not a text"):
        pay(name, "the fox", gold)


def test_without_jiwer_the_config_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"'transcript' counts by jiwer, .*\[audio\]"):
        build(Reward, {"name": "transcript"})


@pytest.mark.parametrize(
    ("text", "paid"),
    [
        ("the quick brown fox jumps", 0.0),
        ("the slow red box sits", 0.0),  # wrong, and no hallucination
        ("the fox the fox the fox the fox", -1.0),  # a phrase four times
        ("jumps jumps jumps", 0.0),  # three times
        ("one two three four five six seven eight nine ten eleven", -1.0),  # eleven words for five
        ("那只狐狸跳了起来", -1.0),  # translated
        ("", -1.0),
        ("?!", -1.0),  # no word, as empty
    ],
)
def test_hallucinations(text: str, paid: float) -> None:
    assert pay("transcript_faults", text) == paid


def test_what_the_speaker_repeats_is_no_fault() -> None:
    assert pay("transcript_faults", "no no no no no", "no no no no no") == 0.0


@pytest.mark.parametrize(
    ("text", "paid"),
    [
        ("the quick brown fox jumps", 1.0),
        ("a fox", 0.75),  # precision 1, recall 1/2
        ("quick fox and a wolf", 5 / 6),  # precision 2/3, recall 1
        ("a wolf", 0.0),
        ("foxes quickly", 0.0),  # whole words alone
        ("nothing", 0.0),
        ("", 0.0),
    ],
)
def test_keywords(text: str, paid: float) -> None:
    meta = {"keywords": ["quick", "Fox", "wolf"]}
    assert pay("transcript_keywords", text, meta=meta) == pytest.approx(paid)


def test_no_keyword_on_either_side_is_right_and_no_list_is_refused() -> None:
    assert pay("transcript_keywords", "a dog", "the dog", meta={"keywords": ["wolf"]}) == 1.0
    with pytest.raises(ValueError, match="meta.keywords"):
        pay("transcript_keywords", "a dog", "the dog")


RIGHT = "<think>It need not hold.</think>\nAnswer: not-entailed"


@pytest.mark.parametrize(
    ("text", "label", "form"),
    [
        (RIGHT, 1.0, 1.0),
        ("<think>so</think> Answer: Not entailed.", 1.0, 1.0),
        ("<think>so</think>\nAnswer: entailed", 0.0, 1.0),
        ("Answer: not-entailed", 1.0, 0.0),  # no thinking
        ("<think></think>Answer: not-entailed", 1.0, 0.0),  # nothing in it
        ("<think>a</think><think>b</think>Answer: not-entailed", 1.0, 0.0),
        ("<think>Answer: not-entailed", 1.0, 0.0),  # never ends
        ("<think>Answer: not-entailed</think> I cannot say", 0.0, 0.0),  # inside the thinking alone
        ("<think>a</think> Answer: not-entailed or entailed", 0.0, 0.0),
        ("<think>a</think> Answer: entailed Answer: not-entailed but no", 0.0, 0.0),
        ("\x00((((", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_soundminds_label_and_form(text: str, label: float, form: float) -> None:
    assert pay("entailment", text, "not-entailed") == label
    assert pay("entailment_form", text, "not-entailed") == form


@pytest.mark.parametrize(
    ("gold", "label"),
    [
        ("entailed", "entailed"), ("not-entailed", "not-entailed"), ("not entailed", "not-entailed"),
        ("Okay, so it is entailed or not. Hence it isn't entailed.\n\nAnswer: not entailed.", "not-entailed"),
        ("Not entailed? It is.\n\nAnswer: entailed.", "entailed"), (0, "not-entailed"), (1, "entailed"),
    ],
)  # fmt: skip
def test_a_label_is_read_with_its_negation(gold: object, label: str) -> None:
    """The release finds "entailed" in "not-entailed" (alr.py:57)."""
    assert label_of(gold) == label


@pytest.mark.parametrize("gold", ["", "yes", None, True, 2])
def test_what_names_no_label_is_no_gold_answer(gold: object) -> None:
    with pytest.raises(GoldError):
        label_of(gold)


def test_length_is_paid_up_to_the_references() -> None:
    row = {"target": "one two three four five six seven eight"}
    for text, paid in (("a b", 0.25), ("a " * 8, 1.0), ("a " * 80, 1.0), ("", 0.0)):
        assert pay("reference_length", text, "entailed", **row) == paid
    assert reference_words(Row("a", "q", "It holds, so\n\nAnswer: entailed.")) == 5
    with pytest.raises(ValueError, match="fill `target`"):
        pay("reference_length", "a b", "entailed")
