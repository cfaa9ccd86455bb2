"""Scoring responses that were drawn before: marks, figures, intervals, and what must be known to trust them. Nothing is generated here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vlrl.eval.rows import Rows
from vlrl.eval.scorer import Aggregate, Fields, Mark, Scorer
from vlrl.eval.statistics import Interval, bootstrap, mean_interval
from vlrl.eval.statistics.intervals import macro_statistic
from vlrl.registry import ConfigError

REFUSAL = re.compile(r"\b(?:i(?:'m| am) sorry|i (?:cannot|can't|am unable|won't)|as an ai\b|unable to (?:help|assist|answer))", re.IGNORECASE)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Sampled:
    """One response as it is scored. `finish` is "stop", "length" or "error"."""

    text: str
    finish: str = "stop"
    error: str = ""
    tokens: int = 0
    confidence: float | None = None
    spaces: tuple[Any, ...] = ()  # per picture: original width and height, seen width and height, units


@dataclass(frozen=True)
class Graded:
    """The marks of one suite by one profile: `marks[i][s]` is of row i, sample s."""

    rows: Rows
    profile: str
    samples: list[list[Sampled]]
    marks: list[list[Mark]]
    figures: dict[str, float]
    interval: Interval
    audit: dict[str, Any] = field(default_factory=dict)

    @property
    def scores(self) -> list[float]:
        """Per row, the mean over its samples."""
        return [sum(mark.score for mark in marks) / len(marks) for marks in self.marks]


def committed(text: str) -> str:
    """What a model that thinks answers: the last <answer> after the thinking, else all that follows it; "" if the thinking never ends."""
    _, closed, tail = text.rpartition("</think>")
    if not closed and "<think>" in text:
        return ""
    answers = _ANSWER.findall(tail if closed else text)
    return (answers[-1] if answers else tail).strip()


def visible(text: str, protocol: str) -> str:
    """The part of a response that a protocol hands to the scorer."""
    return committed(text) if protocol == "thinking" else text


def grade(rows: Rows, responses: Mapping[str, Sequence[Sampled]], profile: str = "official", protocol: str = "direct", level: float = 0.95) -> Graded:
    """Score every row; a row without a response counts as wrong, as often as the others have samples.

    Raises ConfigError if no response belongs to any row of the suite.
    """
    suite = rows.suite
    chosen = suite.profile(profile)
    ids = rows.ids
    unknown = [name for name in responses if name not in set(ids)]
    if responses and len(unknown) == len(responses):
        raise ConfigError(
            f"suite {suite.name!r}: none of the {len(responses)} responses (first id {unknown[0]!r}) has the id of a row (first {ids[:1]})"
        )
    wanted = max((len(samples) for samples in responses.values()), default=1)
    samples = [_padded(responses.get(name, ()), wanted) for name in ids]
    marks = [  # a failed sample is wrong whatever the scorer would make of silence
        [
            Mark(0.0, None, "no response") if sample.error else marked(chosen.scorer, seen(row, sample), visible(sample.text, protocol))
            for sample in drawn
        ]
        for row, drawn in zip(rows.fields, samples, strict=True)
    ]
    figures = mean_figures(chosen.aggregate, rows.fields, marks)
    audit = {**_audit(samples, marks), "unknown": len(unknown), "expected": len(ids), "scored": len(marks)}
    return Graded(rows, profile, samples, marks, figures, interval(chosen.aggregate, rows, marks, level), audit)


UNSCORED = "not scored: "


def marked(scorer: Scorer, row: Fields, text: str) -> Mark:
    """The scorer's mark; a row that it refuses (a broken gold answer) counts as wrong, and its mark says why."""
    try:
        return scorer(row, text)
    except ValueError as error:
        return Mark(0.0, None, f"{UNSCORED}{error}"[:300])


def seen(row: Fields, sample: Sampled) -> Fields:
    """The row with what its pictures' coordinates meant to the model, where the run recorded it."""
    return {**row, "_spaces": sample.spaces} if sample.spaces else row


def _padded(drawn: Sequence[Sampled], wanted: int) -> list[Sampled]:
    return list(drawn) + [Sampled("", "error", "missing")] * (wanted - len(drawn))


def mean_figures(aggregate: Aggregate, rows: Sequence[Fields], marks: Sequence[Sequence[Mark]]) -> dict[str, float]:
    """The figures, averaged over samples (avg@k)."""
    if not marks:
        return {"overall": 0.0}
    each = [aggregate(rows, [row[s] for row in marks]) for s in range(len(marks[0]))]
    return {name: sum(figures[name] for figures in each) / len(each) for name in each[0]}


def interval(aggregate: Aggregate, rows: Rows, marks: Sequence[Sequence[Mark]], level: float = 0.95) -> Interval:
    """Of the overall figure: Wilson or clustered for a mean, a stratified bootstrap for a mean of means, a cluster bootstrap for anything else."""
    clusters = [rows.suite.cluster_of(row, number) for number, row in enumerate(rows.fields)]
    scores = [sum(mark.score for mark in row) / len(row) for row in marks]
    if not scores:
        raise ConfigError(f"suite {rows.suite.name!r} has no rows to score")
    paths = aggregate.paths(rows.fields)
    if paths is not None and not any(paths):
        return mean_interval(scores, clusters, level)
    if paths is not None:
        return bootstrap(macro_statistic(scores, paths), ["/".join(path) for path in paths], clusters, level=level)
    return bootstrap(_resampled(aggregate, rows.fields, marks), [""] * len(scores), clusters, draws=200, level=level)


def _resampled(aggregate: Aggregate, rows: Sequence[Fields], marks: Sequence[Sequence[Mark]]) -> Any:
    """The overall figure as a function of draw counts, by computing it anew for every draw."""

    def statistic(counts: np.ndarray) -> np.ndarray:
        values = []
        for draw in counts:
            places = np.repeat(np.arange(len(rows)), draw.astype(int))
            values.append(mean_figures(aggregate, [rows[i] for i in places], [marks[i] for i in places])["overall"])
        return np.array(values)

    return statistic


def _audit(samples: Sequence[Sequence[Sampled]], marks: Sequence[Sequence[Mark]]) -> dict[str, Any]:
    """Shares of all responses: nothing could be read out, cut off by the cap, refused, failed; and the reasons of failures, counted."""
    flat = [(sample, mark) for drawn, row in zip(samples, marks, strict=True) for sample, mark in zip(drawn, row, strict=True)]
    total = max(1, len(flat))
    reasons: dict[str, int] = {}
    for sample, _ in flat:
        if sample.error:
            reasons[sample.error.partition(":")[0]] = reasons.get(sample.error.partition(":")[0], 0) + 1
    return {
        "responses": len(flat),
        "parse_failures": sum(not mark.parsed for _, mark in flat) / total,
        "truncated": sum(sample.finish == "length" for sample, _ in flat) / total,
        "refused": sum(bool(REFUSAL.search(sample.text)) for sample, _ in flat) / total,
        "failed": sum(bool(sample.error) for sample, _ in flat) / total,
        "failures": reasons,
        "unscored": sum(mark.rule.startswith(UNSCORED) for _, mark in flat),
    }
