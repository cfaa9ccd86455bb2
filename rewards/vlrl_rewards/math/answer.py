"""Finds the mathematical answer of a response: its commitment, the whole of a short response, its last line,
or its concluding sentence."""

from __future__ import annotations

import re
from dataclasses import replace

from vlrl.plugins.scoring import Answer, Response
from vlrl_rewards.math.chemistry import formula_in, read_chemistry
from vlrl_rewards.math.judge import judge
from vlrl_rewards.math.read import is_code, is_mark, read
from vlrl_rewards.math.units import unit_behind
from vlrl_rewards.math.wording import without_markup
from vlrl_rewards.math.written_numbers import number_words, total_in
from vlrl_rewards.parsing import committed, visible
from vlrl_rewards.text.denials import (
    AND_MORE,
    alternative,
    bounded,
    denied,
    doubted,
    hedges,
    settled,
    taken_back,
)

NO_ANSWER = "no committed answer"
_PROSE = re.compile(
    r"(?<![\\a-zA-Z{])[a-zA-Z]{3,}|[.!?]\s"
)  # a longer answer without it is a list or a formula
_SENTENCE = re.compile(r"(?<=[.!?。])\s+(?=[A-Z\\$*(\d-])|\n+|；")
_CONCLUDES = re.compile(
    (
        r"\b(?:is|are|equals?|get|gives?|to|has|have|be|total(?:s|ing)?|makes?|costs?|takes?|leaves?|counts?|"
        r"counted|see|sees|saw|find|found|earns?|pays?|needs?|spends?|weighs?|measures?|lasts?|remains?)\b|"
        r"[=:≈]|^\s*(?:in|on|at|by|the\s+year)\s+[\d.,:]*\d\W*$|\bin\s+\d{3,4}\W*$|^\W*(?:so|therefore|thus|"
        r"hence)\b"
    ),
    re.IGNORECASE,
)
_NUMBERISH = re.compile(r"\d|\\(?:frac|sqrt|pi|infty|emptyset|varnothing)|[½⅓¼⅔¾π∞∅]")
_LITERAL = re.compile(
    r"(?<![\w.\\^_{])-?\d[\d,"
    r"]*(?:\.\d+)?(?:/\d+)?%?(?![\w^_{}½¼¾⅓⅔])(?!\s*[-+*/^=×÷]\s*[\w(\\])(?!\s*(?:dozen|hundred|thousand|"
    r"million|billion|trillion)s?\b)"
)
_SO = re.compile(
    (
        r"\b(?:so|therefore|thus|hence|making|giving|totall?ing|which\s+(?:makes|gives|is)|that\s+is|"
        r"for\s+a\s+total\s+of)\b"
    ),
    re.IGNORECASE,
)
_QUOTES = re.compile(
    r"\W*(?:if|suppose|exception|assert|return|print|the\s+(?:problem|question|task|prompt|text))\b",
    re.IGNORECASE,
)  # a sentence that quotes the question gives no answer
_CLOSED = re.compile(r"^(?:\s{0,3}</answer>)?[$*)\]]{0,3}")
_PERCENT = re.compile(r"\s?\\?%")
_CLAUSE_END = re.compile(
    r"[\s$*]*(?:[.,;!?)<}。，\u0400-\u1fff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\n|$|(?:because|since|as|so"
    r"|is|was|which|for|if|when|where|and|or)\b)",
    re.IGNORECASE,
)
_ASKED = re.compile(r"[^.!\n]{0,20}\?")
_ASKS = re.compile(
    r"(?:^|[.!?\n])\W*(?:is|was|are|could|might|would|should|can|may|does|do|what\s+if|why)\b[^.!?\n]*$",
    re.IGNORECASE,
)
_OPEN_END = re.compile(r"\b(?:or|and)\W*$|[-+*/^=×÷]\s*(?:\.\s*)?$", re.IGNORECASE)
_COMPARES = re.compile(r"(?:(?<!\w)[<>≤≥≠]|\\(?:le|ge|ne|lt|gt|leq|geq|neq))\s*=?\s*$")
_BROKEN_OFF = re.compile(r"\b(?:answer|result|solution)\s+is\W*$", re.IGNORECASE)
_ONE_WORD = (
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|"
    r"seventeen|eighteen|nineteen|twenty|zero)"
)
_WORD_NUMBER = re.compile(
    rf"(?<![\w-])(?<!no )(?<!any )(?<!this )(?<!that )(?<!every )(?<!which )({_ONE_WORD})(?![\w-]|\s+of\b)",
    re.IGNORECASE,
)


def plausible(text: str) -> bool:
    """Whether a phrase ("the answer is ...") can hold a mathematical answer."""
    return bool(_NUMBERISH.search(text)) or read(text) is not None or read_chemistry(text) is not None


def find_answer(response: Response) -> tuple[Answer | None, str]:
    """(the committed answer, or the one that a short response or the concluding sentence states, ""), else
    (None, reason)."""
    text = without_markup(visible(response.text))
    if not text.strip():
        return None, "nothing outside the thinking" if response.text.strip() else "empty"
    answer = committed(text, plausible) or committed(text)
    if answer is not None:
        if answer.problem:
            return None, answer.problem
        rest = text[answer.end :].lstrip("}")
        unit, behind = _unit_outside(rest) if answer.tagged else ("", rest)
        other = alternative(behind)
        if not (other and _same(answer.text + unit, other)) and (taken_back(rest) or taken_back(behind)):
            return None, "the answer is taken back or another is offered"
        if _ASKED.match(rest) and _ASKS.search(text[: answer.start][-120:]):
            return None, "a question"
        return replace(answer, text=answer.text + unit), ""
    return _concluding(text)


def _same(answer: str, other: str) -> bool:
    """Whether an answer and the one in brackets behind it ("(or 0.5)") are one value."""
    return judge(answer, Answer(other, 0, len(other), "text"), library=False)[0]


def _unit_outside(rest: str) -> tuple[str, str]:
    """(the unit that stands alone behind a box or tags ("\\boxed{12} m"), with a space before it, or ""; the
    text behind it, whether it stands alone or not)."""
    rest = _CLOSED.sub("", rest)
    share = _PERCENT.match(rest[:60])
    end = share.end() if share else unit_behind(rest[:60])
    return f" {rest[:end].strip()}" if end and _CLAUSE_END.match(rest[end:60]) else "", rest[end:]


def _concluding(text: str) -> tuple[Answer | None, str]:
    start = len(text) - len(text.lstrip())
    whole = text.strip()
    short = len(whole) <= 120 or ("\n" not in whole and not _PROSE.search(whole))
    if short and (read(whole) is not None or read_chemistry(whole) is not None):
        return Answer(whole, start, start + len(whole), "text"), ""
    line = _last_line(text)
    if line is not None:
        return line, ""
    at = 0
    spans = []
    for part in [*_SENTENCE.finditer(text), None]:
        end = part.start() if part else len(text)
        if text[at:end].strip():
            spans.append((at, end))
        at = part.end() if part else end
    for begin, end in reversed(spans[-2:]):
        sentence = text[begin:end].strip()
        formula = formula_in(sentence)
        if formula is not None:
            first = text.index(formula, begin)
            return Answer(formula, first, first + len(formula), "formula"), ""
        if (
            len(sentence) <= 300
            and (_NUMBERISH.search(sentence) or _WORD_NUMBER.search(sentence))
            and _CONCLUDES.search(sentence)
        ):
            if read(sentence) is not None:
                return Answer(text[begin:end], begin, end, "sentence"), ""
            lone = lone_number(text[begin:end])
            if lone is not None:
                return Answer(
                    text[begin + lone[0] : begin + lone[1]], begin + lone[0], begin + lone[1], "number"
                ), ""
        if (
            _NUMBERISH.search(sentence)
            or _WORD_NUMBER.search(sentence)
            or hedges(sentence)
            or _BROKEN_OFF.search(sentence)
        ):
            break
    return None, NO_ANSWER


def _last_line(text: str) -> Answer | None:
    """The last line if it is only mathematics; None also where the line before it is too (then they are a
    list)."""
    lines = [match for match in re.finditer(r"[^\n]+", text) if match[0].strip()]
    bare = [
        match
        for match in lines[-2:]
        if len(match[0]) <= 120 and _NUMBERISH.search(match[0]) and read(match[0].strip(" >#\t")) is not None
    ]
    if (
        len(lines) < 2
        or not bare
        or bare[-1] is not lines[-1]
        or (len(bare) == 2 and not _CONCLUDES.search(lines[-2][0]))
    ):
        return None
    raw = lines[-1][0]
    begin = lines[-1].start() + len(raw) - len(raw.lstrip(" >#\t"))
    end = lines[-1].start() + len(raw.rstrip())
    return Answer(text[begin:end], begin, end, "line")


def _whole(match: re.Match[str]) -> bool:
    return match[0].replace(",", "").isdecimal() and len(match[0]) < 16


def lone_number(sentence: str) -> tuple[int, int] | None:
    """[start, end) of the number behind the last "=", or of the only number of a sentence or of its
    conclusion. None if the sentence hedges."""
    sentence = settled(sentence)
    if hedges(sentence) or bounded(sentence.rstrip(" .")) or _QUOTES.match(sentence) or is_code(sentence):
        return None
    if is_mark(sentence) or _OPEN_END.search(sentence):
        return None
    found = [match for match in _LITERAL.finditer(sentence) if not denied(sentence, *match.span())]
    found = [match for match in found if sentence[: match.start()].rstrip()[-1:] not in (*"+*/^×÷",)]
    total = (
        total_in(sentence, [(float(m[0].replace(",", "")), m.start()) for m in found])
        if len(found) > 1 and all(map(_whole, found))
        else None
    )
    if total is not None:
        return found[total].span()
    so = list(_SO.finditer(sentence))
    if so and len(found) > 1:
        found = [match for match in found if match.start() >= so[-1].end()] or found
    if not found:
        words = list(_WORD_NUMBER.finditer(sentence))
        bound = len(words) == 1 and re.match(
            rf"\s+(?:{AND_MORE})\b", sentence[words[0].end(1) :], re.IGNORECASE
        )
        return (
            words[0].span(1)
            if len(words) == 1
            and not bound
            and not doubted(sentence[: words[0].start(1)])
            and number_words(words[0][1]) is not None
            else None
        )
    alone = len(found) == 1 and not re.search(r"[\^_]", sentence) and re.search(r"[a-zA-Z]{2}", sentence)
    if not alone and not sentence[: found[-1].start()].rstrip(" $").endswith("="):
        return None
    if doubted(sentence[: found[-1].start()]) or _COMPARES.search(sentence[: found[-1].start()]):
        return None
    return found[-1].start(), found[-1].end() + unit_behind(sentence[found[-1].end() :])
