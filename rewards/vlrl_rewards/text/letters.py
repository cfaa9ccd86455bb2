"""The options that a text names by letter and does not deny."""

from __future__ import annotations

import re
import string

from vlrl_rewards.parsing import clean
from vlrl_rewards.text.denials import ALL_BUT, ASIDE, CANNOT, NOT, REJECTS, THAN, WRONG

TAIL_CHARS = 4000  # characters at the end of an answer that are read
LETTERS = string.ascii_uppercase
NEGATION_SIGNS = "~¬!≠"
_LABEL = re.compile(r"^\s*[(\[]?([A-Za-z])[)\].:、]\s*(?=\S)|^\s*\(([A-Za-z])\)\s*")
_MENTION = re.compile(
    (
        rf"(?<![A-Za-z0-9'\\_{NEGATION_SIGNS}-])(?<![~¬≠]\s)(?P<open>[(\[{{<\"'*`$]{{0,"
        rf"6}})(?P<letter>[A-Za-z])(?P<close>[)\]}}>.:,;!?\"'*`$、]{{0,8}})(?=\s|$|[/,&|+-]|"
        r"[^\x00-\x7f])(?![\u0334-\u0338])"
    ),
)
_BEFORE = re.compile(
    (
        r"(?:\b(?:options?|choices?|answers?|letters?|select(?:ed|ing)?|choos(?:e|ing)|chose|pick(?:ed|ing)?|"
        r"go(?:ing)?\s+with|\d[).:]|选择?|is|be|are|and|or|to|both)|[:=,/&])\s*[(\[*\"']*$"
    ),
    re.IGNORECASE,
)
_NAMES = re.compile(r"\b(?:options?|choices?|answers?|letters?)\s*[:=]?\s*[(\[*\"']*$", re.IGNORECASE)
_NEGATED = re.compile(
    rf"(?:\b(?:{NOT}|no|neg|{ALL_BUT}|{ASIDE}|{THAN}|{REJECTS}|{CANNOT}|than|beats|outranks|over|besides"
    rf"|(?:{WRONG})(?:\s+(?:one|option|answer|choice))?(?:\s+is|\s*[:=]))|n't)"
    r"\s+(?:be\s+|choose\s+|pick\s+|select\s+|the\s+|options?\s+|choices?\s+|answers?\s+)*[(\[*\"']*$",
    re.IGNORECASE,
)
_OUT = (
    rf"(?:{WRONG}|invalid|unlikely|implausible|eliminated|excluded|rejected|ruled\s+out|out\b|too\b|"
    r"tempting|my\s+first|also\s+wrong"
    r"|be\s+(?:ruled|eliminated|excluded|rejected|wrong)|(?:the|a|an)\s+(?:only\s+)?(?:wrong|incorrect|"
    r"distractor|trap|decoy))"
)
DENIED = re.compile(
    r"^[\s)*\]]*(?:(?:is|are|was|looks|seems|would\s+be|has\s+been|must\s+be|can(?:'t|not)?|does(?:n't|"
    r"\s+not)|isn't|aren't|clearly|definitely)\s*)+"
    rf"(?:n't|not\b|{_OUT}|be\b|work\b|fit\b|match\b)|^[\s)*\]]*(?:[-–—:(]\s*)?(?:{WRONG})\b|^\s*(?:fails|"
    r"contradicts)\b",
    re.IGNORECASE,
)
_CROSSED = re.compile(r"\b[A-J]\W{0,3}[✗✘❌]")
_FOLLOWS_ARTICLE = re.compile(
    r"^\s+(?!is\b|are\b|because\b|since\b|and\b|or\b|as\b|would\b|seems\b|must\b|but\b|not\b|which\b|"
    r"with\b|here\b|over\b|rather\b|instead\b|\W)[a-zA-Z0-9]"
)
_DENIED_LIST = re.compile(
    r"(?:[(*]{0,3}[A-J][)*]{0,3}\s*(?:,\s*and|,|and|or|&|/)\s*){1,9}[(*]{0,3}[A-J][)*]{0,3}\s+"
    rf"(?:are|is|can|do|does|look|seem)(?:n't|\s*not|\s+(?:both\s+|all\s+|clearly\s+)?(?:{WRONG}|out|"
    r"eliminated|ruled\s+out))\b"
)
_TAKEN_BACK = re.compile(r"\b([A-J]),?\s+or\s+not\s+\1\b")
_NOT_OPTIONS = re.compile(
    r"(?i:\b(?:grade|score|mark|rating)s?\s*(?:is\s+|:\s*|=\s*)(?:an?\s+)?[A-J]\b)|"
    r"(?i:\b(?:give|gives|gave|deserve|deserves|earn|earns|award|awards)\b)[^.\n]{0,40}\ban?\s+[A-J]\b|"
    r"\b(?:[Pp]lan|[Gg]rade|[Vv]itamin|[Hh]epatitis|[Gg]roup|[Tt]ype|[Ss]ection|[Tt]eam)\s+[A-J]\b|"
    r"\b[A-J]\s+(?:minus|plus)\b|\b[A-J]-(?=\W*$)|\b[A-J](?:\+\+?|#)(?!\w)(?!\s*[A-J\d])"
)
_REJECTED_LIST = re.compile(
    rf"\b(?:{REJECTS})\s+[A-J](?:(?:\s*,\s*(?:and\s+)?|\s+and\s+|\s*&\s*)[A-J])+\b|"
    rf"(?:\b(?:not|neither|{CANNOT})|n['’]t)\s+(?:be\s+)?[A-J](?:\s*,\s*[A-J])*,?\s+(?:or|nor)\s+[A-J]\b",
    re.IGNORECASE,
)


def label_of(text: str) -> tuple[str, str]:
    """("B", "Paris") of "B. Paris" or "(b) Paris"; ("", text) without a label."""
    found = _LABEL.match(text)
    return ((found[1] or found[2]).upper(), text[found.end() :].strip()) if found else ("", text.strip())


def mentions(text: str, count: int) -> list[str]:
    """Letters that `text` names as options and does not deny, in order."""
    text = clean(text[-TAIL_CHARS:]).replace("’", "'")
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf|textit|boxed)\s*\{([^{}]*)\}", r"\1", text).replace(
        "\\", ""
    )
    for hidden in (_NOT_OPTIONS, _REJECTED_LIST, _TAKEN_BACK, _DENIED_LIST, _CROSSED):
        text = hidden.sub(" ", text)
    alone = re.fullmatch(rf"[^\w{NEGATION_SIGNS}]*([A-Za-z])[^\w\u0334-\u0338]*", text)
    if alone:
        return [alone[1].upper()]
    found = []
    for match in _MENTION.finditer(text):
        letter, before, after = match["letter"], text[: match.start("letter")], text[match.end() :]
        if match["close"].startswith(".") and re.match(r"[A-Za-z]\.", after):
            continue
        wrapped = (
            bool(match["close"])
            and match["close"][0] in ')]}.:,;!?"*'
            and (match["open"] or match.start() == 0 or letter.isupper())
        )
        named = bool(_NAMES.search(before[-40:]))
        if letter.islower() and not (
            named or (match["close"][:1] == ")" and (match["open"] or match.start() == 0))
        ):
            continue
        if letter in "AI" and not wrapped and not named:
            article = _FOLLOWS_ARTICLE.match(after)
            if (
                letter == "I"
                or (article and not _BEFORE.search(before[-20:]))
                or (article and re.match(r"\s+[a-z]{3,}", after))
            ):
                continue
        if LETTERS.index(letter.upper()) >= max(count, 10):
            continue
        if not (_NEGATED.search(before[-40:]) or DENIED.match(after)):
            found.append(letter.upper())
    glued = re.fullmatch(r"\W*([A-J]{2,10})\W*", text)
    return (
        list(glued[1])
        if glued and len(set(glued[1])) == len(glued[1]) and list(glued[1]) == sorted(glued[1])
        else found
    )
