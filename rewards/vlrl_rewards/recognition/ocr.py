"""Optical character recognition: text read from an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rapidfuzz.distance import Levenshtein

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.parsing import clean, unmarked

MAX_TEXT = 20_000


def error_rate(said: str, meant: str, unit: str) -> float:
    """Word or character error rate (`unit` "word" or "char"): edit distance / length of the reference; may
    exceed 1.

    An empty reference counts as length 1.
    """
    a, b = (said.split(), meant.split()) if unit == "word" else (list(said), list(meant))
    return Levenshtein.distance(a, b) / max(1, len(b))


@verifier("ocr")
@register("ocr")
@dataclass(frozen=True, kw_only=True)
class Ocr(Graded):
    """OCR reward: similarity of the answer to the reference text.

        wer, cer: max(0, 1 - edits / |reference|) by words or characters;  edit: 1 - edits / max(|answer|,
        |reference|); anls: edit if edit >= 1/2, else 0;  exact: 1[equal]

    Paper: Video-R1, arXiv:2503.21776 (1 - WER); Perception-R1, arXiv:2504.07954 (1 - normalised edit
    distance); ANLS, arXiv:1905.13648. Deviates: both texts are normalised (NFKC, collapsed white space);
    `case: false` and `punctuation: false` ignore case and punctuation. The marks of emphasis (`**SALE**`) and
    quotes around the whole answer may be there or not.
    Edge: empty: 0; a gold list gives the best score of its members; more than 20,000 characters: 0. Range [0,
    1]; correct where the texts are equal.
    """

    refusals = False
    metric: Literal["wer", "cer", "edit", "anls", "exact"] = "cer"
    case: bool = True
    punctuation: bool = True

    def plain(self, text: str) -> str:
        """The text in the form that is compared."""
        text = clean(text) if self.case else clean(text).casefold()
        return (
            text
            if self.punctuation
            else clean("".join(c if c.isalnum() or c.isspace() else " " for c in text))
        )

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        listed = list(gold) if isinstance(gold, (list, tuple)) else [gold]
        texts = [self.plain(str(g)) for g in listed if isinstance(g, (str, int))]
        if not all(texts) or not texts or len(texts) != len(listed):
            raise GoldError(
                f"answer: the gold text {gold!r} is empty or not a text; give a text or a list of texts"
            )
        target = texts + [
            bare for g in listed if (bare := self.plain(unmarked(str(g)))) and bare not in texts
        ]
        answer = self.committed(response)
        said = self.plain(answer.text)
        if not said or len(said) > MAX_TEXT:
            limit = f"the answer has more than {MAX_TEXT:,} characters and is not read"
            raise Unread(limit if said else "no text in the answer", answer)
        bare = self.plain(unmarked(answer.text))
        best, text = max(
            (self.similarity(form, meant), form)
            for form in dict.fromkeys(filter(None, (said, bare)))
            for meant in target
        )
        return self.scored(
            answer, best, bool({said, bare} & set(target)), f"{self.metric} {best:.3f}", text[:200]
        )

    def similarity(self, said: str, meant: str) -> float:
        """Similarity of two normalised texts by `metric`, in [0, 1]."""
        if self.metric in ("wer", "cer"):
            return max(0.0, 1.0 - error_rate(said, meant, "word" if self.metric == "wer" else "char"))
        if self.metric == "exact":
            return float(said == meant)
        similarity = float(Levenshtein.normalized_similarity(said, meant))
        return similarity if self.metric == "edit" or similarity >= 0.5 else 0.0
