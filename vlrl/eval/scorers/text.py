"""Short answers in words or numbers: OCRBench, ChartQA, DocVQA, TextVQA, CountBench, exact matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rapidfuzz.distance import Levenshtein

from vlrl.eval.expressions import evaluate
from vlrl.eval.scorer import Record, Scorer
from vlrl.eval.scorers.readers import strip_punctuation
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Response, Verdict

_ONES = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
)
_TEENS = ("fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")
COUNTS = {word: str(i) for i, word in enumerate((*_ONES, *_TEENS))} | {"none": "0"}


def answers_of(record: Record, expression: str) -> list[str]:
    """The accepted answers, from an expression that gives a list or one answer."""
    value = evaluate(expression, record)
    return [str(entry) for entry in value] if isinstance(value, (list, tuple)) else [str(value)]


@dataclass(frozen=True)
class _Text(Scorer):
    """A scorer that compares text with the accepted answers that `answer` gives."""

    answer: str = "row.answer"

    def expected(self, record: Record) -> list[str]:
        """The accepted answers."""
        return answers_of(record, self.answer)

    def demonstrations(self, record: Record) -> list[str]:
        return self.expected(record)[:1]


@register("exact_text")
@dataclass(frozen=True)
class ExactText(_Text):
    """Exact match: score = [response == gold], after stripping; `fold` ignores case, `words` turns number
    words up to twenty into digits.

    Paper: the benchmark's own (CountBench in lmms-eval: fold and words).
    """

    fold: bool = False
    words: bool = False

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        answer = self._plain(response.text)
        same = any(answer == self._plain(right) for right in gold)
        return self.scored(float(same), answer or None, "whole response")

    def _plain(self, text: str) -> str:
        plain = text.strip().lower() if self.fold else text.strip()
        return COUNTS.get(plain, plain) if self.words else plain


@register("contains_text")
@dataclass(frozen=True)
class ContainsText(_Text):
    """Substring match: score = [gold occurs in the response].

    Code: CountBench in VLMEvalKit. Edge: "12" is correct for 2, and a list of all numbers is always correct.
    """

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        found = any(right in response.text for right in gold)
        return self.scored(float(found), response.text.strip() or None, "substring")


def folded(text: str) -> str:
    """The text with full-width ASCII as plain ASCII and the ideographic space as a space."""
    return "".join(
        chr(ord(c) - 0xFEE0) if 0xFF01 <= ord(c) <= 0xFF5E else " " if c == "\u3000" else c for c in text
    )


@register("ocrbench")
@dataclass(frozen=True)
class OCRBench(_Text):
    """OCRBench: score = [an accepted answer occurs in the response], both in lower case; for HME100k with
    case and without spaces.

    Paper: arXiv:2305.07895. `fullwidth` folds full-width characters first (lmms-eval). Edge: an empty gold
    answer occurs in every response.
    """

    fullwidth: bool = False

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        formula = row.get("dataset") == "HME100k"

        def plain(text: str) -> str:
            text = text.strip().replace("\n", " ")
            if formula:
                return text.replace(" ", "")
            return (folded(text) if self.fullwidth else text).lower().strip()

        answer = plain(response.text)
        return self.scored(float(any(plain(right) in answer for right in gold)), answer or None, "substring")


def _number(text: str) -> float | None:
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


@register("relaxed")
@dataclass(frozen=True)
class Relaxed(_Text):
    """Relaxed accuracy: numbers: [|pred - gold| / |gold| <= tolerance]; text: equality ignoring case.

    Paper: ChartQA, arXiv:2203.10244, sec. 5.1, as in Qwen-VL's code. Edge: a gold answer of 0 is compared as
    text; "5%" is 0.05.
    """

    tolerance: float = 0.05

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        answer = _number(response.text)
        score = 0.0
        for right in gold:
            expected = _number(right)
            near = (
                abs(answer - expected) / abs(expected) <= self.tolerance
                if answer is not None and expected
                else response.text.lower() == right.lower()
            )
            score = max(score, float(near))
        return self.scored(score, response.text.strip() or None, "relaxed")


@register("anls")
@dataclass(frozen=True)
class ANLS(_Text):
    """ANLS: max over answers of s = 1 - edit distance / max length, and 0 where s < threshold.

    Paper: DocVQA (arXiv:2007.00398), after ST-VQA (arXiv:1905.13648, eq. 1). The distance is between the
    lower-case strings with single spaces; the length is that of the original strings, as in the released
    code. Edge: two empty strings give 1.
    """

    threshold: float = 0.5

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        best = 0.0
        for right in gold:
            a, b = (" ".join(text.strip().lower().split()) for text in (right, response.text))
            length = max(len(right), len(response.text))
            best = max(best, 1 - (Levenshtein.distance(a, b) / length if length else 0.0))
        score = best if best >= self.threshold else 0.0
        return self.scored(score, response.text.strip() or None, "edit distance")


_CONTRACTED = (
    "ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't "
    "he'd he'd've he's how'd how'll how's "
    "isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've needn't not've o'clock "
    "oughtn't shan't should've shouldn't "
    "shouldn't've she'd've somebody'd've somebody'll somebody's someone'd someone'd've someone'll "
    "someone's something'd something'd've "
    "something'll that's there'd there'd've there're there's they'd they'd've they'll they're they've "
    "'twas wasn't we'd've we've weren't what'll "
    "what're what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll "
    "why're why's won't would've wouldn't "
    "wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've"
)  # fmt: skip


def _contractions() -> dict[str, str]:
    """ "dont" -> "don't"; a word with several apostrophes has an entry for each form that lacks one of
    them."""
    table = {"somebody'd": "somebodyd"}
    for word in _CONTRACTED.split(" "):
        places = [place for place, char in enumerate(word) if char == "'"]
        table |= {word[:place] + word[place + 1 :]: word for place in places}
    return table


_CONTRACTIONS = _contractions()


def vqa_normal(text: str) -> str:
    """The normal form of the VQA evaluation: no punctuation and articles, number words up to ten as digits,
    contractions with apostrophes."""
    plain = (
        text.lower()
        .replace(",", "")
        .replace("?", "")
        .replace("'s", " 's")
        .strip()
        .replace("\n", " ")
        .replace("\t", " ")
        .strip()
    )
    plain = strip_punctuation(plain)
    words = [
        COUNTS.get(word, word)
        if COUNTS.get(word, "99").isdigit() and int(COUNTS.get(word, "99")) <= 10
        else word
        for word in plain.split()
    ]
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in ("a", "an", "the"))


def vqa_accuracy(answer: str, golds: Sequence[str]) -> float:
    """VQA accuracy: mean over annotators of min(1, (other annotators with this answer) / 3). VQA
    (arXiv:1505.00468), TextVQA (arXiv:1904.08920)."""
    values = [min(1.0, (golds.count(answer) - (gold == answer)) / 3) for gold in golds]
    return sum(values) / len(values) if values else 0.0


@register("vqa")
@dataclass(frozen=True)
class VQA(Scorer):
    """VQA accuracy: score = mean over the ten annotators of min(1, matches among the other nine / 3), on
    normalised answers.

    Paper: Singh et al., arXiv:1904.08920. Edge: an answer that only one annotator gave scores 0.3.
    """

    answers: str = "row.answers"

    def expected(self, record: Record) -> list[str]:
        """The annotators' answers."""
        return answers_of(record, self.answers)

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        answer = vqa_normal(response.text)
        return self.scored(vqa_accuracy(answer, [vqa_normal(one) for one in gold]), answer or None, "vqa")

    def demonstrations(self, record: Record) -> list[str]:
        listed = self.expected(record)
        return [max(listed, key=listed.count)] if listed else []
