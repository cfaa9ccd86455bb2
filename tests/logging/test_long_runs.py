"""The report of a long run parses a part of its steps, and shows what a report of all of them would."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

import vlrl.services.files
from vlrl.logging import report
from vlrl.logging.recorder import KEYS, METRICS, TIMINGS
from vlrl.services.files import read_jsonl, thinned_jsonl

STEPS = 4000


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of a cold start of 7 steps and a main phase; held-out accuracy every 50 steps, a checkpoint's
    seconds every 100."""
    with (tmp_path / METRICS).open("w") as metrics, (tmp_path / TIMINGS).open("w") as timings:
        for step in range(STEPS):
            phase = "cold_start" if step < 7 else "main"
            more = {"heldout/accuracy": step / STEPS} if step % 50 == 49 else {}
            metrics.write(
                json.dumps(
                    {"step": step, "phase": phase, "loss": math.sin(step / 300), "tokens": 10.0, **more}
                )
                + "\n"
            )
            timings.write(
                json.dumps({"step": step, "phase": phase, "seconds": {"step": 2.0 + 2.0 * (step % 2)}}) + "\n"
            )
        metrics.write('{"step": 4000, "pha')  # a process died here
    return tmp_path


def test_a_part_of_a_long_file_is_parsed_with_its_ends_and_changes(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []
    loads = json.loads
    monkeypatch.setattr(vlrl.services.files.json, "loads", lambda line: parsed.append(line) or loads(line))
    rows, count = thinned_jsonl(run / METRICS, KEYS[METRICS], 200)
    assert count == STEPS + 1 and 200 <= len(parsed) <= 403
    steps = [row["step"] for row in rows]
    assert steps == sorted(set(steps)) and steps[0] == 0 and steps[-1] == STEPS - 1
    assert {6, 7} & set(steps) and sum("heldout/accuracy" in row for row in rows) >= 70, (
        "of 80, recorded every 50 steps"
    )
    gaps = [b - a for a, b in zip(steps, steps[1:])]
    assert max(gaps) < 2 * STEPS // 200, "no stretch of the run is left out"


def test_a_short_file_is_read_whole(run: Path) -> None:
    assert thinned_jsonl(run / METRICS, KEYS[METRICS], 2500) == (
        read_jsonl(run / METRICS, KEYS[METRICS]),
        STEPS,
    )
    assert thinned_jsonl(run / "missing.jsonl", None, 10) == ([], 0)


def test_the_report_shows_phases_curves_and_totals_of_all_steps(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, steps = thinned_jsonl(run / METRICS, KEYS[METRICS], 400)
    monkeypatch.setattr(report, "PARSED", 400)
    content = report._content(run, metrics, steps, groups=True)
    assert [(band.name, band.first, band.last) for band in content["bands"]][1][2] == STEPS - 1 and len(
        content["bands"]
    ) == 2
    assert content["spent"] == pytest.approx(3.0 * STEPS, rel=1e-2) and content["steps"] == STEPS + 1
    assert {item["chart"].title for item in content["sections"]["training"]} >= {
        "loss",
        "tokens",
    } and content["sections"]["heldout"]
    page = report.render_report(run).read_text()
    assert re.search(r"<b>4001</b> steps", page)
