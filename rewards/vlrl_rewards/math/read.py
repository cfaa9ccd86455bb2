"""Reads the text of an answer ("the area is 12 cm$^2$") as a mathematics tree and a unit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from vlrl_rewards.math.latex import MAX_CHARS, plain_latex
from vlrl_rewards.math.lexer import MAX_DIGITS, Node, NotMath
from vlrl_rewards.math.parser import parse
from vlrl_rewards.math.units import (
    SCALE,
    Unit,
    currency,
    known,
    parse_unit,
    split_unit,
    unit_before,
    unit_behind,
)
from vlrl_rewards.math.value import NoValue, numeric
from vlrl_rewards.math.wording import (
    congruence,
    decimal_comma,
    degrees,
    in_base,
    local_number,
    without_entities,
    worded_quantity,
)
from vlrl_rewards.math.written_numbers import ONE_WORD, number_words, numbers_in, total_in
from vlrl_rewards.parsing import COPULA, FOREIGN_LEAD
from vlrl_rewards.text.denials import (
    FOREIGN_NOT,
    FOREIGN_WRONG,
    MAYBE,
    MIGHT,
    PAUSES,
    TAKES_BACK,
    WRONG,
    bounded,
    doubted,
    hedges,
    settled,
)

_SAYS = re.compile(
    (
        r"^.*(?:\b(?:is|are|equals?|be|of|gives?|get|to|as|was|at|has|have|contains?)\b(?:\s+(?:equal\s+to|"
        r"simply|just|exactly))?|[:：]|(?<![<>!])=(?![^=]*[a-z]{4}))\s*"
    ),
    re.IGNORECASE | re.DOTALL,
)
_APPROX = re.compile(
    (
        r"^(?:(?:it|that|this|they)\s+(?:is|are)|it's|approximately|approx\.?|about|around|roughly|exactly|"
        r"only|just|nearly|a\s+total\s+of|the\s+(?:number|value)|=|≈|\\approx|~)\s*"
    ),
    re.IGNORECASE,
)
_REASON = re.compile(
    (
        r"(?<!\s)(?:(?:\s*,)?\s+(?:because|since|which|where|so|as|for|when|after|by|if|in\s+total|"
        r"altogether|units?)\b.*|"
        r"\s+\(.*\))$"
    ),
    re.IGNORECASE | re.DOTALL,
)
_FEET = re.compile(r"^(\d{1,3})\s?'\s?(\d{1,2}(?:\.\d+)?)\s?(?:\"|'')?$")
_CAUSE = re.compile(r",?\s*\b(?:because|since|as|which|where|for|when|after|by|if)\b", re.IGNORECASE)
_NAMED = re.compile(
    r"^(?:[A-Za-z]{2,}[\w\s']{0,40}|\\text\{[^{}]{1,60}\}|\\angle\s*[A-Z]+|[a-zA-Z]\((?:[a-z],?\s?){1,4}\)|"
    r"[a-z]'+(?:\([a-z]\))?)\s*=\s*(?=\S)"
)
_MINUS = re.compile(r"^(?:minus|negative)\s+(?=[\d.\\])", re.IGNORECASE)
_QUANTITY = re.compile(r"(?<!\d)(\d+(?:\.\d+)?)\s?([a-zA-Z]{1,12})\.?")
_COMPOUND = re.compile(
    r"\d+(?:\.\d+)?\s?[a-zA-Z]{1,12}\.?(?:,?\s?(?:and\s)?\d+(?:\.\d+)?\s?[a-zA-Z]{1,12}\.?){1,3}"
)
_LAST_UNSAID = re.compile(
    r"(?<![a-z])(?:(?P<hours>h|hrs?|hours?)|m|mins?|minutes?)\s?[0-5][0-9]$", re.IGNORECASE
)  # "3h20", "1min30"
_CODE = re.compile(
    r"(?<!\\)\blambda\b[^=]{0,20}:|(?<![\\\w])(?:eval|exec|print|system|open|getattr|int|float|str|bool|"
    r"complex|list|tuple|dict|set|len|range|sum|max|min|round|pow"
    r"|sorted|map|filter|next|iter|ord|chr|hex|oct|bin|repr|input|any|all|zip|type|divmod|Fraction|Decimal|"
    r"Rational|Integer|parseInt|parseFloat|Number|String)\("
    r"|\bimport\s+\w|\bassert\b|(?i:^\W*(?:exception|traceback|return)\b)|__|\b\w+\.\w+\(|\b(?:if|"
    r"while)\s+(?:True|False|not\b)|\bdef\s+\w+\(|\]\s*\[\s*-?\d+\s*\]"
)
_STARRED = re.compile(
    r"^\*.*\*$|[^\s*]\*\*$", re.DOTALL
)  # a pair of stars; a single one behind a number is an operator
_SHARE_OF = re.compile(
    r"(?<=%)\s+of\s+(?:(?:the|all|his|her|their|its)\s+)?[a-z]+(?:\s[a-z]+)?$", re.IGNORECASE
)
_ENDLESS = re.compile(rf"\d{{{MAX_DIGITS}}}")
_WORDED: dict[str, Node] = {
    **dict.fromkeys(
        ("all real numbers", "all reals", "set of all real numbers", "all real numbers x", "reals"),
        parse(r"\mathbb{R}"),
    ),
    **dict.fromkeys(
        ("no solution", "no solutions", "no real solution", "no real solutions", "empty set"),
        ("const", "empty"),
    ),
    **dict.fromkeys(("dne", "d.n.e", "does not exist", "limit does not exist"), ("text", "does not exist")),
}
_CONNECT = re.compile(
    r"^(?:(?:therefore|thus|so|hence|then|finally|we\s+(?:get|have|find|obtain))\b[,:]?\s+)+", re.IGNORECASE
)
_SO = re.compile(r",?\s(?:so|therefore|thus|hence)\b,?\s", re.IGNORECASE)
# What must not stand in the part of an answer that is left out: "17 (wrong)", "17 (but really 18)".
_TAKES_AWAY = re.compile(
    rf"\b(?:{WRONG}|untrue|or|but|not|never|no|nope|really|actually|instead|rather|{MAYBE}|{MIGHT}|{PAUSES}|"
    rf"{TAKES_BACK}|unless|except|alternatively|otherwise|else|versus|vs)\b|n['’]t\b|\?|"
    rf"{FOREIGN_WRONG}|{FOREIGN_NOT}",
    re.IGNORECASE,
)
_JOINS = re.compile(
    rf"(?:\d|\}}|\)|\b(?:{ONE_WORD}))[%\s]*(?:[a-zA-Zµμ°/^²³]{{1,12}}\s+(?=to|thr|or|and|vs))?"
    r"(?:\b(?:to|through|till|until|or|and|vs\.?|versus|up\s+to|of|oder|bis|ou|o|oppure|y|e|et|und|en|eller"
    r"|lub|veya|"
    r"hoặc|atau|или|и|до)\b|[或到至か]|または|或者|또는|أو|หรือ|या|[-–—/~,;&+]|\.\.)\s*$",
    re.IGNORECASE,
)
_MARK = re.compile(  # a mark that an answer gives itself
    r"\W*(?:(?:my|final|the|overall|total)\s+)?(?:score|grade|mark|marks|reward|rating|verdict|correct"
    r"|correctness|"
    r"evaluation|confidence)\s*(?:is\b|[:=])\s*.*|\W*(?:points?|credits?)\s*[:=]\s*(\d+)\s*(?:/"
    r"|out\s+of)\s*\1\W*",
    re.IGNORECASE | re.DOTALL,
)
_EXCEPT = re.compile(r"\b(?:unless|except|otherwise)\b", re.IGNORECASE)
_INSIDE = re.compile(
    r"\s?\(\s*(?:≈|~|=|about|approx(?:imately|\.)?|i\.?e\.?,?)?\s*(-?[\d.,/]{1,20})\s*\)\s*\.?$"
)
_UNIT_TEXT = re.compile(
    r"(?<=[\d}\)%])\s*\\text\s*\{\s*((?:per\s?cent"
    r"|[A-Za-zµμΩ°][A-Za-zµμΩ°/^0-9\s.*·-]{0,29}))\.?\s*\}(?!\s*\^)"
)
_BOLD = re.compile(r"(?<![\w)\]])\*\*([^*\n]{1,120})\*\*(?!\w)")
_FIRST_VALUE = re.compile(r"[\d\\$]")
_BOLD_END = re.compile(r"(?<=[\w)])\*\*(?=\s+[A-Za-zµμΩ°])")  # "12** cm", of a phrase "is **12** cm"
_STATEMENT = re.compile(r"(?:[a-zA-Z](?:_\w)?\s?=\s?)?[-+−\d./√\s]{1,30}[,;.]?")
_BUILDER = re.compile(
    r"\\\{\s*([a-zA-Z])\s*(?:\\in\s*\\mathbb\{R\}\s*)?[|:]([^{}]*(?:\{[^{}]*\}[^{}]*)*?)\\\}"
)
_TEXTS = re.compile(r"\\(?:text\w*|mathrm|mbox)\s*\{([^{}]*)\}")
_CJK_UNIT = re.compile(
    r"(?<=[\d)}%])\s*([个只条张本件名位人岁元辆台枚颗朵头匹分厘毫千平立公方米克斤秒钟小时天日度种次]{1,6})(?![左右以多到至不])[\u4e00-\u9fff]{0,6}\s*$"
)
_CJK = {
    "厘米": "cm", "毫米": "mm", "米": "m", "千米": "km", "公里": "km", "克": "g", "千克": "kg", "公斤": "kg",
    "秒": "s",
    "分钟": "min",
    "小时": "h", "天": "day", "度": "degree", "平方厘米": "cm^2", "平方米": "m^2", "立方厘米": "cm^3",
    "立方米": "m^3",
    "平方千米": "km^2",
}  # fmt: skip
_COMMENT = re.compile(
    r"(?<!\s)\s*\\text\w*\s*\{\s*\([^{}()]{1,80}\)\s*\}\s*(?:\.\s*)?$"
)  # "4 \text{ (the only root)}"
_DELIMITED = re.compile(r"\$\$?([^$]{1,500})\$\$?|\\\((.{1,500}?)\\\)|\\\[(.{1,500}?)\\\]", re.DOTALL)


@dataclass(frozen=True)
class Reading:
    """The tree of an answer, its unit, its text, and other readings or None: "1,234" as a list (`listed`),
    "0,25" as a decimal (`decimal`). `left_over`: the words of the answer that were not read as mathematics
    and take nothing of it away."""

    node: Node
    unit: Unit | None
    text: str
    listed: Node | None = None
    decimal: Node | None = None
    left_over: str = ""


def is_mark(text: str) -> bool:
    """Whether a text is a mark that an answer gives itself: "Score: 1"."""
    return _MARK.fullmatch(text) is not None


def is_code(text: str) -> bool:
    """Whether a text has a statement or a call of a programming language: "int(\"17\")", "lambda: 17".
    Written mathematics has "\\max(3, 5)"."""
    return _CODE.search(text) is not None


def _trim(text: str) -> str:
    text = text.strip().strip('`"“”').strip()
    text = text.lstrip("*").lstrip() if not _STARRED.search(text) else text.strip("*").strip()
    while (
        text
        and text[-1] in ".,;:!。"
        and not re.search(r"(?:\.\.\.|\\[;,:!]|(?:\d|[)\]}]|(?<![a-zA-Z])[a-zA-Z])\s?!)$", text)
    ):
        text = text[:-1].rstrip()
    return text


def _compound(text: str) -> Reading | None:
    """A sum of quantities of one dimension ("1 hour 30 minutes", "5 ft 3 in", "3h20"), in the unit of the
    first; None for anything else."""
    if len(text) > 80:
        return None
    unsaid = _LAST_UNSAID.search(text)
    text = f"{text} {'min' if unsaid['hours'] else 's'}" if unsaid else text
    if not _COMPOUND.fullmatch(text):
        return None
    words = [(m[1], m[2]) for m in _QUANTITY.finditer(text)]
    if words[0][1] == "m" and words[1][1] in ("s", "sec", "secs"):  # "1m30s": metres and seconds have no sum
        words[0] = (words[0][0], "min")
    first = parse_unit(words[0][1])
    parts = [(number, _part_of(word, first)) for number, word in words]
    units = [unit for _, unit in parts if unit is not None and not unit.noun]
    if (
        len(units) < len(parts)
        or len({unit.dims for unit in units}) > 1
        or sorted(units, key=lambda u: -u.factor) != units
    ):
        return None
    total = sum(
        (Fraction(number) * unit.factor for (number, _), unit in zip(parts, units, strict=True)), Fraction(0)
    )
    return Reading(("num", total / units[0].factor, 0), units[0], text)


def _part_of(word: str, first: Unit | None) -> Unit | None:
    """The unit of a later part: after hours "m" means minutes, after euros a cent is one of theirs."""
    if word == "m" and first == known("hour"):
        return known("minute")
    unit = parse_unit(word)
    if first is not None and not first.noun and unit == known("cent") and first.factor == 1:
        return Unit(Fraction(1, 100), first.dims)
    return unit


def _in_words(plain: str) -> Reading | None:
    """The reading of a number or quantity that is not written as plain mathematics: in words, in degrees and
    minutes, in a base, as a residue."""
    words = number_words(plain)
    if words is not None:
        return Reading(("num", Fraction(words), 0), None, plain)
    quantity = worded_quantity(plain) or degrees(plain)
    if quantity is not None:
        return Reading(("num", quantity[0], 0), quantity[1], plain)
    node = in_base(plain) or congruence(plain)
    return None if node is None else Reading(node, None, plain)


def _bare_unit(match: re.Match[str]) -> str:
    """The words of `\\text{...}` behind a number, where they are a unit or "percent"."""
    unit = parse_unit(match[1])
    measured = unit is not None and not unit.noun
    return f" {match[1].strip()} " if measured or match[1].lower().startswith("per") else match[0]


def _plain(text: str) -> Reading:
    """The reading of a text that is only mathematics. Raises NotMath."""
    amount, unit = currency(text)
    whole = re.fullmatch(
        r"\s*(?:\$\s*)?\\(?:text\w*|mathrm|mbox)\s*\{([^{}]*)\}\s*(?:\.\s*)?(?:\$\s*)?", amount
    )
    amount = whole[1] if whole else amount
    plain = " ".join(_UNIT_TEXT.sub(_bare_unit, plain_latex(_trim(amount))).split())
    plain = _FEET.sub(r"\1 ft \2 in", plain)
    plain = _SHARE_OF.sub("", _trim(re.sub(r"(?i)\bper\s?cent(?:age)?\b", "%", plain)))
    if len(plain) > MAX_CHARS:
        raise NotMath("too long")
    plain = _CJK_UNIT.sub(lambda m: " " + _CJK.get(m[1], "item"), _MINUS.sub("-", plain))
    written, plain = plain, local_number(plain, unit is not None)
    together = _compound(plain)
    if together is not None:
        return together
    known_words = _WORDED.get(
        re.sub(r"^the | there (?:is|are) ", "", " ".join(re.sub(r"\\text|[{}]", " ", plain).lower().split()))
    )
    if known_words is not None:
        return Reading(known_words, None, plain)
    worded = _in_words(plain)
    if worded is not None:
        return worded
    builder = _BUILDER.fullmatch(plain)
    if builder and re.search(r"<|>|=|\\[lgn]e\b", builder[2]):
        return Reading(parse(builder[2]), None, plain)
    head, tail_unit = split_unit(plain)
    scale = re.fullmatch(rf"(.*\d)\s*({'|'.join(SCALE)})s?", head, re.IGNORECASE)
    if tail_unit is not None and tail_unit.noun:
        first, _, others = tail_unit.noun.partition(" ")
        if first in SCALE:
            node = parse(head)
            return Reading(
                ("mul", node, ("num", Fraction(SCALE[first]), 0)),
                unit or (Unit(Fraction(1), (), others) if others else None),
                plain,
            )
    body = head if scale is None else scale[1]
    named = _NAMED.match(body)
    if named and (hedges(named[0]) or doubted(named[0].rstrip("= "))):
        raise NotMath("a denied value")
    body = body[named.end() :] if named else body
    if tail_unit is not None:
        if unit is not None and not tail_unit.noun and tail_unit.dims != unit.dims:
            raise NotMath("two units")  # "$5 per day"
        try:
            return Reading(parse(body), unit or tail_unit, plain, _listed(body))
        except NotMath:
            body = plain
    point = decimal_comma(body)
    return Reading(
        parse(body),
        unit,
        plain,
        _listed(body if written == plain else written),
        parse(point) if point else None,
    )


def _listed(body: str) -> Node | None:
    if not re.search(r"\d,\d{2}", body):
        return None
    try:
        return parse(body, grouping=False)
    except NotMath:
        return None


def _sound(whole: str, piece: str) -> bool:
    """Whether what is left out of an answer, before and behind a piece of it, takes nothing of it away: no
    doubt, no range, no second value, no correction."""
    piece = piece.strip()
    ends = whole.rstrip(" .").endswith(piece.rstrip(" ."))
    before, found, after = whole.rpartition(piece) if ends else whole.partition(piece)
    if not found:  # the piece is no part as it stands: a total, or flattened text
        return not (doubted(whole) or doubted(_FIRST_VALUE.split(whole, maxsplit=1)[0]))
    if doubted(before) or _JOINS.search(_flat(before)) or _EXCEPT.search(before):
        return False
    after = _flat(after)
    inner = _INSIDE.fullmatch(after)
    if inner and not _close(piece, inner[1]):
        return False
    cause = _CAUSE.match(after)
    return _TAKES_AWAY.search(after[: cause.start()] if cause else after) is None


def _with_stray_unit(reading: Reading, whole: str, piece: str) -> Reading:
    """The reading of a piece with what is left over of the whole, and with the unit that stands there ("in
    grams: $5$", "$5$ g")."""
    reading = replace(reading, left_over=_left_over(whole, piece))
    if reading.unit is not None or not reading.left_over or any(char in reading.text for char in "<>=,"):
        return reading
    before, _, after = whole.rpartition(piece.strip())
    behind = after.lstrip("$*")
    end = unit_behind(behind)
    return replace(reading, unit=parse_unit(behind[:end].strip(" )]")) if end else unit_before(before))


def _left_over(whole: str, piece: str) -> str:
    """The words before and behind the part of an answer that was read."""
    before, found, after = whole.rpartition(piece.strip())
    if not found:  # flattened text, or a total
        return ""
    return " ... ".join(filter(None, (part.strip(" $.,;:*\n") for part in (before, after))))


def _flat(text: str) -> str:
    return _TEXTS.sub(r" \1 ", text).replace("$", " ")


def _close(piece: str, other: str) -> bool:
    """Whether a number in brackets is that of the piece, to two digits: "2/3 (0.67)", "five (5)"."""
    values = []
    for text in (piece, other):
        words = number_words(text)
        try:
            value = numeric(parse(plain_latex(_trim(text))), {}).real if words is None else words
            values.append(float(value))
        except (NotMath, NoValue, RecursionError, AttributeError):
            return False
    return abs(values[0] - values[1]) <= 0.01 * abs(values[0])


def _pieces(text: str) -> Iterator[str]:
    """Parts of an answer that may be its mathematics, the most likely first."""
    yield text
    yield _COMMENT.sub("", COPULA.sub("", text))
    inner = [next(filter(None, m.groups())) for m in _DELIMITED.finditer(text)]
    if len(inner) == 1:
        yield inner[0]
    short = _APPROX.sub("", _CONNECT.sub("", _trim(text)))
    yield short
    clause = _SO.split(short)[-1] if short[:1].isalpha() else short
    says = _SAYS.match(clause) if clause != short else None
    if says:
        yield clause[says.end() :]
    elif clause != short:
        yield _REASON.sub("", clause)
    lead = FOREIGN_LEAD.match(text)
    if lead:
        yield COPULA.sub("", text[lead.end() :])
    reason = _REASON.sub("", short)
    yield reason
    flat = _TEXTS.sub(r" \1 ", short)
    for sentence in dict.fromkeys((reason, short, flat)):
        says = _SAYS.match(sentence)
        if says:
            said = sentence[says.end() :]
            yield said
            yield _APPROX.sub("", said)
    found = numbers_in(text) if len(text) < 300 else []
    total = total_in(text, found)
    if total is not None:
        yield f"{found[total][0]:.15g}"


def _concluded(text: str) -> str:
    """The conclusion of a text that draws one: "12 altogether" of "4 boxes of 3, so 12 altogether"."""
    drawn = list(_SO.finditer(text))
    said = text[drawn[-1].end() :] if drawn and "\\" not in text else ""
    return said if any(char.isdigit() for char in said) else text


def _bare(text: str) -> str:
    """The text without bold marks and without dollar signs of amounts; statements on separate lines become a
    list."""
    text = _BOLD_END.sub("", _BOLD.sub(r"\1", text))
    if "\\" not in text and text.count("$") == len(re.findall(r"\$(?=\d)", text)) > text.lstrip().startswith(
        ("$", "US$")
    ):
        text = text.replace("$", "")
    lines = [line.strip() for line in text.strip().split("\n") if line.strip()]
    return (
        ", ".join(lines)
        if 1 < len(lines) <= 8 and all(_STATEMENT.fullmatch(line) for line in lines)
        else text
    )


@lru_cache(maxsize=256)  # a verdict asks several times
def read(text: str) -> Reading | None:
    """The mathematics of an answer; None if it has none, or hedges."""
    if len(text) > MAX_CHARS or _ENDLESS.search(text) or _CODE.search(text) or is_mark(text):
        return None
    whole = text
    text = _concluded(without_entities(text))
    hedged = hedges(settled(text))
    if bounded(re.sub(r"\\text\w*\s*\{([^{}]*)\}", r"\1", _REASON.sub("", _trim(text)))) or bounded(
        _trim(text)
    ):
        return None
    text = _bare(settled(text))
    for piece in dict.fromkeys(_pieces(text)):
        if not piece.strip() or not _sound(text, piece):
            continue
        try:
            return _with_stray_unit(_plain(piece), whole, piece)
        except NotMath:
            if hedged:
                return None
        except RecursionError:
            return None
    return None
