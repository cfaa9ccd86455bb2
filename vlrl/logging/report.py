"""`report.html`: one page about one run that needs no network. What happened in three sentences, held-out
answers, curves, throughput, and the groups of rollouts with their pictures."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from vlrl.logging.browse import sample
from vlrl.logging.glossary import explained, unit
from vlrl.logging.live import total_steps
from vlrl.logging.recorder import EVENTS, KEYS, METRICS, SESSIONS, TIMINGS, read_record
from vlrl.logging.story import story
from vlrl.pages.chart import Band, Chart, Line, Point, thin
from vlrl.pages.kit import render
from vlrl.services.files import thinned_jsonl, write_whole
from vlrl.services.redaction import blank

REPORT = "report.html"
PARSED = 3000  # steps of a run that are read for curves of 240 points
_FIRST = ("reward/total", "loss", "entropy", "kl", "clip_fraction", "length/mean", "grad_norm", "lr")
_SECTIONS = ("reward", "heldout", "training", "length")
_CLOSED = ("engine", "data", "group_filter", "loss", "other")  # plumbing: there, but not in the way


def render_report(folder: str | Path) -> Path:
    """Write `report.html` into a run folder and return its path. Raises ValueError if the folder holds no
    metrics.

    Of a run longer than `PARSED` steps, curves and sums of seconds are those of a part of the steps (see
    `thinned_jsonl`).
    """
    path = Path(folder) / REPORT
    write_whole(path, report_text(folder))
    return path


def report_text(folder: str | Path, follows: bool = False, groups: bool = True) -> str:
    """The page. `follows`: it asks its server for what is new; `groups`: with rollouts. Raises ValueError as
    `render_report` does."""
    folder = Path(folder)
    metrics, steps = thinned_jsonl(folder / METRICS, KEYS[METRICS], PARSED)
    if not metrics and not follows:
        raise ValueError(
            f"{folder}: no {METRICS} with a finished step in it; give the output folder of a run"
        )
    scripts = ("groups.js", "follow.js") if follows else ("groups.js",)
    content = _content(folder, metrics, steps, groups)
    return render("report", kind="vlrl report", scripts=scripts, follows=follows, **content)


def _content(folder: Path, metrics: Sequence[dict[str, Any]], steps: int, groups: bool) -> dict[str, Any]:
    timings, timed = thinned_jsonl(folder / TIMINGS, KEYS[TIMINGS], PARSED)
    events = read_record(folder, EVENTS)
    summary = read_summary(folder)
    bands = phase_bands(metrics)
    cards = sample(folder / "rollouts") if groups else []
    rollouts = [rollout for card in cards for rollout in card["rollouts"]]
    rewards = [rollout["reward"] for rollout in rollouts]
    activity = [row for row in events if row["kind"] == "activity"]
    heldout = heldout_table(events, summary)
    config = read_config(folder)
    findings = [finding for row in activity for finding in row.get("findings") or ()]
    return {
        "title": run_name(folder, summary),
        "bands": bands,
        "steps": steps,
        "planned": total_steps(config) if config else 0,
        "spent": sum(sum_seconds(row["seconds"]) for row in timings) * timed / max(len(timings), 1),
        "story": story(metrics, heldout, findings, reward_weights(config)) if metrics else ["No step yet."],
        "heldout": heldout,
        "answers": answers_table(summary),
        "findings": summary.get("findings") or {},
        "sections": chart_sections(metrics, bands),
        "closed": _CLOSED,
        "speed": speed_charts(metrics, timings, bands),
        "shares": time_shares(timings),
        "cards": cards,
        "shifted": any(piece["shift_style"] for rollout in rollouts for piece in rollout["pieces"]),
        "choices": {key: sorted({card[key] for card in cards}) for key in ("step", "phase", "task")},
        "reward_range": [min(rewards, default=0.0), max(rewards, default=1.0)],
        "activity": activity,
        "events": [row for row in events if row["kind"] not in ("heldout", "activity", "finding")][-200:],
        "sessions": read_record(folder, SESSIONS),
        "config": blank(_text(folder / "config.yaml")),
    }


SECTION = re.compile(r'<section id="([\w/-]+)">.*?\n</section>', re.DOTALL)
FACTS = re.compile(r'<p class="facts" id="facts">.*?</p>', re.DOTALL)


def sections_of(page: str) -> dict[str, str]:
    """The sections of a page by id, in order, for a reader's page that is already open."""
    found = {match[1]: match[0] for match in SECTION.finditer(page)}
    facts = FACTS.search(page)
    return {"facts": facts[0], **found} if facts else found


def run_name(folder: Path, summary: Mapping[str, Any]) -> str:
    """What the run is called: the summary's name, else its folder's."""
    return str(summary.get("name") or folder.resolve().name)


def read_config(folder: Path) -> dict[str, Any]:
    """The resolved config of a run; {} for none, or one that is damaged."""
    try:
        said = yaml.safe_load(_text(folder / "config.yaml"))
    except yaml.YAMLError:
        return {}
    return said if isinstance(said, dict) else {}


def reward_weights(config: Mapping[str, Any]) -> dict[str, float]:
    """The weights of the reward slots that a config names."""
    rewards = config.get("rewards")
    slots = rewards.items() if isinstance(rewards, dict) else ()
    return {
        slot: float(value["weight"])
        for slot, value in slots
        if isinstance(value, dict) and isinstance(value.get("weight"), (int, float))
    }


def read_summary(folder: Path) -> dict[str, Any]:
    """The run's summary, or that of a run that goes on; {} for none, or a damaged one, whose numbers are in
    the other files too."""
    names = ("summary.json", "partial_summary.json")
    try:
        said = json.loads(next(filter(None, (_text(folder / name) for name in names)), "{}"))
    except ValueError:
        return {}
    return (
        said
        if isinstance(said, dict)
        and all(isinstance(said.get(name) or {}, dict) for name in ("heldout", "answers", "findings"))
        else {}
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def phase_bands(rows: Sequence[Mapping[str, Any]]) -> list[Band]:
    """The steps of each phase, in order."""
    bands = []
    for name, members in itertools.groupby(rows, key=lambda row: row["phase"]):
        steps = [row["step"] for row in members]
        bands.append(Band(str(name), min(steps), max(steps)))
    return bands


def curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """{metric: [(step, value), ...]} of everything that is a number."""
    out: dict[str, list[Point]] = {}
    for row in rows:
        for name, value in row.items():
            if name != "step" and isinstance(value, (int, float)):
                out.setdefault(name, []).append((row["step"], value))
    return out


def chart_sections(
    rows: Sequence[Mapping[str, Any]], bands: Sequence[Band]
) -> dict[str, list[dict[str, Any]]]:
    """Charts by the part of a metric's name before the slash, the well-known ones first; a metric that never
    changes has no chart."""
    sections: dict[str, list[dict[str, Any]]] = {}
    found = curves(rows)
    for name in sorted(found, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)):
        head, slash, _ = name.partition("/")
        sections.setdefault(head if slash else "training", []).append(_chart(name, found[name], bands))
    order = {name: i for i, name in enumerate(_SECTIONS)} | {name: len(_SECTIONS) + 1 for name in _CLOSED}
    for name in [name for name, charts in sections.items() if len(charts) == 1 and name not in order]:
        sections.setdefault("other", []).extend(sections.pop(name))
    return dict(sorted(sections.items(), key=lambda item: (order.get(item[0], len(_SECTIONS)), item[0])))


def _chart(name: str, points: Sequence[Point], bands: Sequence[Band]) -> dict[str, Any]:
    """A chart, and whether it has more to show than one number."""
    line = Line(name, thin(points), smoothed=True)
    chart = Chart(name, [line], up=unit(name), phases=bands, means=explained(name))
    return {"chart": chart, "drawn": len({value for _, value in points}) > 1}


def sum_seconds(seconds: Mapping[str, float]) -> float:
    """Seconds of a step: `step` if it was measured whole, else the sum of its parts."""
    return seconds.get("step") or sum(seconds.values())


def speed_charts(
    rows: Sequence[Mapping[str, Any]], timings: Sequence[Mapping[str, Any]], bands: Sequence[Band]
) -> list[dict[str, Any]]:
    """Tokens per second, rollouts per second where counted, seconds per step, and seconds per call of an
    environment."""
    spent = {row["step"]: sum_seconds(row["seconds"]) for row in timings}
    charts = {"seconds per step": [(step, value) for step, value in spent.items()]}
    calls = {row["step"]: row.get("environment/calls") for row in rows}
    waited = [
        (row["step"], row["seconds"]["environment"] / calls[row["step"]])
        for row in timings
        if "environment" in row["seconds"] and calls.get(row["step"])
    ]
    charts |= {"seconds per environment call": waited} if waited else {}
    for name in ("tokens", "rollouts"):
        rate = [
            (row["step"], row[name] / spent[row["step"]])
            for row in rows
            if row.get(name) is not None and spent.get(row["step"])
        ]
        charts = {**({f"{name} per second": rate} if rate else {}), **charts}
    return [_chart(name, points, bands) for name, points in charts.items() if points]


def time_shares(timings: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Per phase: the parts of a step with their seconds and share of the whole."""
    out = {}
    for phase, members in itertools.groupby(timings, key=lambda row: row["phase"]):
        rows = [row["seconds"] for row in members]
        whole = sum(map(sum_seconds, rows)) or 1.0
        parts = {
            name: sum(row.get(name, 0.0) for row in rows)
            for name in {name: 0 for row in rows for name in row}
            if name != "step"
        }
        out[str(phase)] = [
            {"name": name, "seconds": spent, "share": min(spent / whole, 1.0)}
            for name, spent in sorted(parts.items(), key=lambda x: -x[1])
        ]
    return out


def heldout_table(events: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Held-out accuracy: one row per task, one column per time it was measured, and the change from first to
    last."""
    columns = {
        str(row.get("name", f"step {row['step']}")): row.get("scores", {})
        for row in events
        if row["kind"] == "heldout"
    }
    columns |= {str(name): scores for name, scores in (summary.get("heldout") or {}).items() if scores}
    rows = []
    for task in sorted({task for scores in columns.values() for task in scores}):
        values = [scores.get(task) for scores in columns.values()]
        known = [value for value in values if value is not None]
        rows.append(
            {"task": task, "values": values, "change": known[-1] - known[0] if len(known) > 1 else None}
        )
    return {"columns": list(columns), "rows": rows}


def answers_table(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The held-out answers that the summary keeps (`watch.heldout_answers`): one row per question, one column
    per time it was asked."""
    answers = summary.get("answers") or {}
    return {"columns": list(answers), "rows": list(zip(*answers.values(), strict=False))}
