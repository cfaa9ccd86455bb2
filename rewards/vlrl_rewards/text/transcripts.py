"""Transcripts of speech: error rate by words or characters, faults that no listener would make, keywords.

Counts are jiwer's. Both texts are brought to lower case without punctuation first, as benchmarks of speech
recognition do.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict
from vlrl.services.third_party import pip_install
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.parsing import clean

MAX_TEXT = 20_000  # characters of a transcript that are read


@lru_cache(maxsize=1)
def _plain_form() -> Any:
    import jiwer

    steps = (jiwer.ToLowerCase(), jiwer.RemovePunctuation(), jiwer.RemoveMultipleSpaces(), jiwer.Strip())
    return jiwer.Compose(list(steps))


def plain_words(text: str) -> str:
    """A transcript in lower case, without punctuation, one space between words."""
    return str(_plain_form()(clean(text)))


def error_rate(said: str, meant: str, unit: str) -> float:
    """jiwer's word ("word") or character ("char") error rate: edits / length of the reference; may exceed
    1."""
    import jiwer

    return float(jiwer.wer(meant, said) if unit == "word" else jiwer.cer(meant, said))


@dataclass(frozen=True, kw_only=True)
class _Heard(Graded):
    """A reward that compares two transcripts in their plain form."""

    refusals: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if find_spec("jiwer") is None:
            raise ConfigError(
                f"rewards: {self.name!r} counts by jiwer, which is not installed; {pip_install('audio')}"
            )

    def texts(self, response: Response, gold: Any) -> tuple[Answer, str, str]:
        """(answer, what was said, what was meant), both plain. Raises GoldError and Unread."""
        meant = plain_words(gold) if isinstance(gold, str) else ""
        if not meant:
            raise GoldError(f"answer: the transcript {gold!r} is empty or not a text; give what is said")
        answer = self.committed(response)
        if len(answer.text) > MAX_TEXT:
            raise Unread(f"the answer has more than {MAX_TEXT:,} characters and is not read", answer)
        said = plain_words(answer.text)
        if not said:
            raise Unread("the answer has no words", answer)
        return answer, said, meant


@register("transcript")
@dataclass(frozen=True, kw_only=True)
class Transcript(_Heard):
    """Accuracy of a transcript: r = max(0, 1 - edits / |reference|), by words (WER) or characters (CER).

    Paper: RL for LLM-based ASR, arXiv:2509.18569, sec. 4.1, R1 (there without the lower bound). Counts:
    jiwer, on texts in lower case without punctuation. Edge: no words: 0; more than 20,000
    characters: 0. Range [0, 1]; correct where no edit is left.
    """

    unit: Literal["word", "char"] = "word"

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        answer, said, meant = self.texts(response, gold)
        rate = error_rate(said, meant, self.unit)
        reason = f"{self.unit} error rate {rate:.3f}"
        return self.scored(answer, max(0.0, 1.0 - rate), rate == 0.0, reason, said)


@register("transcript_faults")
@dataclass(frozen=True, kw_only=True)
class TranscriptFaults(_Heard):
    """Hallucinations of a transcript: -1 for a phrase said over and over, for more words than were spoken, or
    for another script; else 0.

    Paper: RL for LLM-based ASR, arXiv:2509.18569, sec. 4.1, R2 (repeated, absent or translated content). The
    rules' bounds are ours.

    Attributes:
        repeats: How often a phrase of up to four words must follow itself, beyond what the reference does.
        extra: More words than (1 + `extra`) times the reference's count as content that was not spoken.
    """

    repeats: int = 4
    extra: float = 1.0
    correct_at: float = 0.0

    def lowest(self) -> float:
        return -1.0

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        answer, said, meant = self.texts(response, gold)
        words, spoken = said.split(), meant.split()
        faults = {
            "a phrase is repeated": loops(words) >= max(self.repeats, loops(spoken) + 1),
            "more is written than was said": len(words) > (1 + self.extra) * len(spoken),
            "another script": bool(words) and script_of(said) != script_of(meant),
        }
        found = next((name for name, holds in faults.items() if holds), "")
        return self.wrong(answer, found, said) if found else self.scored(answer, 0.0, True, "no fault", said)


@register("transcript_keywords")
@dataclass(frozen=True, kw_only=True)
class TranscriptKeywords(_Heard):
    """Keywords of a transcript: the mean of precision and recall, over the keywords of `row.meta.keywords`.

        r = (|G n S| / |S| + |G n S| / |G|) / 2,   G: keywords in the reference, S: keywords in the answer

    Paper: RL for LLM-based ASR, arXiv:2509.18569, sec. 4.1, R3. Edge: neither has one: 1; only one has: 0.
    Raises GoldError for a row without keywords.
    """

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        listed = row.meta.get("keywords")
        if not isinstance(listed, (list, tuple)) or not all(isinstance(k, str) and k for k in listed):
            raise GoldError("meta.keywords: give the list of texts that matter (names, terms) with each row")
        answer, said, meant = self.texts(response, gold)
        held = {plain_words(keyword) for keyword in listed}
        ours, theirs = ({k for k in held if f" {k} " in f" {text} "} for text in (said, meant))
        both = len(ours & theirs)
        score = (both / len(ours) + both / len(theirs)) / 2 if ours and theirs else float(ours == theirs)
        return self.scored(answer, score, ours == theirs, f"keywords {sorted(ours)}", said)


def loops(words: Sequence[str], longest: int = 4) -> int:
    """How often, at most, a phrase of up to `longest` words follows itself.

    >>> loops("no no no yes".split()), loops("a b a b a b".split()), loops([])
    (3, 3, 0)
    """
    most = int(bool(words))
    for size in range(1, longest + 1):
        run = 0
        for i in range(size, len(words)):
            run = run + 1 if words[i] == words[i - size] else 0
            most = max(most, run // size + 1)
    return most


def script_of(text: str) -> str:
    """The script of most letters, from their Unicode names ("LATIN", "CJK", ...); digits have none."""
    names = (unicodedata.name(c, "").split(" ")[0] for c in text if c.isalpha())
    found = Counter(re.sub(r"-.*", "", name) for name in names)
    return found.most_common(1)[0][0] if found else ""
