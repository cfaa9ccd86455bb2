"""The summary of a run: every suite and profile with its figures, interval, floors, audits, k-sample
estimates and calibration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlrl.eval.floors import consistency, disagreement, floors, gold_self_test
from vlrl.eval.grade import GradedSuite, Sample, grade
from vlrl.eval.journal import Entry, Key, read_journal
from vlrl.eval.prompts import variant_data
from vlrl.eval.records import SuiteData, read_jsonl
from vlrl.eval.scorer import CORRECT_AT
from vlrl.eval.statistics import (
    avg_at_k,
    brier,
    equivalence_classes,
    expected_calibration_error,
    g_pass_at_k,
    maj_at_k,
    mean_g_pass_at_k,
    pass_at_k,
    risk_coverage,
)
from vlrl.plugins.registry import ConfigError
from vlrl.types import CoordinateSpace


def to_sample(entry: Entry) -> Sample:
    """A journal entry as the response that is scored."""
    spaces = tuple(
        CoordinateSpace((space[0], space[1]), (space[2], space[3]), space[4])
        for space in entry.input.get("spaces", ())
    )
    return Sample(entry.response, spaces, entry.finish, entry.error, entry.tokens, entry.confidence)


def responses_from_journal(folder: Path, suite: str, variant: str = "plain") -> dict[str, list[Sample]]:
    """The responses of a run by record id, in the order of their sample numbers."""
    return select_responses(read_journal(folder / "journal"), suite, variant)


def select_responses(
    entries: Mapping[Key, Entry], suite: str, variant: str = "plain"
) -> dict[str, list[Sample]]:
    """The responses of one suite and variant by record id."""
    selected: dict[str, list[Sample]] = {}
    for key in sorted(entries, key=lambda key: (key[0], key[1], key[3])):
        if key[:2] == (suite, variant):
            selected.setdefault(key[2], []).append(to_sample(entries[key]))
    return selected


def responses_from_file(path: Path) -> dict[str, list[Sample]]:
    """Responses from a JSONL of {"id", "response"}; a repeated id is a further sample. Raises ConfigError
    with the line's number."""
    responses: dict[str, list[Sample]] = {}
    for number, line in enumerate(read_jsonl(path), 1):
        if "id" not in line or "response" not in line:
            raise ConfigError(
                f"{path}:{number}: a response has `id` and `response`, got "
                f"{', '.join(sorted(line)) or 'nothing'}"
            )
        response = line["response"]
        text = "" if response is None else str(response)
        responses.setdefault(str(line["id"]), []).append(
            Sample(text, (), str(line.get("finish", "stop")), str(line.get("error", "") or ""))
        )
    return responses


def k_samples(graded: GradedSuite) -> dict[str, float]:
    """avg@k, pass@k, maj@k and G-Pass@k of k samples per record; {} for one sample. A sample is correct from
    a score of `CORRECT_AT` on."""
    k = len(graded.scored[0]) if graded.scored else 1
    if k < 2:
        return {}
    counts = [sum(sample.score >= CORRECT_AT for sample in samples) for samples in graded.scored]
    classes = [
        equivalence_classes([_vote_key(None if sample.unread else sample.extracted) for sample in samples])
        for samples in graded.scored
    ]
    scores = [[sample.score for sample in samples] for samples in graded.scored]
    sizes = sorted({1, *(2**i for i in range(1, 12) if 2**i < k), k})
    figures = {f"avg@{k}": avg_at_k(scores)}
    for size in sizes:
        figures[f"pass@{size}"] = _mean([pass_at_k(k, count, size) for count in counts])
        figures[f"maj@{size}"] = _mean([maj_at_k(c, s, size) for c, s in zip(classes, scores, strict=True)])
    figures[f"g_pass@{k}_0.5"] = _mean([g_pass_at_k(k, count, k, 0.5) for count in counts])
    figures[f"mg_pass@{k}"] = _mean([mean_g_pass_at_k(k, count, k) for count in counts])
    return figures


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _vote_key(extracted: Any) -> Any:
    """What two samples must share to vote together: the extracted answer, ignoring case, spaces and number
    format."""
    if extracted is None:
        return None
    text = " ".join(str(extracted).split()).casefold()
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text or None


def calibration(graded: GradedSuite) -> dict[str, float]:
    """ECE, Brier score and area under the risk-coverage curve. The confidence is the geometric mean
    probability of a response's tokens."""
    pairs = [
        (response.confidence, sample.score)
        for responses, samples in zip(graded.responses, graded.scored, strict=True)
        for response, sample in zip(responses, samples, strict=True)
    ]
    known = [(confidence, score) for confidence, score in pairs if confidence is not None]
    if not known:
        return {}
    confidence, score = [c for c, _ in known], [s for _, s in known]
    return {
        "ece": expected_calibration_error(confidence, score),
        "brier": brier(confidence, score),
        "aurc": risk_coverage(confidence, score)[2],
    }


def _warnings(
    graded: GradedSuite, floor_figures: Mapping[str, Any], self_test: Mapping[str, Any]
) -> list[str]:
    """Reasons to read the figures with care, one line each."""
    audit = graded.audit
    warnings = []
    if floor_figures["blank"] > 0:
        warnings.append(f"an empty response scores {floor_figures['blank']:.1%} here")
    if self_test["unreachable"]:
        warnings.append(f"{len(self_test['unreachable'])} gold answers cannot be reached")
    if audit["expected"] != audit["scored"] or audit["failed"]:
        warnings.append(f"{audit['failed']:.1%} of the responses failed and count as wrong")
    if audit["unscored"]:
        warnings.append(
            f"{audit['unscored']} responses could not be scored and count as wrong; `items` say why"
        )
    if graded.data.origin == "fixture":
        warnings.append("synthetic rows in the shape of the benchmark, not the benchmark")
    return warnings


def summarise(graded: GradedSuite, training: GradedSuite | None = None) -> dict[str, Any]:
    """The summary of one suite and profile; `training` is the same run graded by the training verifier."""
    profile = graded.data.suite.profile(graded.profile)
    floor_figures = floors(graded.data, profile)
    self_test = gold_self_test(graded.data, profile)
    return {
        "suite": graded.data.suite.name,
        "profile": graded.profile,
        "snapshot": profile.snapshot,
        "origin": graded.data.origin,
        "overall": graded.figures["overall"],
        "interval": {key: value for key, value in graded.interval._asdict().items() if key != "value"},
        "figures": graded.figures,
        "k": k_samples(graded),
        "audit": graded.audit,
        "floors": floor_figures,
        "gold_self_test": self_test,
        "calibration": calibration(graded),
        "training_verifier": disagreement(graded, training) if training is not None else {},
        "warnings": _warnings(graded, floor_figures, self_test),
    }


def summarise_suite(
    data: SuiteData,
    entries: Mapping[Key, Entry],
    profiles: Sequence[str],
    protocol: str,
    variants: Sequence[str],
) -> list[dict[str, Any]]:
    """One summary per profile, with the overall figures of the variants that were generated."""
    name = data.suite.name
    plain = select_responses(entries, name)
    training = grade(data, plain, "vlrl", protocol) if "vlrl" in data.suite.built else None
    summaries = []
    for profile in profiles:
        graded = (
            training if profile == "vlrl" and training is not None else grade(data, plain, profile, protocol)
        )
        summary = summarise(graded, training if profile != "vlrl" else None)
        summary["variants"] = {}
        permuted = []
        for variant in variants:
            if variant != "plain":
                other = grade(
                    variant_data(data, variant), select_responses(entries, name, variant), profile, protocol
                )
                permuted += [other] if variant.startswith("permuted") else []
                summary["variants"][variant] = {
                    "overall": other.figures["overall"],
                    "low": other.interval.low,
                    "high": other.interval.high,
                }
        summary["option_consistency"] = consistency(graded, permuted)
        summaries.append(summary)
    return summaries


def list_items(graded: GradedSuite) -> list[dict[str, Any]]:
    """One object per sample: id, sample number, score, extracted answer, rule, error."""
    items = []
    for name, responses, samples in zip(graded.data.ids, graded.responses, graded.scored, strict=True):
        for number, (response, sample) in enumerate(zip(responses, samples, strict=True)):
            extracted = (
                sample.extracted
                if isinstance(sample.extracted, (str, int, float, type(None)))
                else str(sample.extracted)
            )
            items.append(
                {
                    "id": name,
                    "sample": number,
                    "score": sample.score,
                    "extracted": extracted,
                    "rule": sample.route or sample.reason,
                    "error": response.error,
                }
            )
    return items


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically: a reader sees the old file or the new one."""
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    part.replace(path)
