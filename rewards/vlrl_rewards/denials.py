"""Answers that say what the answer is not: "not [1, 2, 3, 4]", "anywhere but there", "[1, 2, 3, 4] is wrong"."""

from __future__ import annotations

import re

from vlrl_rewards.vocabulary import ALL_BUT, ASIDE, NOT, THAN, WRONG

_LOOK = 80
_BEFORE = re.compile(
    rf"(?:\b(?:{NOT}|no|nowhere|cannot|{ASIDE}|{ALL_BUT}|nothing\s+but|{THAN})|n['’]t)"
    r"[\s(]+(?:(?:an?|the|be|at|in|on|is|it|its?|box|point|region|area|span|located|equal|to|exactly|from|given|by|bounding|click|tap|press|coordinates?)[\s(:]+){0,5}$",
    re.IGNORECASE,
)
_AFTER = re.compile(
    rf"[\s)\]}}>\"'`*.,]{{0,5}}(?:(?:(?:which\s)?(?:is|are|was|were|would\sbe)\s(?:\w{{1,12}}ly\s)?(?:{WRONG}|not\b))|(?:is|are|was|were)n['’]t\b|wrong\b|incorrect\b|\?\sno\b)",
    re.IGNORECASE,
)


def denied(text: str, start: int, end: int) -> bool:
    """Whether the words around text[start:end] say that it is not the answer. Looks at 80 characters on each side."""
    before = text[max(0, start - _LOOK) : start]
    return (bool(before) and _BEFORE.search(before) is not None) or _AFTER.match(text[end : end + _LOOK]) is not None
