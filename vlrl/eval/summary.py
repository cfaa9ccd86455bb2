"""The figures of a run: every suite and profile with its interval, floors and audits."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlrl.eval.floors import consistency, disagreement, floors, gold_self_test
from vlrl.eval.grade import Graded, Sampled, grade
from vlrl.eval.journal import Entry, Key, read
from vlrl.eval.rows import Rows, read_jsonl
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
from vlrl.registry import ConfigError

BLANK_WARNING = "a model that says nothing scores {:.1%} here"


def sampled(entry: Entry) -> Sampled:
    """A journal entry as it is scored."""
    spaces = tuple(tuple(space) for space in entry.input.get("spaces", ()))
    return Sampled(entry.response, entry.finish, entry.error, entry.tokens, entry.confidence, spaces)


def of_journal(folder: Path, suite: str, variant: str = "plain") -> dict[str, list[Sampled]]:
    """The responses of a run by row, in order of their sample numbers."""
    return pick(read(folder / "journal"), suite, variant)


def pick(entries: Mapping[Key, Entry], suite: str, variant: str = "plain") -> dict[str, list[Sampled]]:
    """The entries of one suite and variant, by row."""
    out: dict[str, list[Sampled]] = {}
    for key in sorted(entries, key=lambda key: (key[0], key[1], key[3])):
        if key[:2] == (suite, variant):
            out.setdefault(key[2], []).append(sampled(entries[key]))
    return out


def of_file(path: Path) -> dict[str, list[Sampled]]:
    """Responses from a JSONL of {"id", "response"}; an id that comes again is a further sample. Raises ConfigError naming the line."""
    out: dict[str, list[Sampled]] = {}
    for number, line in enumerate(read_jsonl(path), 1):
        if "id" not in line or "response" not in line:
            raise ConfigError(f"{path}:{number}: a response has `id` and `response`, got {', '.join(sorted(line)) or 'nothing'}")
        response = line["response"]
        text = "" if response is None else str(response)
        out.setdefault(str(line["id"]), []).append(Sampled(text, str(line.get("finish", "stop")), str(line.get("error", "") or "")))
    return out


def k_samples(graded: Graded) -> dict[str, float]:
    """avg@k, pass@k, maj@k and G-Pass@k of k samples per row (right: score of at least one half)."""
    k = len(graded.marks[0]) if graded.marks else 1
    if k < 2:
        return {}
    counts = [sum(mark.score >= 0.5 for mark in row) for row in graded.marks]
    classes = [equivalence_classes([_key(mark.extracted) for mark in row]) for row in graded.marks]
    sizes = sorted({1, *(2**i for i in range(1, 12) if 2**i < k), k})
    out = {f"avg@{k}": avg_at_k([[mark.score for mark in row] for row in graded.marks])}
    for size in sizes:
        out[f"pass@{size}"] = _mean(pass_at_k(k, c, size) for c in counts)
        out[f"maj@{size}"] = _mean(maj_at_k(c, [mark.score for mark in row], size) for c, row in zip(classes, graded.marks, strict=True))
    out[f"g_pass@{k}_0.5"] = _mean(g_pass_at_k(k, c, k, 0.5) for c in counts)
    out[f"mg_pass@{k}"] = _mean(mean_g_pass_at_k(k, c, k) for c in counts)
    return out


def _mean(values: Any) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def _key(extracted: Any) -> Any:
    """What two samples must share to vote together: the extracted answer without case, space and the way a number is written."""
    if extracted is None:
        return None
    text = " ".join(str(extracted).split()).casefold()
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text or None


def calibration(graded: Graded) -> dict[str, float]:
    """ECE, Brier and area under risk-coverage of the engine's confidence: the geometric mean probability of a response's tokens."""
    pairs = [(s.confidence, m.score) for drawn, row in zip(graded.samples, graded.marks, strict=True) for s, m in zip(drawn, row, strict=True)]
    known = [(confidence, score) for confidence, score in pairs if confidence is not None]
    if not known:
        return {}
    confidence, score = [c for c, _ in known], [s for _, s in known]
    return {"ece": expected_calibration_error(confidence, score), "brier": brier(confidence, score), "aurc": risk_coverage(confidence, score)[2]}


def summarise(graded: Graded, training: Graded | None = None) -> dict[str, Any]:
    """All that is said about one suite and profile."""
    profile = graded.rows.suite.profile(graded.profile)
    below = floors(graded.rows, profile)
    warnings = [BLANK_WARNING.format(below["blank"])] if below["blank"] > 0 else []
    test = gold_self_test(graded.rows, profile)
    if test["unreachable"]:
        warnings.append(f"{len(test['unreachable'])} gold answers cannot be reached")
    if graded.audit["expected"] != graded.audit["scored"] or graded.audit["failed"]:
        warnings.append(f"{graded.audit['failed']:.1%} of the responses failed and count as wrong")
    if graded.audit["unscored"]:
        warnings.append(f"{graded.audit['unscored']} responses could not be scored and count as wrong; `items` say why")
    if graded.rows.origin == "fixture":
        warnings.append("rows of ours in the shape of the benchmark, not the benchmark")
    return {
        "suite": graded.rows.suite.name,
        "profile": graded.profile,
        "snapshot": profile.snapshot,
        "origin": graded.rows.origin,
        "overall": graded.figures["overall"],
        "interval": {key: value for key, value in graded.interval._asdict().items() if key != "value"},
        "figures": graded.figures,
        "k": k_samples(graded),
        "audit": graded.audit,
        "floors": below,
        "gold_self_test": test,
        "calibration": calibration(graded),
        "training_verifier": disagreement(graded, training) if training is not None else {},
        "warnings": warnings,
    }


def summarise_suite(
    rows: Rows, entries: Mapping[Key, Entry], profiles: Sequence[str], protocol: str, variants: Sequence[str]
) -> list[dict[str, Any]]:
    """One summary per profile, with the figures of the variants that were drawn beside it."""
    name = rows.suite.name
    plain = pick(entries, name)
    training = grade(rows, plain, "vlrl", protocol) if "vlrl" in rows.suite.built else None
    out = []
    for profile in profiles:
        graded = training if profile == "vlrl" and training is not None else grade(rows, plain, profile, protocol)
        summary = summarise(graded, training if profile != "vlrl" else None)
        summary["variants"] = {}
        others = []
        for variant in variants:
            if variant != "plain":
                other = grade(moved(rows, variant), pick(entries, name, variant), profile, protocol)
                others += [other] if variant.startswith("permuted") else []
                summary["variants"][variant] = {"overall": other.figures["overall"], "low": other.interval.low, "high": other.interval.high}
        summary["option_consistency"] = consistency(graded, others)
        out.append(summary)
    return out


def moved(rows: Rows, variant: str) -> Rows:
    """The rows as a variant asked them: with its gold answers where it moved the options."""
    if not variant.startswith("permuted"):
        return rows
    from vlrl.eval.permute import rotated

    return Rows(rows.suite, [rotated(rows.suite, row, int(variant[8:] or 1)) for row in rows.fields], rows.origin, rows.folder)


def items(graded: Graded) -> list[dict[str, Any]]:
    """Every score, one object per sample."""
    protocol_free = []
    for name, drawn, row in zip(graded.rows.ids, graded.samples, graded.marks, strict=True):
        for number, (sample, mark) in enumerate(zip(drawn, row, strict=True)):
            extracted = mark.extracted if isinstance(mark.extracted, (str, int, float, type(None))) else str(mark.extracted)
            protocol_free.append(
                {"id": name, "sample": number, "score": mark.score, "extracted": extracted, "rule": mark.rule, "error": sample.error}
            )
    return protocol_free


def write_json(path: Path, value: Any) -> None:
    """Write in one step, so that a reader never sees half a file."""
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    part.replace(path)
