"""Text read from a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rapidfuzz.distance import Levenshtein

from vlrl.registry import register
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged
from vlrl_rewards.parsing import clean

MAX_TEXT = 20_000


def error_rate(said: str, meant: str, unit: str) -> float:
    """Edit distance over the length of the reference, by words ("word") or characters ("char"); may exceed 1. An empty reference counts as length
    1."""
    a, b = (said.split(), meant.split()) if unit == "word" else (list(said), list(meant))
    return Levenshtein.distance(a, b) / max(1, len(b))


@judged("ocr")
@register("ocr")
@dataclass(frozen=True, kw_only=True)
class Ocr(Graded):
    """wer, cer: max(0, 1 - edits / |reference|) by words or characters;  edit: 1 - edits / max(|said|, |reference|);  anls: edit if >= 1/2, else 0;
    exact: 1[equal].

    Paper: Video-R1, arXiv:2503.21776 (1 - WER); Perception-R1, arXiv:2504.07954 (1 - normalised edit distance); ANLS, arXiv:1905.13648.
    Deviates: Unicode is folded (NFKC) and white space collapsed on both sides; `case` and `punctuation` off ignore these too.
    Edge: empty: 0; a gold list gives the best of its members; more than 20,000 characters: 0. Range [0, 1].
    """

    refusals = False
    metric: Literal["wer", "cer", "edit", "anls", "exact"] = "cer"
    case: bool = True
    punctuation: bool = True

    def plain(self, text: str) -> str:
        """The text as it is compared."""
        text = clean(text) if self.case else clean(text).casefold()
        return text if self.punctuation else clean("".join(c if c.isalnum() or c.isspace() else " " for c in text))

    def target(self, gold: Any, scene: Scene) -> list[str]:
        listed = list(gold) if isinstance(gold, (list, tuple)) else [gold]
        texts = [self.plain(str(g)) for g in listed if isinstance(g, (str, int))]
        if not all(texts) or not texts or len(texts) != len(listed):
            raise ValueError(f"answer: the gold text {gold!r} is empty, or no text")
        return texts

    def grade(self, target: list[str], answer: Answer, scene: Scene) -> Grade:
        said = self.plain(answer.text)
        if not said or len(said) > MAX_TEXT:
            return self.refuse("nothing to compare" if not said else "the answer is too long")
        best = max(self.similarity(said, meant) for meant in target)
        return Grade(best, said in target, f"{self.metric} {best:.3f}", said[:200])

    def similarity(self, said: str, meant: str) -> float:
        """Closeness of two plain texts, in [0, 1]."""
        if self.metric in ("wer", "cer"):
            return max(0.0, 1.0 - error_rate(said, meant, "word" if self.metric == "wer" else "char"))
        if self.metric == "exact":
            return float(said == meant)
        near = float(Levenshtein.normalized_similarity(said, meant))
        return near if self.metric == "edit" or near >= 0.5 else 0.0
