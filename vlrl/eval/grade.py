"""Scores the responses of a suite by one profile: scores, figures, the interval of the overall figure, and an
audit. Nothing is generated here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vlrl.eval.records import SuiteData
from vlrl.eval.scorer import CORRECT_AT, Aggregate, Record, Scorer
from vlrl.eval.statistics import Interval, bootstrap, mean_interval
from vlrl.eval.statistics.intervals import macro_statistic
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.scoring import Response, Verdict

REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) sorry|i (?:cannot|can't|am unable|won't)|as an ai\b|unable to (?:help|assist|answer))",
    re.IGNORECASE,
)
UNSCORED = "not scored: "  # how the reason of a verdict begins that the scorer refused
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Sample(Response):
    """One sampled response. `finish` is "stop", "length" or "error"."""

    finish: str = "stop"
    error: str = ""
    tokens: int = 0
    confidence: float | None = None


@dataclass(frozen=True)
class GradedSuite:
    """The scores of one suite by one profile: `scored[i][s]` is of record i, sample s, and of the response
    `responses[i][s]`."""

    data: SuiteData
    profile: str
    responses: list[list[Sample]]
    scored: list[list[Verdict]]
    figures: dict[str, float]
    interval: Interval
    audit: dict[str, Any] = field(default_factory=dict)

    @property
    def scores(self) -> list[float]:
        """Per record, the mean score over its samples."""
        return [mean_score(samples) for samples in self.scored]

    @property
    def correct(self) -> list[bool]:
        """Per record, whether its mean score is at least `CORRECT_AT`."""
        return [score >= CORRECT_AT for score in self.scores]


def mean_score(scored: Sequence[Verdict]) -> float:
    """The mean score of a record's samples."""
    return sum(entry.score for entry in scored) / len(scored)


def answer_after_thinking(text: str) -> str:
    """The last <answer> after </think>, else all text after it; "" where <think> is never closed. Without
    <think>, the whole text is searched."""
    _, closed, tail = text.rpartition("</think>")
    if not closed and "<think>" in text:
        return ""
    answers = _ANSWER.findall(tail if closed else text)
    return (answers[-1] if answers else tail).strip()


def scored_text(text: str, protocol: str) -> str:
    """The part of a response that a protocol passes to the scorer."""
    return answer_after_thinking(text) if protocol == "thinking" else text


def grade(
    data: SuiteData,
    responses: Mapping[str, Sequence[Sample]],
    profile: str = "official",
    protocol: str = "direct",
    level: float = 0.95,
) -> GradedSuite:
    """Scores every record.

    A record without a response counts as wrong, with as many samples as the other records have. Raises
    ConfigError if no response belongs to a record of the suite.
    """
    suite = data.suite
    chosen = suite.profile(profile)
    ids = data.ids
    unknown = [name for name in responses if name not in set(ids)]
    if responses and len(unknown) == len(responses):
        raise ConfigError(
            f"suite {suite.name!r}: none of the {len(responses)} responses (first id {unknown[0]!r}) has "
            f"the id of a row (first {ids[:1]})"
        )
    count = max((len(samples) for samples in responses.values()), default=1)
    padded = [_pad(responses.get(name, ()), count) for name in ids]
    scored = [
        [_score(chosen.scorer, record, response, protocol) for response in samples]
        for record, samples in zip(data.records, padded, strict=True)
    ]
    figures = mean_figures(chosen.aggregate, data.records, scored)
    audit = {**_audit(padded, scored), "unknown": len(unknown), "expected": len(ids), "scored": len(scored)}
    return GradedSuite(
        data, profile, padded, scored, figures, interval(chosen.aggregate, data, scored, level), audit
    )


def _score(scorer: Scorer, record: Record, response: Sample, protocol: str) -> Verdict:
    """The score of one response; a failed sample is wrong whatever the scorer gives for an empty response."""
    if response.error:
        return Verdict(0.0, False, "no response", unread=True)
    said = Response(scored_text(response.text, protocol), response.spaces)
    return apply_scorer(scorer, record, said)


def apply_scorer(scorer: Scorer, record: Record, response: str | Response) -> Verdict:
    """The scorer's verdict; a record that it refuses (a broken gold answer) scores 0, and `reason` says
    why."""
    try:
        return scorer(record, response)
    except ValueError as error:
        return Verdict(0.0, False, f"{UNSCORED}{error}"[:300], unread=True)


def _pad(samples: Sequence[Sample], count: int) -> list[Sample]:
    return list(samples) + [Sample("", finish="error", error="missing")] * (count - len(samples))


def mean_figures(
    aggregate: Aggregate, records: Sequence[Record], scored: Sequence[Sequence[Verdict]]
) -> dict[str, float]:
    """The figures, averaged over samples (avg@k)."""
    if not scored:
        return {"overall": 0.0}
    each = [aggregate(records, [samples[s] for samples in scored]) for s in range(len(scored[0]))]
    return {name: sum(figures[name] for figures in each) / len(each) for name in each[0]}


def interval(
    aggregate: Aggregate, data: SuiteData, scored: Sequence[Sequence[Verdict]], level: float = 0.95
) -> Interval:
    """The interval of the overall figure.

    Wilson or clustered Wilson for a mean, a stratified bootstrap for a mean of means, a cluster bootstrap for
    any other aggregate.
    """
    clusters = [data.suite.cluster_of(record, number) for number, record in enumerate(data.records)]
    scores = [mean_score(samples) for samples in scored]
    if not scores:
        raise ConfigError(f"suite {data.suite.name!r} has no rows to score")
    paths = aggregate.paths(data.records)
    if paths is not None and not any(paths):
        return mean_interval(scores, clusters, level)
    if paths is not None:
        return bootstrap(
            macro_statistic(scores, paths), ["/".join(path) for path in paths], clusters, level=level
        )
    return bootstrap(
        _resampled(aggregate, data.records, scored), [""] * len(scores), clusters, draws=200, level=level
    )


def _resampled(aggregate: Aggregate, records: Sequence[Record], scored: Sequence[Sequence[Verdict]]) -> Any:
    """The overall figure as a function of bootstrap counts, recomputed for every draw."""

    def statistic(counts: np.ndarray) -> np.ndarray:
        values = []
        for draw in counts:
            places = np.repeat(np.arange(len(records)), draw.astype(int))
            values.append(
                mean_figures(aggregate, [records[i] for i in places], [scored[i] for i in places])["overall"]
            )
        return np.array(values)

    return statistic


def _audit(responses: Sequence[Sequence[Sample]], scored: Sequence[Sequence[Verdict]]) -> dict[str, Any]:
    """Shares of all responses without an extracted answer, truncated, refused and failed; failures counted by
    reason."""
    flat = [
        pair
        for samples, scores in zip(responses, scored, strict=True)
        for pair in zip(samples, scores, strict=True)
    ]
    total = max(1, len(flat))
    reasons: dict[str, int] = {}
    for response, _ in flat:
        if response.error:
            reasons[response.error.partition(":")[0]] = reasons.get(response.error.partition(":")[0], 0) + 1
    return {
        "responses": len(flat),
        "parse_failures": sum(score.unread for _, score in flat) / total,
        "truncated": sum(response.finish == "length" for response, _ in flat) / total,
        "refused": sum(bool(REFUSAL.search(response.text)) for response, _ in flat) / total,
        "failed": sum(bool(response.error) for response, _ in flat) / total,
        "failures": reasons,
        "unscored": sum(score.reason.startswith(UNSCORED) for _, score in flat),
    }
