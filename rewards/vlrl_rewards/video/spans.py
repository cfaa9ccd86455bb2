"""Parser of times and time spans in a text, and the temporal IoU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vlrl.plugins.scoring import GoldError
from vlrl_rewards.literals import MAX_CHARS
from vlrl_rewards.text.denials import denied

Span = tuple[float, float]
_CLOCK = r"(?:[0-9]{1,2}:)?[0-9]{1,3}:[0-9]{2}(?:\.[0-9]{1,20})?"
_TIME = rf"(?:{_CLOCK}|[0-9]{{1,7}}(?:\.[0-9]{{1,20}})?|\.[0-9]{{1,20}})"
_UNIT = r"\s?(?:seconds?|secs?|s\b)?"
_SPAN = re.compile(
    (
        rf"(?<![\w.:-])(?P<a>{_TIME}){_UNIT}\s{{0,4}}(?P<link>-|–|—|~|,|:(?=\s)|to|and|until|through)\s{{0,"
        rf"4}}(?P<b>{_TIME})(?!\.?[\d:%]){_UNIT}(?!\w)"
    ),
    re.IGNORECASE,
)
_NUMBER = r"[0-9]{1,7}(?:\.[0-9]{1,20})?|\.[0-9]{1,20}"
_HOURS, _MINUTES, _SECONDS, _MILLISECONDS = (
    r"hours?|hrs?|h",
    r"minutes?|mins?|m",
    r"seconds?|secs?|s",
    r"milliseconds?|millis|msecs?|ms",
)
_FACTORS = ((_HOURS, 3600.0), (_MINUTES, 60.0), (_SECONDS, 1.0), (_MILLISECONDS, 0.001))
_AND = r"\s?,?\s?(?:and\s)?"
# "1 h 2 min 3 s", "2 min 3 s", "1 hour", "1h30", "1min30", "5 minutes", "500 ms"; a bare "5 m" is left alone,
# since it may be metres.
_DURATION = re.compile(
    rf"(?<![\w.:])(?:(?P<hh>[0-9]{{1,3}})(?:{_HOURS})(?P<mm>[0-5][0-9])|(?P<only_m>[0-9]{{1,"
    rf"4}})(?:minutes?|mins?)(?P<ss>[0-5][0-9])"
    r"|"
    rf"(?P<h>{_NUMBER})\s?(?:{_HOURS})(?:{_AND}(?P<hm>{_NUMBER})\s?(?:{_MINUTES}))?(?:{_AND}(?P<hs>{_NUMBER})\s?(?:{_SECONDS}))?"
    rf"|(?P<m>{_NUMBER})\s?(?:{_MINUTES}){_AND}(?P<ms>{_NUMBER})\s?(?:{_SECONDS})"
    rf"|(?P<only>{_NUMBER})(?:\s?(?:minutes?|mins?)|m)|(?P<milli>{_NUMBER})\s?(?:{_MILLISECONDS}))(?!\w)",
    re.IGNORECASE,
)
# Numbers and ranges that are not times: "10 - 20 frames", "frame 10", "10-20%", and "5 m", which may be
# metres.
_OTHER_UNIT = re.compile(
    rf"(?<![\w.:])(?:(?:{_NUMBER})\s{{0,4}}(?:-|–|—|~|to|and)\s{{0,4}})?(?:{_NUMBER})\s?(?:%|(?:percent|"
    r"frames?|fps|pixels?|px|met(?:er|re)s?|m)\b)"
    rf"|\bframes?\s{{1,3}}(?:{_NUMBER})(?:\s{{0,4}}(?:-|–|—|~|to|and)\s{{0,4}}(?:{_NUMBER}))?(?!\w)",
    re.IGNORECASE,
)
# "1 to 2 minutes": the unit after the second number of a range is the unit of both.
_SHARED_UNIT = re.compile(
    rf"(?<![\w.:-])(?P<a>{_NUMBER})(?P<link>\s{{0,4}}(?:-|–|—|~|to|and|until|through)\s{{0,"
    rf"4}})(?P<b>{_NUMBER})"
    rf"(?P<unit>\s?(?:hours?|hrs?|h|minutes?|mins?|{_MILLISECONDS})|"
    rf"m)(?!\w)(?!{_AND}(?:{_NUMBER})\s?(?:{_MINUTES}|{_SECONDS})(?!\w))",
    re.IGNORECASE,
)
_START = re.compile(
    (
        r"\b(?:start|begin)(?:ning|ing|s)?(?:[_ "
        r"]?(?:time|seconds?|sec|s))?[\"']?\s?[:=]\s?|[\"<>{}]|(?<![a-z])'|'(?![a-z])"
    ),
    re.IGNORECASE,
)
_END = re.compile(
    r"[,;]?[\s\"']{0,4}\bend(?:ing|s)?(?:[_ ]?(?:time|seconds?|sec|s))?[\"']?\s?[:=]\s?", re.IGNORECASE
)
_MORE = re.compile(rf"\s{{0,4}},\s{{0,4}}{_TIME}")
_LESS = re.compile(rf"{_TIME}\s{{0,4}},\s{{0,4}}$")


def seconds(text: str) -> float:
    """Seconds of "12.5", "1:02.5" or "1:00:00"."""
    total = 0.0
    for part in text.split(":"):
        total = total * 60 + float(part)
    return total


def _written(value: float) -> str:
    """Seconds as decimal digits without an exponent."""
    return f"{value:.15f}".rstrip("0").rstrip(".")


def _in_seconds(match: re.Match[str]) -> str:
    """A duration with units in seconds."""
    part = {name: float(value) for name, value in match.groupdict().items() if value}

    def total(*names: str) -> float:
        return sum(part.get(name, 0.0) for name in names)

    return _written(
        3600 * total("h", "hh")
        + 60 * total("hm", "m", "only", "mm", "only_m")
        + total("hs", "ms", "ss")
        + 0.001 * total("milli")
    )


def _both_in_seconds(match: re.Match[str]) -> str:
    """A range whose unit stands after the second number, in seconds."""
    factor = next(
        factor for names, factor in _FACTORS if re.fullmatch(names, match["unit"].strip(), re.IGNORECASE)
    )
    return f"{_written(factor * float(match['a']))}{match['link']}{_written(factor * float(match['b']))}"


def plain_times(text: str) -> str:
    """The first 20,000 characters with all times in seconds or as clock times, without the names and quotes
    of {"start": "1:02", "end": "1:15"}.

    Hours, minutes and milliseconds become seconds: "1 min 2 s" is "62", "1 to 2 minutes" is "60 to 120".
    Numbers with another unit ("10 frames", "20%", "5 m") are removed.
    """
    plain = _DURATION.sub(_in_seconds, _SHARED_UNIT.sub(_both_in_seconds, text[:MAX_CHARS]))
    plain = _OTHER_UNIT.sub(" ", plain)
    return _START.sub(" ", _END.sub(" to ", plain))


def read_spans(text: str) -> list[tuple[Span, int]]:
    """Every time span (start, end) of a text in seconds, with its offset in the result of `plain_times`.

    Formats: "a - b", "from a to b", "[a, b]", "0:05-0:10", {"start": a, "end": b}. Two neighbours in a list
    of three or more times, and a span that the text denies, are left out.
    """
    text = plain_times(text)
    found = []
    for match in _SPAN.finditer(text):
        listed = match["link"] == "," and (
            _MORE.match(text, match.end()) or _LESS.search(text[max(0, match.start() - 24) : match.start()])
        )
        if not listed and not denied(text, match.start(), match.end()):
            found.append(((seconds(match["a"]), seconds(match["b"])), match.start()))
    return found


def temporal_iou(a: Span, b: Span) -> float:
    """Temporal IoU |a & b| / |a | b| of two spans, in [0, 1]; 0 if one ends before it starts; 1 for two equal
    instants."""
    if a[1] < a[0] or b[1] < b[0]:
        return 0.0
    if a == b:
        return 1.0
    overlap = max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
    return overlap / (a[1] - a[0] + b[1] - b[0] - overlap) if overlap > 0 else 0.0


def gold_spans(gold: Any) -> list[Span]:
    """Gold spans in seconds from [start, end], a list of them, {"start": ..., "end": ...}, or text. Raises
    ValueError if one is broken."""
    if isinstance(gold, Mapping):
        gold = [gold.get("start"), gold.get("end")]
    if isinstance(gold, str):
        spans = [span for span, _ in read_spans(gold)]
    elif (
        isinstance(gold, (list, tuple)) and len(gold) == 2 and all(isinstance(v, (int, float)) for v in gold)
    ):
        spans = [(float(gold[0]), float(gold[1]))]
    else:
        spans = [
            span for part in (gold if isinstance(gold, (list, tuple)) else ()) for span in gold_spans(part)
        ]
    if not spans or not all(0 <= a < b for a, b in spans):
        raise GoldError(
            f"answer: {gold!r} is not a time span; give [start, end] in seconds with 0 <= start < end"
        )
    return spans


_ONE_TIME = re.compile(
    (
        r"(?<![\w.:])(?<!(?<![0-9])(?<![0-9]s)(?<![0-9] "
        rf"s)-)({_TIME})(?!\.?[\d:%])(?:\s?(?:seconds?|secs?|s)\b)?(?!\w)"
    ),
    re.IGNORECASE,
)


def read_times(text: str) -> list[float]:
    """Every time of a text in seconds, without the times that the text denies."""
    text = plain_times(text)
    return [seconds(m[1]) for m in _ONE_TIME.finditer(text) if not denied(text, m.start(), m.end())]
