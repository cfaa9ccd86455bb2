r"""Finds the answer that a response commits to. Every verifier and reward removes thinking and finds answers
through this module.

Rules, in this order:
1. Text inside thinking tags is never read, also if the tag is not closed or was opened by the prompt.
2. The last commitment counts: `<answer>...</answer>`, `\boxed{...}`, "final answer: ...", "#### ...".
3. Three or more different commitments without a word of correction before the last one are guesses, not an
   answer. So is an answer that is repeated more than MAX_REPEATS times.
Time is linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from vlrl.plugins.scoring import Answer, Response, Unread
from vlrl_rewards.text.denials import FOREIGN_NOT, MAYBE, MIGHT, PAUSES, TAKES_BACK, WRONG, denied, doubted

_THINK = r"think(?:ing)?|thought|reasoning|scratchpad|reflection|analysis"
_OPEN = rf"<\s*(?:{_THINK})\s*>|\[THINK\]|◁think▷|<\|begin_of_thought\|>"
_CLOSE = rf"<\s*/\s*(?:{_THINK})\s*>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>"
_THOUGHT = re.compile(rf"(?P<open>{_OPEN})|(?P<close>{_CLOSE})", re.IGNORECASE)
_HIDDEN = re.compile(rf"(?P<open>{_OPEN}|<!--)|(?P<close>{_CLOSE}|-->)", re.IGNORECASE)
# "the answer" with its verb, in languages other than English and Chinese; a negation ("ist nicht", "n'est
# pas", "no es") is no such verb.
_FOREIGN = (
    r"\b(?:die\s+|endgültige\s+)*(?:antwort|lösung)\s+(?:ist|lautet)(?!\s+nicht)|\b(?:antwort|lösung|"
    r"réponse(?:\s+finale)?|respuesta(?:\s+final)?|resposta(?:\s+final)?"
    r"|risposta(?:\s+finale)?|antwoord|svar|odpowiedź|cevap|ответ|απάντηση|답|정답|答え|回答|الجواب|"
    r"उत्तर)(?=[*_\s]{0,4}[:：])"
    r"|\bla\s+réponse(?:\s+finale)?\s+est|\bla\s+respuesta(?:\s+(?:final|correcta))?\s+es|"
    r"\ba\s+resposta(?:\s+(?:final|correta))?\s+é"
    r"|\bla\s+risposta(?:\s+(?:finale|corretta))?\s+è|\bhet\s+antwoord\s+is(?!\s+niet)|\b(?:der\s+wert|"
    r"das\s+ergebnis)\s+(?:ist|beträgt)(?!\s+nicht)"
    r"|\ble\s+résultat\s+est|\bel\s+resultado\s+es|\bo\s+resultado\s+é|\bil\s+risultato\s+è|答えは|정답은|답은"
    r"|(?:الجواب|الإجابة|الاجابة|الناتج|النتيجة|الحل)(?:\s+(?:النهائي|النهائية|الصحيح|الصحيحة))?\s+(?:هو|هي"
    r"|هما)(?!\s+ليس)"
    r"|คำตอบ(?:สุดท้าย|ที่ถูกต้อง)?\s?(?:คือ|:)|उत्तर(?=\s+\S)|\bответ\s*(?:—|–|-|равен|будет)\s|"
    r"\bđáp\s+(?:án|số)\s+là|\bjawaban(?:nya)?\s+adalah|\bodpowiedź\s+to(?!\s+nie)|\bodpowiedzią\s+jest"
    r"|\bsvaret\s+är(?!\s+inte)|"
    r"התשובה\s+היא"
)
FOREIGN_LEAD = re.compile(rf"\W*(?:{_FOREIGN})[*_\s]{{0,3}}[:：]?\s*", re.IGNORECASE)
COPULA = re.compile(r"\s?(?:です|だ|である|でした|입니다|이다|예요|이에요|है|होगा)[。.!।]?\s*$")
_PHRASE_WORD = re.compile(r"\banswers?\b(?!.*\banswers?\b).{0,40}$", re.IGNORECASE | re.DOTALL)
_DENIED = re.compile(
    rf"\b(?:{WRONG}|worst|bad|tempting|unlikely|least\s+(?:likely|plausible|correct)|not\s+(?:the|a|"
    r"my)(?:\s+\w+)?|isn't\s+the)\s+"
    r"(?:answer|choice|option|final\s+answer)\W*$",
    re.IGNORECASE,
)
_PART = re.compile(r"\banswer\s*\(([a-h]|\d)\)\W*$", re.IGNORECASE)
_HEADING = re.compile(r"(?:^|\n)[#>*_\s\d.]{0,12}$")
_LEADING = re.compile(r"[\s*_.:]*(?:\\\[|\$\$)?\s*")
_ANOTHER = re.compile(
    r"\b(?:another|alternat(?:e|ive)|first|second|other|additional)\s+(?:\w+\s+){0,2}$", re.IGNORECASE
)
_WITHDRAWN = re.compile(rf"\b(?:that|this|it|which)(?:['’]s|\s+(?:is|was))\s+(?:{WRONG})\W*$", re.IGNORECASE)
_DENIES_BOX = re.compile(rf"(?:{FOREIGN_NOT})\W*$", re.IGNORECASE)
_DOUBTS_BOX = re.compile(rf"\b(?:{MIGHT})\s+(?:also\s+)?be\s*[$*(]*\\(?:boxed|fbox)\{{\s*$", re.IGNORECASE)
_FIELD = re.compile(
    r"""["'](?:final[_ ]?)?answer["']\s{0,3}:\s{0,3}"""
    r"""(?:"((?:[^"\\\n]|\\.){1,400})"|'([^'\n]{1,400})'|([^\s,{}"'\[\]][^,{}"'\n]{0,100}))""",
    re.IGNORECASE,
)
_SPECIAL = re.compile(r"<\|\w{1,30}\|>|</s>|<<[-\d+*/.,=() ]{1,60}>>")
_EMPHASIS = re.compile(
    r"(?<![\w*])(?P<mark>\*{1,3}|_{1,3}|`{1,3})(?=[^\s*_`])(?P<inner>[^*_`\n]{1,"
    r"400})(?<=[^\s*_`])(?P=mark)(?![\w*])"
)
_STRUCK = re.compile(  # text that is struck out is withdrawn
    (
        r"~~(?=\S)[^~\n]{1,400}(?<=\S)~~|<(?P<tag>del|strike)\s*>[^<]{0,400}</(?P=tag)\s*>|\\(?:sout|"
        r"st)\{[^{}]{0,400}\}"
    ),
    re.IGNORECASE,
)
_ANSWER_TAG = re.compile(r"<\s*(?:(/)\s*)?answer\s*>", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*(?=\{)|\\boxed\s+(?=[^\s{])|(?<![\\\w])boxed(?=\{)")
_PHRASE = re.compile(
    (
        r"(?:\bfinal\s+answer|\bfinal(?:ly)?(?=[*_\s]{0,4}[:：])|\b(?:correct\s+|right\s+|best\s+)?(?:answer|"
        r"choice|option)|\bans\.?|####|正确答案|最终答案|答案|(?P<foreign>"
    )
    + _FOREIGN
    + r"))"
    r"[*_\s]{0,4}(?:\([^()\n\\\d,]{0,30}\)\s?)?(?:to\s+(?:the|this)\s+\w+\s)?"
    r"(?P<link>(?:is|was|will\s+be|should\s+be|must\s+be|would\s+be|equals|are|be|是|为)?[*_\s]{0,"
    r"3}(?:therefore|thus|simply|just|indeed|then)?[*_\s]{0,3}[:：=]?[*_]{0,3})"
    r"(?=(?P<rest>[^\n]{0,400}))",
    re.IGNORECASE,
)
_VALUE = (
    r"\**[$(]?(?:\\?\()?[-+−]?\.?(?:\d|[A-H]\b|(?:yes|no|true|false|one|two|three|four|five|six|seven|"
    r"eight|nine|ten|eleven|twelve)\b)"
)
_AMENDS = re.compile(  # "No wait, it's 24": behind an answer, this replaces it
    rf"\b(?:no|apologies|{PAUSES}|{TAKES_BACK})\b[\s,.:!-]{{0,6}}"
    r"(?:(?:no|wait|sorry|actually|oops)\b[\s,.:!-]{0,6}){0,2}(?:(?:it|that|this)(?:['’]s|\s+is|\s+was|"
    r"\s+should\s+(?:be|have\s+been)|\s+must\s+be)"
    rf"|i\s+meant?|make\s+(?:it|that)|should\s+(?:be|have\s+been))\s+(?P<rest>(?={_VALUE})[^\n]{{1,60}})",
    re.IGNORECASE,
)
_NOT_BUT = re.compile(  # "n't 17; it's 18", "not 17. It is 18"
    r"(?:n['’]t|\s*not)\b[^\n;!?]{0,40}?[.;,]\s+(?:rather,?\s+|instead,?\s+)?(?:it|that|this)(?:['’]s"
    r"|\s+is)\s+"
    rf"(?={_VALUE})",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[^\d\s.])\.(?=\s|$)|(?<=\d)\.(?=\s+[A-Z]|\s*$)|[。!?！？](?=\s|$)|;(?=\s)")
_SENTENCE_START = re.compile(r"(?<=[.!?。])\s|\n")
_CORRECTION = re.compile(
    rf"\b(?:{PAUSES}|{TAKES_BACK}|{WRONG}|correct(?:ing|ed)|recheck|re-?check|double.?check|mistake|error|"
    r"instead|rather"
    r"|hmm|no,|not right|redo|revis\w+|reconsider\w*|let me|final(?:ly)?"
    r"|therefore|thus|hence|in conclusion|overall|altogether|in total)\b",
    re.IGNORECASE,
)
_GUESSING = re.compile(
    rf"\b(?:or|{MAYBE}|(?:{MIGHT}) be|either|alternatively|options?|candidates?|guess\w*)\b", re.IGNORECASE
)
_JOIN = re.compile(r"[\s,;&$]*(?:(?:and\s+also|and|or|as well as|also|和|或)[\s,;&$]*)?", re.IGNORECASE)
_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\u00ad\ufeff\U000e0000-\U000e007f]")
MAX_REPEATS = 3
MAX_DIFFERENT = 5  # different commitments, whatever stands between them
TAIL_CHARS = 20_000  # characters at the end of a response in which commitments are searched
MAX_COMMITMENTS = 100  # commitments of each sort that are read, from the end
MAX_NESTED_BOXES = 8  # levels of boxes in boxes that are unwrapped


@lru_cache(maxsize=64)
def visible(text: str) -> str:
    """The text with thinking, HTML comments, text that is struck out and special tokens replaced by spaces;
    offsets do not change."""
    seen = _between(text, _HIDDEN)
    for hidden in (_SPECIAL, _STRUCK):
        seen = hidden.sub(lambda m: " " * len(m[0]), seen)
    return seen


@lru_cache(maxsize=64)
def outside_thinking(text: str) -> str:
    """The text with thinking replaced by spaces and all else as it stands, for programs: they may hold arrows
    (`-->`), shifts (`<<4>>`) and tildes, which `visible` takes for marks. Offsets do not change."""
    return _between(text, _THOUGHT)


def _between(text: str, marks: re.Pattern[str]) -> str:
    """The text with what stands between opening and closing `marks` replaced by spaces."""
    keep, depth, start = [], 0, 0
    for mark in marks.finditer(text):
        if mark["open"]:
            if depth == 0:
                keep.append((start, mark.start()))
            depth += 1
        elif depth > 0:
            depth -= 1
            start = mark.end()
        else:  # a closing tag without an opening one: the prompt opened it, so all text before is thinking
            keep, start = [], mark.end()
    if depth == 0:
        keep.append((start, len(text)))
    out, at = [], 0
    for begin, end in keep:
        out += [" " * (begin - at), text[begin:end]]
        at = end
    return "".join(out) + " " * (len(text) - at)


def strip_thinking(text: str) -> str:
    """The visible text of a response, trimmed."""
    return visible(text).strip()


def clean(text: str) -> str:
    """The text in NFKC without invisible characters, white space collapsed to single spaces."""
    return " ".join(_INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).split())


def unmarked(text: str) -> str:
    """The text without marks of emphasis in pairs (`*SALE*`, `**SALE**`, `_SALE_`, backticks) and without
    quotes around the whole of it."""
    for _ in range(3):
        text = _EMPHASIS.sub(r"\g<inner>", text.strip())
        quoted = (
            len(text) > 1
            and text[0] + text[-1] in ('""', "''", "“”", "‘’", "«»", "「」")
            and text[0] not in text[1:-1]
        )
        text = text[1:-1] if quoted else text
    return text


def answer_tags(text: str) -> list[tuple[int, int]]:
    """[start, end) of the content of every `<answer>` block; a last block that is not closed ends at the end
    of the text."""
    spans, opened = [], None
    for tag in _ANSWER_TAG.finditer(text):
        if not tag[1]:
            opened = tag.end()
        elif opened is not None:
            spans.append((opened, tag.start()))
            opened = None
    if opened is not None and text[opened:].strip():
        spans.append((opened, len(text)))
    return spans


def _closing_braces(text: str) -> dict[int, int]:
    """The index of every `{` mapped to the index of its `}`; escaped braces are text."""
    pairs, stack, i = {}, [], 0
    while i < len(text):
        char = text[i]
        if char == "\\":
            i += 2
            continue
        if char == "{":
            stack.append(i)
        elif char == "}" and stack:
            pairs[stack.pop()] = i
        i += 1
    return pairs


def boxes_in(text: str) -> list[tuple[int, int, int, int]]:
    r"""(start, end, content start, content end) of every outermost `\boxed{...}` or `\fbox{...}`, in
    order."""
    marks = list(_BOX.finditer(text))
    closing = _closing_braces(text) if marks else {}
    found: list[tuple[int, int, int, int]] = []
    for mark in marks:
        at = mark.end()
        if (found and mark.start() < found[-1][1]) or text[
            max(0, mark.start() - 12) : mark.start()
        ].rstrip().endswith("phantom{"):
            continue
        if text[at] == "{":
            if at in closing:
                found.append((mark.start(), closing[at] + 1, at + 1, closing[at]))
        else:
            found.append((mark.start(), at + 1, at, at + 1))
    return found


def _refused(before: str) -> bool:
    """Whether the words before a box deny or doubt what is in it."""
    before = _SENTENCE_START.split(before.rstrip(" $*({}\\"))[-1] + " "
    if _WITHDRAWN.search(before):
        return False
    return bool(_DENIES_BOX.search(before)) or doubted(before) or denied(before, len(before), len(before))


def _unwrap(text: str, start: int, end: int) -> tuple[int, int]:
    """[start, end) inside the only box there (if there is one), without white space, stars and backticks
    around it."""
    for _ in range(MAX_NESTED_BOXES):
        inner = boxes_in(text[start:end])
        if len(inner) != 1 or _refused(text[start : start + inner[0][0]]):
            break
        start, end = start + inner[0][2], start + inner[0][3]
    marks = re.match(r"\s*([*`]{1,3})", text[start:end])
    if marks and marks[1] in text[start + marks.end() : end].rstrip("*` \n.,;:!"):  # "**SALE** 50%"
        return start, end
    while start < end and (text[start].isspace() or text[start] in "*`"):
        start += 1
    while end > start and (text[end - 1].isspace() or text[end - 1] in "*`"):
        if text[max(start, end - 3) : end].endswith(" *"):  # an operator without its second operand
            break
        end -= 1
    return start, end


def _phrases(text: str) -> list[tuple[int, int, str]]:
    """(start, end, route) of the text behind "the answer is" and similar phrases, to the end of the sentence;
    of the next line if that is empty."""
    found = []
    for match in list(_PHRASE.finditer(text))[-4 * MAX_COMMITMENTS :]:
        if match["rest"].startswith("="):  # code, not a statement
            continue
        stated = (
            match["link"].strip(" *_") or match["foreign"] or match[0][:4] == "####" or "答案" in match[0]
        )
        leads = "\n" in match[0] or not match["rest"].strip()  # a heading such as "## Final answer"
        if not stated and not (leads and _HEADING.search(text[max(0, match.start() - 40) : match.start()])):
            continue
        start, rest = match.start("rest"), match["rest"]
        instead = _NOT_BUT.match(rest)
        if instead:
            start, rest = start + instead.end(), rest[instead.end() :]
        if not rest.strip(" *_.:$"):
            lead = _LEADING.match(text[match.end() : match.end() + 500])
            start = match.end() + (lead.end() if lead else 0)
            rest = text[start : start + 400].split("\n", 1)[0]
        stop = _SENTENCE_END.search(rest)
        end = start + (stop.start() if stop else len(rest))
        copula = COPULA.search(text, start, end) if match["foreign"] else None
        end = copula.start() if copula else end
        if text[start:end].strip(" *_.:$"):
            said = text[max(0, match.start() - 120) : match.start()]
            denied = _DENIED.search(text[max(0, match.start() - 40) : match.start("link")]) or doubted(
                _SENTENCE_START.split(said)[-1]
            )
            found.append((start, end, "denied" if denied else "phrase"))
    return found


def _amendments(text: str, since: int) -> list[tuple[int, int, str]]:
    """(start, end, route) of values behind `since` that replace an earlier answer."""
    found = []
    for match in _AMENDS.finditer(text, since):
        stop = _SENTENCE_END.search(match["rest"])
        found.append(
            (
                match.start("rest"),
                match.start("rest") + (stop.start() if stop else len(match["rest"])),
                "phrase",
            )
        )
    return found


def commitments(text: str) -> list[tuple[int, int, str]]:
    """(start, end, route) of every commitment of the visible text, in order. A commitment inside another one
    is part of it."""
    tags = [(start, end, "tag") for start, end in answer_tags(text)[-MAX_COMMITMENTS:]]
    found = tags + [
        (*m.span(m.lastindex or 0), "field")
        for m in list(_FIELD.finditer(text))[-MAX_COMMITMENTS:]
        if not any(a <= m.start() < b for a, b, _ in tags)
    ]
    boxes = [
        (s, e, cs, ce)
        for s, e, cs, ce in boxes_in(text)[-MAX_COMMITMENTS:]
        if not any(a <= s < b for a, b, _ in tags)
    ]
    for start, _, inner, end in boxes:
        found.append((inner, end, "denied" if _refused(text[max(0, start - 120) : start]) else "box"))
    said = _phrases(text)[-MAX_COMMITMENTS:]
    for start, end, route in said + (
        _amendments(text, min(s[1] for s in found + said))[-MAX_COMMITMENTS:] if found or said else []
    ):
        inside = any(a <= start < b for a, b, _ in found)
        has_box = any(start <= s < max(end, start + 1) or start <= e <= end for s, e, _, _ in boxes)
        has_tag = any(start <= a <= end + 10 for a, _, _ in tags)
        if not (inside or has_box or has_tag):
            found.append((start, end, route))
    return sorted(found)


def _problem_of(several: list[str], text: str, spans: list[tuple[int, int, str]]) -> str:
    """Why a list of commitments is no answer; "" if it is one."""
    if several.count(several[-1]) > MAX_REPEATS:
        return "one answer repeated too often"
    if len(set(several)) <= 1:
        return ""
    labels = [
        match[1] for start, _, _ in spans[-2:] if (match := _PART.search(text[max(0, start - 30) : start]))
    ]
    if len(set(several)) > MAX_DIFFERENT or len(set(labels)) > 1:
        return "several answers, none chosen"
    between = text[spans[-2][1] : spans[-1][0]][-300:]
    lead = between[-60:]
    if _GUESSING.search(lead) and not _CORRECTION.search(between):
        return "several answers, none chosen"
    if len(set(several)) >= 3 and not _CORRECTION.search(between):
        return "several answers, none chosen"
    return ""


def committed(response: str, plausible: Callable[[str], bool] | None = None) -> Answer | None:
    """The last answer that `response` commits to outside its thinking; None if there is none.

    `plausible` decides whether a phrase ("the answer is ...") has an answer of the wanted kind; None: every
    phrase counts. Adjacent boxes ("\\boxed{1}, \\boxed{2}") are one answer, a list.
    """
    seen = visible(response)
    shift = max(0, len(seen) - TAIL_CHARS)
    found = _committed(seen[shift:], plausible)
    return found and replace(found, start=found.start + shift, end=found.end + shift)


def _committed(text: str, plausible: Callable[[str], bool] | None) -> Answer | None:
    every = commitments(text)
    spans = [
        s
        for s in every
        if s[2] != "denied" and (s[2] != "phrase" or plausible is None or plausible(text[s[0] : s[1]]))
    ]
    if not spans and every and every[-1][2] == "denied":
        return Answer(
            text[every[-1][0] : every[-1][1]],
            every[-1][0],
            every[-1][1],
            "phrase",
            "it says what the answer is not",
        )
    spans = [
        s
        for s, after in zip(spans, [*spans[1:], (-1, -1, "")], strict=False)
        if s[2] != "phrase" or not s[0] < after[0] < s[1]
    ]
    if not spans:
        return None
    added = (
        spans[-1][2] == "phrase"
        and len(spans) > 1
        and _ANOTHER.search(_PHRASE_WORD.sub("", text[max(0, spans[-1][0] - 60) : spans[-1][0]]))
    )
    spans = [(*_unwrap(text, start, end), route) for start, end, route in spans]
    values = [clean(text[start:end]) for start, end, _ in spans]
    start, end, route = spans[-1]
    last = len(spans) - 1
    while (
        route in ("box", "tag")
        and last > 0
        and spans[last - 1][2] == route
        and _side_by_side(text, spans[last - 1][1], spans[last][0])
    ):
        last -= 1
    if last < len(spans) - 1 and len(set(values[last:])) > 1:
        joined = ", ".join(values[last:])
        if route == "tag":
            return Answer(joined, spans[last][0], end, "tags", "several answers, none chosen")
        return Answer(
            joined,
            spans[last][0],
            end,
            "boxes",
            _problem_of(values[:last] + [joined], text, spans[:last] + [(spans[last][0], end, route)]),
        )
    problem = (
        "several answers, none chosen"
        if added and values[-1] != values[-2]
        else _problem_of(values, text, spans)
    )
    if not problem and _DOUBTS_BOX.search(text[max(0, start - 40) : start]):
        problem = "the answer is in doubt"
    return Answer(text[start:end], start, end, route, problem)


def _side_by_side(text: str, end: int, start: int) -> bool:
    between = text[end:start].replace("}", " ", 1)
    head = re.sub(r"\\?(?:boxed|fbox|framebox)\s*(?:\{\s*)?$|<\s*/\s*answer\s*>|<\s*answer\s*>", "", between)
    return _JOIN.fullmatch(head) is not None


def last_answer(response: str) -> str:
    """The last committed answer, trimmed; "" if the response commits to none, or to several. Plain text
    without a commitment gives ""."""
    answer = committed(response)
    return "" if answer is None or answer.problem else answer.text.strip()


def answer_or_text(response: str) -> str:
    """The committed answer, or the whole visible text if the response commits to none; trimmed. "" if it
    commits to several.

    This is the function for a reward that parses the answer itself: "6", "<answer>6</answer>" and "The answer
    is 6." all give "6".
    """
    answer = committed(response)
    if answer is None:
        return uncommitted(visible(response))
    return "" if answer.problem else answer.text.strip()


def committed_answer(response: Response) -> Answer:
    """The last committed answer, trimmed. Raises Unread if there is none, or several."""
    answer = committed(response.text)
    if answer is None or answer.problem:
        raise Unread(answer.problem if answer else "no committed answer", answer)
    return replace(answer, text=answer.text.strip())


def final_answer(response: Response) -> Answer:
    """The committed answer, else the whole visible text. Raises Unread if it is empty, or several."""
    if committed(response.text) is not None:
        answer = committed_answer(response)
    else:
        seen = visible(response.text)
        said = uncommitted(seen)
        start = seen.find(said)
        answer = Answer(said, start, start + len(said), "text")
    if not answer.text:
        raise Unread("no committed answer", answer)
    return answer


def uncommitted(seen: str) -> str:
    """The answer of a visible text that commits to none: the whole text, trimmed; "" if it opens an answer
    tag and leaves it empty."""
    return "" if _ANSWER_TAG.search(seen) else seen.strip()
