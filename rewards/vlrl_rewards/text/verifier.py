"""Kinds for text: equal words, and graded metrics (f1, rouge1, rouge2, rougeL, bleu, meteor, chrf, anls, wer,
cer); the reward `exact`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict, right, verdict, wrong
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.math.answer import find_answer
from vlrl_rewards.math.dates import same_moment
from vlrl_rewards.math.judge import judge
from vlrl_rewards.math.read import read
from vlrl_rewards.math.wording import without_markup
from vlrl_rewards.math.written_numbers import number_words
from vlrl_rewards.parsing import (
    MAX_REPEATS,
    answer_tags,
    boxes_in,
    clean,
    committed,
    final_answer,
    unmarked,
    visible,
)
from vlrl_rewards.runs import without_runs
from vlrl_rewards.text import metrics as metric
from vlrl_rewards.text.denials import WRONG, hedges, refuses, settled, supposed, taken_back

_SAYS = re.compile(
    r"^.*?\b(?:is|was|are|were|be|called|named|equals|says?|reads?|shows?)\b:?\s+|^.*?[:：=]\s*",
    re.IGNORECASE | re.DOTALL,
)
_MADE = re.compile(
    r"\b(?:written|made|painted|drawn|created|directed|composed|invented|discovered|founded|built|located|"
    r"situated|found|taken|shown)\s+"
    r"(?:by|in|at|on)\s+|\b(?:playing|eating|wearing|holding|riding|drinking)\s+"
)
_REPORTED = re.compile(
    rf"\b(?:if\s+only|nobody|no\s+one|who\s+knows|some(?:one|body)|whether|if\s+it|{WRONG}|thinks|claims?"
    rf"|pretends?)\b",
    re.IGNORECASE,
)
_PLACE = re.compile(r"^(?:in|on|at)\s+(?=\w)", re.IGNORECASE)
_LEAD = re.compile(
    r"^(?:it\s+is|it's|that\s+is|that's|this\s+is|i\s+think|i\s+believe|probably|in|on|at|by|the|a|an)\s+",
    re.IGNORECASE,
)


def golds_of(gold: Any) -> list[str]:
    """The accepted texts of a gold answer. Raises GoldError if there is none, or an empty one."""
    texts = (
        [str(item) for item in gold]
        if isinstance(gold, (list, tuple, set))
        else [str(gold if gold is not None else "")]
    )
    if not texts or not all(clean(text) for text in texts):
        raise GoldError(f"gold: {gold!r} is empty, so no answer can be right")
    return [_unwrapped(text) for text in texts]


def _unwrapped(gold: str) -> str:
    spans = answer_tags(gold) or [(cs, ce) for _, _, cs, ce in boxes_in(gold)]
    return gold[spans[-1][0] : spans[-1][1]].strip() if spans else gold


def folded(text: str) -> str:
    """The folded form in which texts are compared: SQuAD folding, else (for "C++", "-") the cleaned text;
    number words as digits."""
    text = re.sub(r"\\(?:text\w*|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", text).strip().strip("$*`\"'“”")
    text = text.replace("\u2212", "-")
    text = re.sub(r"\b([A-Za-z])\.\s?(?=[A-Za-z]\b)", r"\1", text)  # "U.S." as "US", "J. K." as "JK"
    plain = (
        metric.fold(text)
        if not re.search(r"[+#*/<>=^%$€£-]", text)
        else clean(text).casefold().strip(" .,;:!")
    )
    plain = re.sub(r"^-\s+(?=[\d.])", "-", plain or clean(text).casefold())
    number = number_words(plain) if plain and plain.replace("-", " ").replace(" ", "").isalpha() else None
    return str(number) if number is not None else plain


def same_text(said: str, golds: Sequence[str]) -> bool:
    """Whether `said` has the words of one of the golds, or is the same date or time."""
    mine = folded(said)
    if any(same_moment(gold, said) for gold in golds):
        return True
    golds = [form for gold in golds for form in dict.fromkeys((gold, _PLACE.sub("", gold)))]
    return bool(mine) and any(
        mine in (folded(gold), folded(_parted(gold))) or folded(_parted(said)) == folded(_parted(gold))
        for gold in golds
    )


def _parted(text: str) -> str:
    """The text with spaces for the hyphens inside words; a sign before a number stays."""
    return re.sub(r"(?<=\w)-(?=\w)", " ", text)


def _without_lead(text: str) -> str:
    """The text without its introduction ("I think it's a ...")."""
    for _ in range(4):
        text = _LEAD.sub("", text)
    return text


def candidates(answer: str) -> list[str]:
    """The answer, and the parts of it that may be the answer itself: behind "is" or ":", without an
    introduction."""
    head = answer.strip().rstrip(".!")
    short = _without_lead(head)
    found = [answer, head, short, _without_lead(settled(head)), unmarked(head), without_markup(head).strip()]
    if not hedges(head) and not _REPORTED.search(head) and not supposed(head):
        says = _SAYS.match(head)
        tail = head[says.end() :] if says else ""
        last = re.split(r"\b(?:is|was|are|were)\b", head)[-1].strip() if says else ""
        found += [tail, last, _without_lead(tail), _MADE.split(head)[-1]]
    return [text for text in dict.fromkeys(found) if text.strip()]


@verifier("text", "exact")
@without_runs
def text(response: Response, gold: Any, row: Row, *, case_sensitive: bool = False) -> Verdict:
    """Whether the committed answer has the words of a gold answer; case, punctuation and articles are
    ignored."""
    golds = golds_of(gold)
    seen = visible(response.text)
    if not seen.strip():
        raise Unread("nothing outside the thinking" if response.text.strip() else "empty")
    answer = committed(response.text) or _last_sentence(seen, golds)
    if answer.problem:
        raise Unread(answer.problem, answer)
    if taken_back(seen[answer.end :]) or (
        refuses(_near(seen, answer)) and not any(refuses(gold) for gold in golds)
    ):
        raise Unread("a refusal, or taken back", answer)
    if len(answer.text) > 4 * max(map(len, golds)) + 400:
        return wrong(answer, "far longer than the gold answer", "words")
    if answer.text.rstrip(" *\"'").endswith("?") and not any(gold.rstrip().endswith("?") for gold in golds):
        return wrong(answer, "a question", "words")
    for said in candidates(answer.text):
        if same_text(said, golds) and (
            not case_sensitive or any(clean(said) == clean(gold) for gold in golds)
        ):
            return right(answer, "the same words", "words")
    if all(any(char.isdigit() for char in gold) for gold in golds) and _same_number(response, golds):
        return right(answer, "the same number", "words")
    return wrong(answer, f"{clean(answer.text)[:80]!r} is not {golds[0][:80]!r}", "words")


def _same_number(response: Response, golds: list[str]) -> bool:
    """Whether one of the golds is a number that the response states."""
    for gold in golds:
        reading = read(gold)
        if (
            reading is not None
            and (reading.unit is None or not reading.unit.noun)
            and reading.node[0] in ("num", "neg", "pct")
            and (answer := find_answer(response)[0]) is not None
            and judge(gold, answer, library=False)[0]
        ):
            return True
    return False


def _near(seen: str, answer: Answer) -> str:
    return seen[max(0, answer.start - 300) : answer.end + 200] if len(seen) > 600 else seen


def _last_sentence(seen: str, golds: Sequence[str]) -> Answer:
    """The whole response where it equals the gold or has at most four words, else its last sentence."""
    start, end = len(seen) - len(seen.lstrip()), len(seen.rstrip())
    if (end - start <= 4 * max(map(len, golds)) + 400 and same_text(seen, golds)) or len(seen.split()) <= 4:
        return Answer(seen[start:end], start, end, "text")
    parts = [
        m
        for m in re.finditer(r"[^\n.!?]*(?:[.!?](?!\s|$)[^\n.!?]*)*[.!?]?(?=\s|$)", seen[:end][-4000:])
        if m[0].strip()
    ]
    shift = max(0, end - 4000)
    last = parts[-1] if parts else None
    return (
        Answer(seen[start:end], start, end, "text")
        if last is None
        else Answer(last[0], shift + last.start(), shift + last.end(), "sentence")
    )


def body(response: Response) -> Answer:
    """The last `<answer>` block, of which the LaTeX box where it has one, else the visible text. Raises
    Unread where there are several, or no word."""
    seen = visible(response.text)
    spans = answer_tags(seen)
    if len({clean(seen[a:b]) for a, b in spans}) > 1 or len(spans) > MAX_REPEATS:
        raise Unread("several answer blocks")
    if not spans and len({seen[a:b] for _, _, a, b in boxes_in(seen)}) > 1:
        raise Unread("several boxes")
    start, end = spans[-1] if spans else (0, len(seen))
    answer = Answer(seen[start:end].strip(), start, end, "tag" if spans else "text")
    boxes = [(start + a, start + b) for _, _, a, b in boxes_in(seen[start:end])] if spans else []
    if len({seen[a:b] for a, b in boxes}) == 1:
        answer = Answer(seen[slice(*boxes[-1])].strip(), *boxes[-1], "tag>box")
    if not any(char.isalnum() for char in answer.text):
        raise Unread("empty", answer)
    return answer


def graded(
    answer: Answer, golds: list[str], measure: Callable[[str, str], float], correct_at: float, name: str
) -> Verdict:
    """The maximum of `measure(said, gold)` over the golds; correct from `correct_at` on."""
    said = answer.text
    if refuses(said[:2000]) and not any(refuses(gold) for gold in golds):
        raise Unread("a refusal", answer)
    if len(said) > 10 * max(map(len, golds)) + 2000:
        return wrong(answer, "far longer than the gold answer", name)
    score = min(1.0, max(0.0, max(measure(said, gold) for gold in golds)))
    return verdict(answer, score, score >= correct_at, f"{name} {score:.3f}", name)


def _metric(kinds: tuple[str, ...], name: str, measure: Callable[[str, str], float], doc: str) -> None:
    """Register a text metric under its kinds."""

    def score(response: Response, gold: Any, row: Row, *, correct_at: float = 0.5) -> Verdict:
        golds = golds_of(gold)
        return graded(body(response), golds, measure, correct_at, name)

    score.__qualname__, score.__doc__ = kinds[0], doc
    verifier(*kinds)(score)


_metric(("f1",), "F1", metric.token_f1, "Token F1.")
_metric(("set_f1",), "set F1", metric.set_f1, "F1 of word sets.")
_metric(("rouge1",), "ROUGE-1", metric.rouge_n, "ROUGE-1 F1.")
_metric(("rouge2",), "ROUGE-2", lambda said, gold: metric.rouge_n(said, gold, 2), "ROUGE-2 F1.")
_metric(("rougeL", "rouge"), "ROUGE-L", metric.rouge_l, "ROUGE-L F1.")
_metric(("bleu",), "BLEU", metric.bleu, "Sentence BLEU.")
_metric(("meteor",), "METEOR", metric.meteor, "METEOR of equal words.")
_metric(("chrf",), "chrF", metric.chrf, "chrF2.")
_metric(
    ("wer",),
    "1 - WER",
    lambda said, gold: 1 - metric.word_error_rate(said, gold),
    "max(0, 1 - word error rate).",
)
_metric(
    ("cer",),
    "1 - CER",
    lambda said, gold: 1 - metric.char_error_rate(said, gold),
    "max(0, 1 - character error rate).",
)


@verifier("anls")
def anls(response: Response, gold: Any, row: Row, *, correct_at: float = 0.5) -> Verdict:
    """Average normalised Levenshtein similarity, of the committed answer."""
    golds, answer = golds_of(gold), final_answer(response)
    answer = replace(answer, text=body(Response(answer.text)).text)
    return graded(answer, golds, metric.anls, correct_at, "ANLS")


@register("exact")
@dataclass(frozen=True, kw_only=True)
class Exact(Graded):
    """Exact match of the committed answer.

        r = 1[fold(answer) = fold(gold)]

    fold: Unicode NFKC, case folding (unless `case`), trimming.
    Paper: DeepSeek-R1 (accuracy reward), arXiv:2501.12948, sec. 2.2.2. Deviations: the answer is the last
    commitment outside the thinking, else the whole visible text; with `whole` it is the response as it is,
    so that a thought, tags or a sentence around the answer make it wrong (No-Thinking-RL, arXiv:2503.16188).
    Edge: an empty answer, or several: 0. An empty gold answer raises ValueError.
    """

    case: bool = False
    whole: bool = False

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        wanted = clean(str(gold if gold is not None else ""))
        if not wanted:
            raise GoldError(f"row {row.id!r}: the gold answer is empty, so no answer can be right")
        text = response.text
        answer = Answer(text, 0, len(text), "whole") if self.whole else final_answer(response)
        said = clean(answer.text)
        same = said == wanted if self.case else said.casefold() == wanted.casefold()
        return self.scored(answer, float(same), same, "equal" if same else "different")
