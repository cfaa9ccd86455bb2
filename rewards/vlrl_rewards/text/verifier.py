"""Kinds for text: equal words, and graded metrics (f1, rouge1, rouge2, rougeL, bleu, chrf, anls, wer, cer);
the reward `exact`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.kinds import Case, verifier
from vlrl_rewards.math.answer import find_answer
from vlrl_rewards.math.dates import same_moment
from vlrl_rewards.math.judge import judge
from vlrl_rewards.math.read import read
from vlrl_rewards.math.wording import without_markup
from vlrl_rewards.math.written_numbers import number_words
from vlrl_rewards.parsing import (
    MAX_REPEATS,
    Answer,
    answer_tags,
    boxes_in,
    clean,
    committed,
    last_answer,
    unmarked,
)
from vlrl_rewards.text import metrics as metric
from vlrl_rewards.text.denials import WRONG, hedges, refuses, settled, taken_back
from vlrl_rewards.verdict import GoldError, Verdict, right, wrong

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
    rf"\b(?:nobody|no\s+one|who\s+knows|some(?:one|body)|whether|if\s+it|{WRONG}|thinks|claims?|pretends?)\b",
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
    text = re.sub(r"\b([A-Za-z])\.\s?(?=[A-Za-z]\b)", r"\1", text)  # "U.S." as "US", "J. K." as "JK"
    plain = (
        metric.fold(text)
        if not re.search(r"[+#*/<>=^%$€£-]", text)
        else clean(text).casefold().strip(" .,;:!")
    )
    plain = plain or clean(text).casefold()
    number = number_words(plain) if plain and plain.replace("-", " ").replace(" ", "").isalpha() else None
    return str(number) if number is not None else plain


def same_text(said: str, golds: Sequence[str]) -> bool:
    """Whether `said` has the words of one of the golds, or is the same date or time."""
    mine = folded(said)
    if any(same_moment(gold, said) for gold in golds):
        return True
    golds = [form for gold in golds for form in dict.fromkeys((gold, _PLACE.sub("", gold)))]
    return bool(mine) and any(
        mine in (folded(gold), folded(gold.replace("-", " ")))
        or folded(said.replace("-", " ")) == folded(gold.replace("-", " "))
        for gold in golds
    )


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
    if not hedges(head) and not _REPORTED.search(head):
        says = _SAYS.match(head)
        tail = head[says.end() :] if says else ""
        last = re.split(r"\b(?:is|was|are|were)\b", head)[-1].strip() if says else ""
        found += [tail, last, _without_lead(tail), _MADE.split(head)[-1]]
    return [text for text in dict.fromkeys(found) if text.strip()]


@verifier("text", "exact")
def text(case: Case, *, case_sensitive: bool = False) -> Verdict:
    """Whether the committed answer has the words of a gold answer; case, punctuation and articles are
    ignored."""
    golds = golds_of(case.gold)
    seen = case.visible
    if not seen.strip():
        return wrong("nothing outside the thinking" if case.response.strip() else "empty")
    answer = committed(case.response)
    if answer is not None and answer.problem:
        return wrong(answer.problem)
    if answer is None:
        answer = _last_sentence(seen, golds)
    details: dict[str, Any] = {
        "extracted": answer.text.strip()[:500],
        "span": answer.span,
        "route": f"{answer.route}>words",
    }
    if taken_back(seen[answer.end :]) or (
        refuses(_near(seen, answer)) and not any(refuses(gold) for gold in golds)
    ):
        return wrong("a refusal, or taken back", **details)
    if len(answer.text) > 4 * max(map(len, golds)) + 400:
        return wrong("far longer than the gold answer", **details)
    if answer.text.rstrip(" *\"'").endswith("?") and not any(gold.rstrip().endswith("?") for gold in golds):
        return wrong("a question", **details)
    for said in candidates(answer.text):
        if same_text(said, golds) and (
            not case_sensitive or any(clean(said) == clean(gold) for gold in golds)
        ):
            return right("the same words", **details)
    if all(any(char.isdigit() for char in gold) for gold in golds):
        return _as_number(case, golds, details)
    return wrong(f"{clean(answer.text)[:80]!r} is not {golds[0][:80]!r}", **details)


def _as_number(case: Case, golds: list[str], details: dict[str, Any]) -> Verdict:
    """The verdict on a gold that may be a number, compared by value."""
    for gold in golds:
        reading = read(gold)
        if (
            reading is not None
            and (reading.unit is None or not reading.unit.noun)
            and reading.node[0] in ("num", "neg", "pct")
            and (answer := find_answer(Case(gold, case.response))[0]) is not None
            and judge(gold, answer, library=False)[0]
        ):
            return right("the same number", **details)
    return wrong(f"{details['extracted'][:80]!r} is not {golds[0][:80]!r}", **details)


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


def body(case: Case) -> tuple[str, str]:
    """(the text to score, the problem): the last `<answer>` block, else the visible text; the problem is ""
    if there is none."""
    spans = answer_tags(case.visible)
    if len({clean(case.visible[a:b]) for a, b in spans}) > 1 or len(spans) > MAX_REPEATS:
        return "", "several answer blocks"
    if not spans and len({case.visible[a:b] for _, _, a, b in boxes_in(case.visible)}) > 1:
        return "", "several boxes"
    said = case.visible[spans[-1][0] : spans[-1][1]].strip() if spans else case.visible.strip()
    return said, "" if any(char.isalnum() for char in said) else "empty"


def graded(case: Case, measure: Callable[[str, str], float], correct_at: float, name: str) -> Verdict:
    """The maximum of `measure(said, gold)` over the golds; correct from `correct_at` on."""
    golds = golds_of(case.gold)
    said, problem = body(case)
    if problem:
        return wrong(problem)
    if refuses(said[:2000]) and not any(refuses(gold) for gold in golds):
        return wrong("a refusal", extracted=said[:500])
    if len(said) > 10 * max(map(len, golds)) + 2000:
        return wrong("far longer than the gold answer", extracted=said[:500])
    score = min(1.0, max(0.0, max(measure(said, gold) for gold in golds)))
    return Verdict(
        score >= correct_at, score, f"{name} {score:.3f}", extracted=said[:500], route=f"text>{name}"
    )


@verifier("f1")
def f1(case: Case, *, correct_at: float = 0.5) -> Verdict:
    """Token F1."""
    return graded(case, metric.token_f1, correct_at, "F1")


@verifier("rouge1")
def rouge1(case: Case, *, correct_at: float = 0.5) -> Verdict:
    """ROUGE-1 F1."""
    return graded(case, metric.rouge_n, correct_at, "ROUGE-1")


@verifier("rouge2")
def rouge2(case: Case, *, correct_at: float = 0.5) -> Verdict:
    """ROUGE-2 F1."""
    return graded(case, lambda said, gold: metric.rouge_n(said, gold, 2), correct_at, "ROUGE-2")


@verifier("rougeL", "rouge")
def rouge_l(case: Case, *, correct_at: float = 0.5) -> Verdict:
    """ROUGE-L F1."""
    return graded(case, metric.rouge_l, correct_at, "ROUGE-L")


@verifier("bleu")
def bleu(case: Case, *, correct_at: float = 0.5) -> Verdict:
    """Sentence BLEU."""
    return graded(case, metric.bleu, correct_at, "BLEU")


@verifier("chrf")
def chrf(case: Case, *, correct_at: float = 0.5) -> Verdict:
    """chrF2."""
    return graded(case, metric.chrf, correct_at, "chrF")


@verifier("anls")
def anls(case: Case, *, correct_at: float = 0.5) -> Verdict:
    """Average normalised Levenshtein similarity, of the committed answer."""
    said = case.answer_or_text
    return (
        graded(Case(case.gold, said), metric.anls, correct_at, "ANLS")
        if said
        else wrong("no committed answer")
    )


@verifier("wer")
def wer(case: Case, *, correct_at: float = 0.5) -> Verdict:
    """max(0, 1 - word error rate)."""
    return graded(case, lambda said, gold: 1 - metric.word_error_rate(said, gold), correct_at, "1 - WER")


@verifier("cer")
def cer(case: Case, *, correct_at: float = 0.5) -> Verdict:
    """max(0, 1 - character error rate)."""
    return graded(case, lambda said, gold: 1 - metric.char_error_rate(said, gold), correct_at, "1 - CER")


@register("exact")
@dataclass(frozen=True, kw_only=True)
class Exact(Reward):
    """Exact match of the committed answer.

        r = 1[fold(answer) = fold(gold)]

    fold: Unicode NFKC, case folding (unless `case`), trimming.
    Paper: DeepSeek-R1 (accuracy reward), arXiv:2501.12948, sec. 2.2.2. Deviations: the answer is the last
    commitment outside the thinking. Edge: no committed answer, an empty one, or several: 0. An empty gold
    answer raises ValueError.
    """

    case: bool = False

    def __call__(self, rollout: Rollout) -> float:
        gold = clean(str(rollout.answer if rollout.answer is not None else ""))
        if not gold:
            raise ValueError(f"row {rollout.row.id!r}: the gold answer is empty, so no answer can be right")
        said = clean(last_answer(rollout.text))
        return float(said == gold if self.case else said.casefold() == gold.casefold())
