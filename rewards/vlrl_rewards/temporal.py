"""Rewards for moments of a video: temporal IoU of one span or several, and key times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vlrl.registry import register
from vlrl_rewards.denials import denied
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged
from vlrl_rewards.matching import hungarian

Span = tuple[float, float]
_CLOCK = r"(?:[0-9]{1,2}:)?[0-9]{1,3}:[0-9]{2}(?:\.[0-9]{1,20})?"
_TIME = rf"(?:{_CLOCK}|[0-9]{{1,7}}(?:\.[0-9]{{1,20}})?|\.[0-9]{{1,20}})"
_UNIT = r"\s?(?:seconds?|secs?|s\b)?"
_SPAN = re.compile(
    rf"(?<![\w.:-])(?P<a>{_TIME}){_UNIT}\s{{0,4}}(?P<link>-|–|—|~|,|:(?=\s)|to|and|until|through)\s{{0,4}}(?P<b>{_TIME})(?!\.?[\d:%]){_UNIT}(?!\w)",
    re.IGNORECASE,
)
_MINUTES = re.compile(
    r"(?<![\w.:-])([0-9]{1,4})\s?(?:minutes?|mins?|m)\s?(?:and\s)?([0-9]{1,2}(?:\.[0-9]{1,20})?)\s?(?:seconds?|secs?|s)\b", re.IGNORECASE
)
_START = re.compile(r"\b(?:start|begin)(?:ning|ing|s)?(?:[_ ]?(?:time|seconds?|sec|s))?[\"']?\s?[:=]\s?|[\"'<>{}]", re.IGNORECASE)
_END = re.compile(r"[,;]?[\s\"']{0,4}\bend(?:ing|s)?(?:[_ ]?(?:time|seconds?|sec|s))?[\"']?\s?[:=]\s?", re.IGNORECASE)
_MORE = re.compile(rf"\s{{0,4}},\s{{0,4}}{_TIME}")
_LESS = re.compile(rf"{_TIME}\s{{0,4}},\s{{0,4}}$")
_FINAL = re.compile(r"\n|[.;!?]\s")


def seconds(text: str) -> float:
    """Seconds of "12.5", "1:02.5" or "1:00:00"."""
    total = 0.0
    for part in text.split(":"):
        total = total * 60 + float(part)
    return total


def plain_times(text: str) -> str:
    """The text with "1 min 2 s" as "1:02", and without the names and quotes of {"start": "1:02", "end": "1:15"}."""
    clocked = _MINUTES.sub(lambda m: f"{m[1]}:{m[2].zfill(2) if '.' not in m[2] else m[2].zfill(5)}", text[:20_000])
    return _START.sub(" ", _END.sub(" to ", clocked))


def read_spans(text: str) -> list[tuple[Span, int]]:
    """(start, end) in seconds and the place in the plain text of every "a - b", "from a to b", "[a, b]", "0:05-0:10", {"start": a, "end": b}.

    Two of three or more times between commas are no span; nor is a span that the text denies.
    """
    text = plain_times(text)
    found = []
    for match in _SPAN.finditer(text):
        listed = match["link"] == "," and (_MORE.match(text, match.end()) or _LESS.search(text[max(0, match.start() - 24) : match.start()]))
        if not listed and not denied(text, match.start(), match.end()):
            found.append(((seconds(match["a"]), seconds(match["b"])), match.start()))
    return found


def temporal_iou(a: Span, b: Span) -> float:
    """|a & b| / |a | b| of two spans, in [0, 1]; 0 for a span that ends before it starts. Two equal instants give 1."""
    if a[1] < a[0] or b[1] < b[0]:
        return 0.0
    if a == b:
        return 1.0
    overlap = max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
    return overlap / (a[1] - a[0] + b[1] - b[0] - overlap) if overlap > 0 else 0.0


def gold_spans(gold: Any) -> list[Span]:
    """Gold spans in seconds from [start, end], a list of them, {"start": ..., "end": ...}, or text. Raises ValueError if one is broken."""
    if isinstance(gold, Mapping):
        gold = [gold.get("start"), gold.get("end")]
    if isinstance(gold, str):
        spans = [span for span, _ in read_spans(gold)]
    elif isinstance(gold, (list, tuple)) and len(gold) == 2 and all(isinstance(v, (int, float)) for v in gold):
        spans = [(float(gold[0]), float(gold[1]))]
    else:
        spans = [span for part in (gold if isinstance(gold, (list, tuple)) else ()) for span in gold_spans(part)]
    if not spans or not all(0 <= a < b for a, b in spans):
        raise ValueError(f"answer: {gold!r} is no span of time; give [start, end] in seconds with 0 <= start < end")
    return spans


@judged("temporal", "temporal_iou")
@register("temporal_iou")
@dataclass(frozen=True, kw_only=True)
class TemporalIou(Graded):
    """r = |P & G| / |P | G| of spans of seconds; 1[IoU >= threshold] where a threshold is set; several: sum of matched IoU / max(n, m).

        timestamp: x (1 - |start - start*| / duration) (1 - |end - end*| / duration)   (if `timestamps`; duration from row.meta)

    Paper: Time-R1, arXiv:2503.13377 (temporal IoU and the factor for the timestamps);
    VideoSSR, arXiv:2511.06281 (anomaly grounding).
    Edge: no span, an end before its start, or several spans for one gold span: 0. In free text the last statement that names a span counts. Range
    [0, 1].
    """

    threshold: float | None = None
    timestamps: bool = False
    correct_at: float = 0.5

    def target(self, gold: Any, scene: Scene) -> list[Span]:
        if self.timestamps and not float(scene.meta.get("duration", 0)) > 0:
            raise ValueError(f"timestamps: needs row.meta['duration'] in seconds above 0, got {scene.meta.get('duration')!r}")
        return gold_spans(gold)

    def grade(self, target: list[Span], answer: Answer, scene: Scene) -> Grade:
        spans = committed_spans(answer)
        if not spans or (len(target) == 1 and len(spans) > 1):
            return self.refuse("no span in the answer" if not spans else "several spans in the answer")
        iou_NM = np.array([[temporal_iou(s, g) for g in target] for s in spans])
        pairs = hungarian(iou_NM)
        mean = sum(float(iou_NM[i, j]) for i, j in pairs) / max(len(spans), len(target))
        correct = mean >= self.correct_at
        if self.threshold is not None:
            return Grade(float(mean >= self.threshold), correct, f"IoU {mean:.3f}", str(spans))
        if self.timestamps and len(target) == 1:
            length = float(scene.meta["duration"])
            for said, meant in zip(spans[0], target[0], strict=True):
                mean *= max(0.0, 1 - abs(said - meant) / length)
        return Grade(mean, correct, f"IoU {mean:.3f}", str(spans))


def committed_spans(answer: Answer) -> list[Span]:
    """The different spans of an answer; in free text those of its last statement that names any."""
    found = read_spans(answer.text)
    if found and not answer.tagged:
        ends = [m.start() for m in _FINAL.finditer(plain_times(answer.text))]
        last = sum(end < found[-1][1] for end in ends)
        found = [pair for pair in found if sum(end < pair[1] for end in ends) == last]
    return list(dict.fromkeys(span for span, _ in found))[:1000]


@judged("timestamp")
@register("timestamp")
@dataclass(frozen=True, kw_only=True)
class Timestamp(Graded):
    """r = 1[|t - t*| <= tolerance] ("window"), or exp(-|t - t*| / tolerance) ("decay"); a gold span asks for a time within it.

    Paper: vlrl original (pointing at a moment is the temporal form of a click in a box).
    Edge: no time, several times: 0. Times: "12.5", "12.5 s", "1:02". Range [0, 1]. Units: seconds.
    """

    mode: Literal["window", "decay"] = "window"
    tolerance: float = 1.0

    def __post_init__(self) -> None:
        if self.tolerance <= 0:
            raise ValueError(f"tolerance: {self.tolerance} must be above 0 seconds")

    def target(self, gold: Any, scene: Scene) -> Span:
        if isinstance(gold, (int, float)) and not isinstance(gold, bool):
            return float(gold), float(gold)
        times = read_times(gold) if isinstance(gold, str) else []
        if len(times) == 1 and not read_spans(str(gold)):
            return times[0], times[0]
        spans = gold_spans(gold)
        if len(spans) != 1:
            raise ValueError(f"answer: {gold!r} holds {len(spans)} spans of time; give one, or one time in seconds")
        return spans[0]

    def grade(self, target: Span, answer: Answer, scene: Scene) -> Grade:
        times = set(read_times(answer.text))
        if len(times) != 1:
            return self.refuse("the answer does not commit to one time")
        time = times.pop()
        away = max(target[0] - time, time - target[1], 0.0) / self.tolerance
        hit = away <= (1 if target[0] == target[1] else 0)
        return Grade(float(hit) if self.mode == "window" else float(np.exp(-min(away, 700.0))), hit, f"{time:g} s", f"{time:g}")


_ONE_TIME = re.compile(rf"(?<![\w.:-])({_TIME})(?!\.?[\d:%])(?:\s?(?:seconds?|secs?|s)\b)?(?!\w)", re.IGNORECASE)


def read_times(text: str) -> list[float]:
    """Every time of a text that it does not deny, in seconds."""
    text = plain_times(text)
    return [seconds(m[1]) for m in _ONE_TIME.finditer(text) if not denied(text, m.start(), m.end())]
