"""Coordinates and labels written without brackets: bare numbers, `x1=1, y1=2, ...`, `<point x= y=>`, and the
name in "dog: [...]"."""

from __future__ import annotations

import re

from vlrl_rewards.literals import NUMBER, is_number
from vlrl_rewards.text.denials import hedges

Quad = tuple[float, float, float, float]
CORNER_NAMES = tuple(
    names.split()
    for names in (
        "x1 y1 x2 y2",
        "x0 y0 x1 y1",
        "xmin ymin xmax ymax",
        "x_min y_min x_max y_max",
        "left top right bottom",
    )
)
_BARE = re.compile(
    r"(?:[^\W\d][\w "
    rf"]{{0,40}}[:=]\s{{0,3}})?[\s(<\[]{{0,9}}({NUMBER}(?:[\s,;]{{1,9}}{NUMBER}){{1,15}})[\s)>\].]{{0,9}}"
)
_NUMBER = re.compile(NUMBER)
_NAMED = re.compile(
    rf"\b({'|'.join(sorted({n for names in CORNER_NAMES for n in names}))})\s?[=:]\s?({NUMBER})(?![\w.%])",
    re.IGNORECASE,
)
_XY = re.compile(
    rf"""\bx(\d{{0,3}})\s?[=:]\s?["']?({NUMBER})["']?[\s,;]{{1,4}}y\1\s?[=:]\s?["']?({NUMBER})(?![\w.%])""",
    re.IGNORECASE,
)
_CORNER_WORDS = r"(?:the\s)?(?:bottom|lower)[-\s]?right(?:\scorner)?\s?(?:is|at|:|=)?"
_GAP = re.compile(
    rf"\s{{0,5}}(?:,|to|and|-|;)?\s{{0,5}}(?:and\s)?(?:{_CORNER_WORDS})?\s{{0,5}}", re.IGNORECASE
)
_REF_TAG = re.compile(
    r"<\|?(?:ref|object_ref_start)\|?>([^<]{0,200})<(?:/ref|\|object_ref_end\|)>", re.IGNORECASE
)
_LEAD = re.compile(
    r"(?:\A|[\n,;\])}])\s{0,9}(?:and\s)?(?:\(?[0-9]{1,3}[.):]\s|[-*•]\s)?\s{0,9}[*_\"'`]{0,3}([^\W\d][^\n,;"
    r":\[\](){}*\"'`]{0,60})[*\"'`]{0,3}\s{0,3}:?\s{0,3}[*]{0,2}\s?\Z"
)


def bare_numbers(text: str, count: int) -> list[float] | None:
    """The numbers of a text that consists of `count` numbers only, optionally after a name ("dog: 1, 2, 3,
    4"); None for any other text."""
    match = _BARE.fullmatch(text.strip()) if len(text) < 400 and not hedges(text) else None
    numbers = [float(n) for n in _NUMBER.findall(match[1])] if match else []
    return numbers if len(numbers) == count and all(is_number(n) for n in numbers) else None


def named_corners(text: str) -> list[tuple[Quad, int]]:
    """Boxes (x1, y1, x2, y2) written as four named numbers in any order ("x1=1, y1=2, x2=3, y2=4", "left: 1,
    ..."), each with its offset."""
    found: list[tuple[Quad, int]] = []
    named: dict[str, float] = {}
    start = end = 0
    for match in _NAMED.finditer(text) if "=" in text or ":" in text else ():
        name = match[1].lower()
        if name in named or match.start() - end > 12:
            named = {}
        start = start if named else match.start()
        named[name], end = float(match[2]), match.end()
        names = next(
            (names for names in CORNER_NAMES if len(named) == 4 and all(n in named for n in names)), None
        )
        if names and all(map(is_number, named.values())):
            found.append(((named[names[0]], named[names[1]], named[names[2]], named[names[3]]), start))
            named = {}
    return found


def named_points(text: str) -> list[tuple[tuple[float, float], int]]:
    """Points written as `x="1" y="2"` (also x1, y1, x2, y2, ...) or "x=1, y=2", each with its offset."""
    found = (
        [((float(m[2]), float(m[3])), m.start()) for m in _XY.finditer(text)]
        if "=" in text or ":" in text
        else []
    )
    return [pair for pair in found if all(map(is_number, pair[0]))]


def are_corners(text: str, end: int, start: int) -> bool:
    """Whether the point that ends at `end` and the one that starts at `start` are two corners of a box: only
    a separator stands between them."""
    return _GAP.fullmatch(text, end, start) is not None


def label_before(text: str, start: int) -> str:
    """The label before a box at offset `start`: `<ref>dog</ref>`, or "dog:" after the last line break, comma
    or box; "" if there is none."""
    tail = text[max(0, start - 260) : start]
    tags = list(_REF_TAG.finditer(tail))
    if tags:
        return tags[-1][1].strip() if not tail[tags[-1].end() :].strip() else ""
    lead = _LEAD.search(tail[-100:])
    return lead[1].strip() if lead else ""
