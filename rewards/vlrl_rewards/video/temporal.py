"""Temporal grounding rewards: temporal IoU of one or several spans, and time stamps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.boxes.matching import hungarian
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.video.spans import Span, gold_spans, plain_times, read_spans, read_times, temporal_iou

_FINAL = re.compile(r"\n|[.;!?]\s")


@verifier("temporal", "temporal_iou")
@register("temporal_iou")
@dataclass(frozen=True, kw_only=True)
class TemporalIou(Graded):
    """Temporal grounding reward: temporal IoU of the predicted span P and the gold span G.

        r = |P & G| / |P | G|;  for several gold spans: sum of matched IoU / max(n, m), n predicted and m gold
        spans
        with `timestamps`, for one gold span:  r = IoU (1 - |start - start*| / duration) (1 - |end - end*| /
        duration), duration from row.meta with `binary`:  r = 1[IoU >= correct_at]

    Paper: Time-R1, arXiv:2503.13377 (temporal IoU and the factor for the time stamps); VideoSSR,
    arXiv:2511.06281 (anomaly grounding). Edge: no span, an end before its start, or several spans for one
    gold span: 0. Range [0, 1]. Units: seconds.
    """

    binary: bool = False
    timestamps: bool = False
    correct_at: float = 0.5

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        if self.timestamps and not float(row.meta.get("duration", 0)) > 0:
            raise GoldError(
                f"timestamps: needs row.meta['duration'] in seconds above 0, got {row.meta.get('duration')!r}"
            )
        target = gold_spans(gold)
        answer = self.committed(response)
        spans = committed_spans(answer)
        if not spans or (len(target) == 1 and len(spans) > 1):
            raise Unread("no span in the answer" if not spans else "several spans in the answer", answer)
        iou_NM = np.array([[temporal_iou(s, g) for g in target] for s in spans])
        pairs = hungarian(iou_NM)
        score = sum(float(iou_NM[i, j]) for i, j in pairs) / max(len(spans), len(target))
        correct = score >= self.correct_at
        if self.binary:
            return self.scored(answer, float(correct), correct, f"IoU {score:.3f}", str(spans))
        if self.timestamps and len(target) == 1:
            duration = float(row.meta["duration"])
            for predicted, gold in zip(spans[0], target[0], strict=True):
                score *= max(0.0, 1 - abs(predicted - gold) / duration)
        return self.scored(answer, score, correct, f"IoU {score:.3f}", str(spans))


def committed_spans(answer: Answer) -> list[Span]:
    """The distinct spans of an answer, at most 1,000; in free text those of the last statement that names a
    span."""
    found = read_spans(answer.text)
    if found and not answer.tagged:
        ends = [m.start() for m in _FINAL.finditer(plain_times(answer.text))]
        last = sum(end < found[-1][1] for end in ends)
        found = [pair for pair in found if sum(end < pair[1] for end in ends) == last]
    return list(dict.fromkeys(span for span, _ in found))[:1000]


@verifier("timestamp")
@register("timestamp")
@dataclass(frozen=True, kw_only=True)
class Timestamp(Graded):
    """Time stamp reward: distance of the predicted time t to the gold time t*.

        window: r = 1[|t - t*| <= tolerance];  decay: r = exp(-|t - t*| / tolerance)

    For a gold span, |t - t*| is the distance to the span, and "window" asks for a time within it.
    Paper: vlrl original (the temporal form of a click in a box). Times: "12.5", "12.5 s", "1:02", "1 min 2
    s".
    Edge: no time, or several times: 0. Range [0, 1]. Units: seconds. `correct_at`: e^-1 rounded down, the
    score of "decay" at `tolerance`.
    """

    correct_at: float = 0.3678
    mode: Literal["window", "decay"] = "window"
    tolerance: float = 1.0

    def __post_init__(self) -> None:
        if self.tolerance <= 0:
            raise ValueError(f"tolerance: {self.tolerance} must be above 0 seconds")

    def target(self, gold: Any, row: Row) -> Span:
        if isinstance(gold, (int, float)) and not isinstance(gold, bool):
            if not 0 <= gold < 1e9:
                raise GoldError(f"answer: {gold!r:.50} is not a time in seconds; give a number from 0 to 1e9")
            return float(gold), float(gold)
        times = read_times(gold) if isinstance(gold, str) else []
        if len(times) == 1 and not read_spans(str(gold)):
            return times[0], times[0]
        spans = gold_spans(gold)
        if len(spans) != 1:
            raise GoldError(
                f"answer: {gold!r} has {len(spans)} time spans; give one span or one time in seconds"
            )
        return spans[0]

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = self.target(gold, row)
        answer = self.committed(response)
        times = set(read_times(answer.text))
        if len(times) != 1:
            raise Unread("the answer does not commit to one time", answer)
        time = times.pop()
        away = max(target[0] - time, time - target[1], 0.0) / self.tolerance
        hit = away <= (1 if target[0] == target[1] else 0)
        return self.scored(
            answer,
            float(hit) if self.mode == "window" else float(np.exp(-min(away, 700.0))),
            hit,
            f"{time:g} s",
            f"{time:g}",
        )
