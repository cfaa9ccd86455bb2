"""SQuAD's exact match and F1 of the answer tags' text, as the releases after Search-R1 grade it."""

from __future__ import annotations

import re
import string
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.text.metrics import MAX_TOKENS, f_score

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_OPENING, _CLOSING = "<answer>", "</answer>"


def squad_words(text: str) -> list[str]:
    """The words of a text: lower case, ASCII punctuation deleted, then the articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()[:MAX_TOKENS]


def closed_answer(text: str) -> Answer | None:
    """The text of the last `<answer>` that is closed, as `<answer>(.*?)</answer>` finds it."""
    found, at = None, text.find(_OPENING)
    while at >= 0:
        start, end = at + len(_OPENING), text.find(_CLOSING, at)
        if end < 0:
            break
        found = Answer(text[start:end], start, end, "tag")
        at = text.find(_OPENING, end)
    return found


@register("squad")
@dataclass(frozen=True, kw_only=True)
class Squad(Graded):
    """SQuAD's exact match, or F1, of the last answer in tags, within a thought too.

        r = max over golds of 1[n(answer) = n(gold)]   ("exact"), or of the F1 of n's words   ("f1")

    n: lower case, ASCII punctuation deleted ("1,200" is 1200, "U.S." is us), articles dropped. Nothing else
    is read: "Paris, not Rome" is not Paris, and "three" is not 3, which `text` and `text_metric` accept.
    Paper: arXiv:1606.05250, sec. 6.1; releases: Search-R1 (arXiv:2503.09516), qa_em.py, and those after it.
    Edge: no closed tags, or nothing in them: 0. A gold without a word raises GoldError.
    """

    metric: Literal["exact", "f1"] = "exact"

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        golds = [str(item) for item in gold] if isinstance(gold, (list, tuple, set)) else [str(gold)]
        wanted = [squad_words(text) for text in golds]
        if not wanted or not all(wanted):
            raise GoldError(f"row {row.id!r}: the gold answer {gold!r} has no word; give a text, or several")
        answer = closed_answer(response.text)
        if answer is None:
            raise Unread("no answer in tags")
        said = squad_words(answer.text)
        if self.metric == "exact":
            score = float(said in wanted)
        else:
            score = max(
                f_score((Counter(said) & Counter(own)).total(), len(said), len(own)) for own in wanted
            )
        return self.scored(answer, score, None, f"{self.metric} {score:.3f}", " ".join(said))
