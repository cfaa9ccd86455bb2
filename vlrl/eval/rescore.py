"""Scoring again what a run or a response file holds."""

from __future__ import annotations

from collections.abc import Sequence
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
