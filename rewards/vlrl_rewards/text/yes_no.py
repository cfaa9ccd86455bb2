"""kind="yes_no": yes or no (true or false), and only one of the two."""

from __future__ import annotations

import re

from vlrl_rewards.choice import context_of
from vlrl_rewards.hedges import refuses, taken_back
from vlrl_rewards.kinds import Case, verifier
from vlrl_rewards.letters import LOOK
from vlrl_rewards.parsing import Answer, clean, committed
from vlrl_rewards.verdict import Verdict, right, wrong
from vlrl_rewards.vocabulary import SECOND_THOUGHT, WRONG

_YES = "是的|对的|yes|yeah|yep|true|correct|right|affirmative|是|对|正确"
_NO = "不是的|不对|no|nope|false|incorrect|wrong|negative|否|不是|错误|错"
_TURN = re.compile(
    rf"\b(?:wait|actually|correction|{SECOND_THOUGHT})\b\W*(?:(?:wait|actually|no,|it\s+is|it's|the\s+answer\s+is)\W*)*",
    re.IGNORECASE,
)
_ABSENT = re.compile(
    r"^\W*there\s+(?:is|are|was|were)(?:n't|\s+not|\s+no)\s+(?!way\b|answer\b|information\b|indication\b|evidence\b|doubt\b|reason\b|enough\b)(?!.*\b(?:or|unclear|unsure|unless|but|only)\b)",
    re.IGNORECASE,
)
_FIRST = re.compile(
    rf"^\W*(?:(?P<yes>{_YES})|(?P<no>{_NO}))(?![\w/])(?!\s*(?:/|or\b|and\b|idea\b|one\b|answer\b|way\b|clue\b|comment\b))", re.IGNORECASE
)
_LEADS = r"\b(?:is|was|=|be|(?<!not )(?<!never )(?<!n't )say|it's)\b\s*:?(?:\s+an?\b)?|^[^.!?\n]{1,60},"
_SAYS = re.compile(rf"(?:{_LEADS})\s*(?P<not>not\s+)?(?:(?P<yes>{_YES})|(?P<no>{_NO}))\W*$", re.IGNORECASE)
_OPEN = re.compile(
    rf"\b(?:no\s+way|nobody|no\s+one|(?:{WRONG}|untrue)\s+that|(?:yes|no)\s+if\s+(?:yes|no))\b|\?\W*$|\b(?:{_YES}|{_NO})\W{{1,3}}(?:is|was)(?:n't|\s+(?:not|wrong|incorrect))\b",
    re.IGNORECASE,
)
_BETWEEN = r"\W{1,3}(?:(?:and|or)\W)?"
_BOTH = re.compile(
    rf"\b(?:{_YES}){_BETWEEN}(?:{_NO})\b(?!\s+(?:doubt|problem|question))|\b(?:{_NO}){_BETWEEN}(?:{_YES})\b",
    re.IGNORECASE,
)


def yes_or_no(text: str) -> bool | None:
    """True for yes, False for no, None for neither or both. What follows "wait, actually" counts where it says either."""
    text = clean(re.sub(r"\\(?:text\w*|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", text[:LOOK]))
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
def yes_no(case: Case) -> Verdict:
    """Yes or no (true or false): the committed answer, else the response's first word; saying both, or neither, is wrong."""
    gold = case.gold if isinstance(case.gold, bool) else yes_or_no(str(case.gold))
    if gold is None:
        raise ValueError(f"gold: {case.gold!r} is neither yes nor no")
    text = case.visible
    answer = committed(case.response, lambda said: yes_or_no(said) is not None) or committed(case.response)
    if answer is not None and answer.problem:
        return wrong(answer.problem)
    if answer is None:
        answer = Answer(text.strip(), 0, len(text), "text")
    if not answer.text.strip():
        return wrong("empty")
    details = {"extracted": answer.text.strip()[:200], "span": answer.span, "route": f"{answer.route}>yes_no"}
    said = yes_or_no(answer.text)
    if refuses(context_of(text, answer)) or taken_back(text[answer.end :]):
        return wrong("a refusal, or taken back", **details)
    if said is None or _turns(answer.text, said):
        return wrong("neither yes nor no, or both", **details)
    return (right if said == gold else wrong)("yes" if said else "no", **details)


def _turns(text: str, said: bool) -> bool:
    """Whether a later sentence opens with the opposite."""
    later = [
        _FIRST.match(part)
        for part in re.split(r"[.!?\n]\s{0,9}(?:(?:actually|wait|hmm|well|but|sorry)\b[,.]?\s*)*|\b(?:actually|wait),?\s", text, flags=re.IGNORECASE)[
            1:
        ]
    ]
    return any(match is not None and bool(match["yes"]) != said for match in later)
