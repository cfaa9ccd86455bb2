"""Scoring again what a run or a response file holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlrl.eval.grade import grade
from vlrl.eval.rows import Rows, read
from vlrl.eval.suite import load
from vlrl.eval.summary import items, of_file, of_journal, summarise
from vlrl.registry import ConfigError


def rescore(
    path: Path, profiles: Sequence[str], suites: Sequence[str] = (), data: str = "auto", media: str = "", protocol: str = ""
) -> list[dict[str, Any]]:
    """The summary of every suite and profile, each with `scores` (the mean per id) and `items` (every verdict).

    `path` is a run's folder, or a JSONL of {"id", "response"} of one suite that `suites` names. Raises ConfigError.
    """
    if path.is_dir():
        from vlrl.eval.runner import reopen

        options, all_rows, _ = reopen(path)
        chosen = [rows for rows in all_rows if not suites or rows.suite.name in suites]
        jobs = [(rows, of_journal(path, rows.suite.name)) for rows in chosen]
        protocol = protocol or options.protocol
    else:
        if len(suites) != 1:
            raise ConfigError(f"{path}: a response file belongs to one suite; name it with --suite")
        if not path.is_file():
            raise ConfigError(f"{path}: no such run or response file")
        jobs = [(read(load(suites[0]), data, media), of_file(path))]
    return [_result(rows, responses, profile, protocol or "direct") for rows, responses in jobs for profile in profiles or rows.suite.usual]


def _result(rows: Rows, responses: Any, profile: str, protocol: str) -> dict[str, Any]:
    graded = grade(rows, responses, profile, protocol)
    return {**summarise(graded), "scores": dict(zip(rows.ids, graded.scores, strict=True)), "items": items(graded)}


def judged(
    path: Path, model: str, engine: str, options: Mapping[str, Any], suites: Sequence[str], profile: str, prices: tuple[float, float], dry: bool
) -> dict[str, Any]:  # fmt: skip
    """A judge's report for each suite of a run, or (if `dry`) what asking it would cost. The judge is never part of a score."""
    from vlrl.eval.judge import Judge, prompts_of, report, through
    from vlrl.eval.model import engine_spec, open_model
    from vlrl.eval.runner import reopen

    run_options, all_rows, _ = reopen(path)
    graded = [
        grade(rows, of_journal(path, rows.suite.name), profile, run_options.protocol) for rows in all_rows if not suites or rows.suite.name in suites
    ]
    if dry:
        asker = Judge(model, lambda prompts: [""] * len(prompts), path / "judge.jsonl", prices)
        return {entry.rows.suite.name: asker.price(prompts_of(entry)) for entry in graded}
    served = open_model(model.partition("@")[0], engine_spec(engine, options))
    try:
        asker = Judge(model, through(served.engine), path / "judge.jsonl", prices)
        return {entry.rows.suite.name: report(asker, entry) for entry in graded}
    finally:
        served.close()
