"""kind="yes_no": yes or no (true or false), and only one of the two; and a reward for a list of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict, right, wrong
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.parsing import clean, committed, visible
from vlrl_rewards.runs import without_runs
from vlrl_rewards.text.choice import context_of
from vlrl_rewards.text.denials import (
    CANNOT,
    MIGHT,
    SECOND_THOUGHT,
    TURN,
    WRONG,
    ends_in_doubt,
    refuses,
    taken_back,
)
from vlrl_rewards.text.letters import TAIL_CHARS

_YES = (
    "是的|对的|yes|yeah|yep|true|correct|right|affirmative|是|对|正确|"
    "oui|ja|sí|sim|sì|да|tak|evet|はい|예|네|نعم|ใช่|हाँ|हां"
)
_NO = (
    "不是的|不对|no|nope|false|incorrect|wrong|negative|否|不是|错误|错|"
    "non|nein|não|nee|nej|нет|nie|hayır|いいえ|아니요|아니오|لا|ไม่ใช่|ไม่|नहीं"
)
_TURN = re.compile(
    (
        rf"(?:{TURN}|\b(?:wait|actually|correction|alternatively|{SECOND_THOUGHT})\b)\W*(?:(?:wait|"
        r"actually|no,"
        r"|it\s+is|it's|the\s+answer\s+is)\W*)*"
    ),
    re.IGNORECASE,
)
_ABSENT = re.compile(
    (
        r"^\W*there\s+(?:is|are|was|were)(?:n't|\s+not|\s+no)\s+(?!way\b|answer\b|information\b|indication\b|"
        r"evidence\b|doubt\b|reason\b|enough\b)(?!.*\b(?:or|unclear|unsure|unless|but|only)\b)"
    ),
    re.IGNORECASE,
)
_FIRST = re.compile(
    (
        r"^\W*(?:(?:absolutely|definitely|certainly|clearly|obviously|of\s+course|surely|indeed)\W+)?"
        rf"(?:(?P<yes>{_YES})|(?P<no>{_NO}))(?![\w/])(?!\s*(?:/|or\b|and\b|idea\b|one\b|answer\b|way\b|"
        r"clue\b|comment\b))"
    ),
    re.IGNORECASE,
)
_LEADS = r"\b(?:is|was|=|be|(?<!not )(?<!never )(?<!n't )say|it's)\b(?:\s*:)?(?:\s+an?\b)?|^[^.!?\n]{1,60},"
_SAYS = re.compile(rf"(?:{_LEADS})\s*(?P<not>not\s+)?(?:(?P<yes>{_YES})|(?P<no>{_NO}))\W*$", re.IGNORECASE)
_OPEN = re.compile(
    (
        rf"\b(?:{CANNOT})\s+be\b|\b(?:{_YES}|{_NO})\s+(?:{MIGHT}|would)\s+be\b|\b(?:{_YES}|{_NO})\s+if\b|"
        rf"\balternatively\b|\(\s*(?:{WRONG})\b|\?\s*(?:hardly|no|never|i\s+doubt)\b|\bno\s+(?:reason"
        rf"|chance)\b|\bwish\b|"
        rf"\bwhich\s+(?:is|was)\s+(?:not|{WRONG})\b|\b(?:{MIGHT})\s+be\s+(?:{_YES}|{_NO})\b|\bor\s+(?:is|was"
        rf"|are)\b|\b(?:no\s+way|nobody|no\s+one|(?:{WRONG}|untrue)\s+that|(?:yes|"
        r"no)\s+if\s+(?:yes|"
        rf"no))\b|\?\W*$|\b(?:{_YES}|{_NO})\W{{1,3}}(?:is|was)(?:n't|\s+(?:not|wrong|incorrect))\b"
    ),
    re.IGNORECASE,
)
_BETWEEN = r"\W{1,3}(?:(?:and|or)\W)?"
_JOINED = (
    r"[^.!?\n]{0,30}\b(?:but|and|or|also|though|although|yet|well|maybe|perhaps|then)\W+"
    r"(?:also\W+|then\W+|maybe\W+)?"
)
_BOTH = re.compile(
    rf"\b(?:{_YES})\b{_JOINED}(?:{_NO})\b(?=\W*(?:$|[.,;!?)])|\s+(?:because|since|as)\b)"
    rf"|\b(?:{_NO})\b{_JOINED}(?:{_YES})\b(?=\W*(?:$|[.,;!?)])|\s+(?:because|since|as)\b)|"
    rf"\b(?:{_YES}){_BETWEEN}(?:{_NO})\b(?!\s+(?:doubt|problem|question))|\b(?:{_NO}){_BETWEEN}(?:{_YES})\b",
    re.IGNORECASE,
)


def yes_or_no(text: str) -> bool | None:
    """True for yes, False for no, None for neither or both. Text behind "wait, actually" replaces the text
    before it if it says either."""
    text = clean(re.sub(r"\\(?:text\w*|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", text[:TAIL_CHARS]))
    turns = list(_TURN.finditer(text))
    later = _stated(text[turns[-1].end() :]) if turns else None
    if later is not None:
        return later
    return _stated(text)


def _stated(text: str) -> bool | None:
    absent = _ABSENT.match(text)
    if absent:
        return False
    if _BOTH.search(text) or _OPEN.search(text):
        return None
    first, says = _FIRST.match(text), _SAYS.search(text)
    values = {bool(first["yes"])} if first else set()
    if len(re.findall(rf"\b(?:{_YES}|{_NO})\b", text, re.IGNORECASE)) > 20:
        return None
    if says:
        values.add(bool(says["yes"]) != bool(says["not"]))
    return values.pop() if len(values) == 1 else None


@verifier("yes_no", "boolean")
@without_runs
def yes_no(response: Response, gold: Any, row: Row) -> Verdict:
    """Yes or no (true or false): of the committed answer, else of the whole response. Both, or neither, is
    wrong."""
    wanted = gold if isinstance(gold, bool) else yes_or_no(str(gold))
    if wanted is None:
        raise GoldError(f"gold: {gold!r} is neither yes nor no")
    text = visible(response.text)
    answer = committed(response.text, lambda said: yes_or_no(said) is not None) or committed(response.text)
    answer = answer or Answer(text.strip(), 0, len(text), "text")
    if answer.problem or not answer.text.strip():
        raise Unread(answer.problem or "empty", answer)
    said = yes_or_no(answer.text)
    if (
        refuses(context_of(text, answer))
        or taken_back(text[answer.end :])
        or ends_in_doubt(answer.text.rstrip())
    ):
        raise Unread("a refusal, or taken back", answer)
    if said is None or _turns(answer.text, said):
        raise Unread("neither yes nor no, or both", answer)
    return (right if said == wanted else wrong)(answer, "yes" if said else "no", "yes_no")


def _turns(text: str, said: bool) -> bool:
    """Whether a later sentence starts with the opposite."""
    later = [
        _FIRST.match(part)
        for part in re.split(
            r"[.!?\n]\s{0,9}(?:(?:actually|wait|hmm|well|but|sorry)\b[,.]?\s*)*|\b(?:actually|wait),?\s",
            text,
            flags=re.IGNORECASE,
        )[1:]
    ]
    return any(match is not None and bool(match["yes"]) != said for match in later)


@verifier("true_false")
@register("true_false")
@dataclass(frozen=True, kw_only=True)
class TrueFalse(Graded):
    """A list of true / false answers such as "T F F".

        exact:  1[all correct]
        share:  correct / all

    Paper: MiCo, arXiv:2506.22434 (same or different for each pair of pictures; exact match). Edge: a
    different number of them, or any other word: 0. Range [0, 1]. Words: T / true / yes / same, F / false / no
    / different.
    """

    mode: Literal["exact", "share"] = "exact"

    def read(self, text: str) -> list[bool] | None:
        """The list of booleans; None if the text has any other word."""
        words = re.findall(r"[A-Za-z]{1,12}", text[:2000].casefold())
        if len(words) == 1 and len(words[0]) > 1 and set(words[0]) <= {"t", "f"}:
            words = list(words[0])
        meaning = {
            **dict.fromkeys(("t", "true", "yes", "same"), True),
            **dict.fromkeys(("f", "false", "no", "different"), False),
        }
        return [meaning[w] for w in words] if words and all(w in meaning for w in words) else None

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = self.read(" ".join(map(str, gold)) if isinstance(gold, (list, tuple)) else str(gold))
        if not target:
            raise GoldError(f"answer: {gold!r} is not a list of true and false such as 'T F F'")
        answer = self.committed(response)
        said = self.read(answer.text)
        if said is None or len(said) != len(target):
            raise Unread(f"not a list of {len(target)} true or false", answer)
        hits = sum(a == b for a, b in zip(said, target, strict=True))
        exact = hits == len(target)
        return self.scored(
            answer,
            float(exact) if self.mode == "exact" else hits / len(target),
            exact,
            f"{hits} of {len(target)}",
        )
