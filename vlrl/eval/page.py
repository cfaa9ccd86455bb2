"""The HTML report of one run or two: scores with intervals and floors, items with pictures, boxes and
extracted answers, and the card."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vlrl.eval.card import differences, read_card
from vlrl.eval.grade import GradedSuite, grade, mean_score
from vlrl.eval.prompts import media_of
from vlrl.eval.records import SuiteData
from vlrl.eval.runner import reopen
from vlrl.eval.statistics import compare
from vlrl.eval.statistics.intervals import macro_weights
from vlrl.eval.summary import responses_from_journal
from vlrl.pages.kit import render
from vlrl.plugins.registry import ConfigError
from vlrl.types import Clip, MediaError, Sound

WIDTH = 360  # pixels of an embedded picture
PICTURES = 400  # items that carry their picture; flipped ones first


def write_page(runs: Sequence[Path], target: Path, profile: str = "official") -> dict[str, Any]:
    """Writes the report of run A and, if given, run B; returns the scores and the number of items per status.

    Raises ConfigError for no run or more than two, or if two runs have no suite in common.
    """
    if not 1 <= len(runs) <= 2:
        raise ConfigError(f"report: give one run or two, got {len(runs)}")
    facts = page_facts(runs, profile)
    embedded = (
        json.dumps(facts, ensure_ascii=False, default=str)
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    title = " and ".join(run["name"] for run in facts["runs"])
    page = render("evaluation", title, "vlrl eval", ("evaluation.js",), facts=embedded, profile=profile)
    target.write_text(page, encoding="utf-8")
    counts = {
        status: sum(item["status"] == status for item in facts["items"])
        for status in ("gained", "lost", "correct", "wrong")
    }
    return {"page": str(target), "scores": facts["scores"], "items": counts}


def page_facts(runs: Sequence[Path], profile: str) -> dict[str, Any]:
    """The content of the report as JSON values."""
    opened = [reopen(run) for run in runs]
    by_name = [{data.suite.name: data for data in suites} for _, suites, _ in opened]
    names = [name for name in by_name[0] if all(name in other for other in by_name)]
    if not names:
        raise ConfigError(
            f"report: {runs[0]} and {runs[-1]} have no suite in common ({', '.join(by_name[0])} and "
            f"{', '.join(by_name[-1])})"
        )
    summaries = [_read_summary(run) for run in runs]
    scores: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []
    pictured: dict[int, tuple[SuiteData, int]] = {}  # where the picture of an item is, by id() of the item
    for name in names:
        graded = [
            grade(
                by_name[i][name],
                responses_from_journal(run, name),
                _profile_of(by_name[i][name], profile),
                opened[i][0].protocol,
            )
            for i, run in enumerate(runs)
        ]
        scores += _score_rows(name, summaries)
        if len(graded) == 2:
            _add_comparison(scores, name, graded)
        for item, number in _items(graded):
            items.append(item)
            pictured[id(item)] = (graded[0].data, number)
    items.sort(key=lambda item: item["status"] not in ("gained", "lost"))
    for item in items[:PICTURES]:
        item["picture"] = _picture(*pictured[id(item)])
    cards = [read_card(run) for run in runs]
    return {
        "runs": [
            {"name": run.name, "model": options.model, "engine": options.engine}
            for run, (options, _, _) in zip(runs, opened, strict=True)
        ],
        "profile": profile,
        "scores": scores,
        "items": items,
        "cards": cards,
        "changed": differences(cards[0], cards[1]) if len(cards) == 2 else [],
        "replay": [f"vlrl eval --card {run / 'card.json'} --output {run}-replay" for run in runs],
    }


def _profile_of(data: SuiteData, profile: str) -> str:
    """The requested profile, or the suite's first default profile where the suite lacks it."""
    return profile if profile.partition(":")[0] in data.suite.built else data.suite.default_profiles[0]


def _read_summary(run: Path) -> dict[str, Any]:
    file = run / "summary.json"
    if not file.is_file():
        raise ConfigError(
            f"report: {run} is not finished (no summary.json); run the same `vlrl eval` command again to "
            "resume it"
        )
    return json.loads(file.read_text(encoding="utf-8"))


def _score_rows(name: str, summaries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One table row per profile of a suite, with the figures of every run."""
    tables = [
        {part["profile"]: part for part in summary["results"] if part["suite"] == name}
        for summary in summaries
    ]
    keep = (
        "overall",
        "interval",
        "floors",
        "audit",
        "warnings",
        "variants",
        "k",
        "gold_self_test",
        "training_verifier",
        "origin",
    )
    rows = []
    for profile in tables[0]:
        parts = [table[profile] for table in tables if profile in table]
        rows.append(
            {
                "suite": name,
                "profile": profile,
                "runs": [{key: part.get(key) for key in keep} for part in parts],
            }
        )
    return rows


def _add_comparison(scores: list[dict[str, Any]], name: str, graded: Sequence[GradedSuite]) -> None:
    """Adds the paired comparison of both runs to the table row of the page's profile. Records that only one
    run has are left out."""
    a, b = (
        {key: (score, i) for i, (key, score) in enumerate(zip(g.data.ids, g.scores, strict=True))}
        for g in graded
    )
    shared = [key for key in a if key in b]
    if not shared:
        return
    data = graded[0].data
    records = [data.records[a[key][1]] for key in shared]
    clusters = [data.suite.cluster_of(record, a[key][1]) for key, record in zip(shared, records, strict=True)]
    paths = data.suite.profile(graded[0].profile).aggregate.paths(records)
    weights = macro_weights(paths).tolist() if paths and any(paths) else None
    result = compare([a[key][0] for key in shared], [b[key][0] for key in shared], clusters, weights)
    for row in scores:
        if row["suite"] == name and row["profile"] == graded[0].profile:
            row["comparison"] = vars(result)


def _items(graded: Sequence[GradedSuite]) -> list[tuple[dict[str, Any], int]]:
    """(item, number of its record) of every record that all runs have: the first response, score, extracted
    answer and boxes of each run."""
    data = graded[0].data
    places = [{name: i for i, name in enumerate(g.data.ids)} for g in graded]
    correct = [g.correct for g in graded]
    items = []
    for number, (name, record) in enumerate(zip(data.ids, data.records, strict=True)):
        if any(name not in place for place in places):
            continue
        item = {
            "suite": data.suite.name,
            "id": name,
            "question": data.suite.text(record),
            "gold": str(data.suite.gold(record)),
            "status": _status(correct[0][places[0][name]], correct[-1][places[-1][name]]),
            "answers": [_answer(g, place[name]) for g, place in zip(graded, places, strict=True)],
        }
        items.append((item, number))
    return items


def _status(before: bool, after: bool) -> str:
    if before == after:
        return "correct" if before else "wrong"
    return "gained" if after else "lost"


def _answer(graded: GradedSuite, number: int) -> dict[str, Any]:
    scored, response = graded.scored[number][0], graded.responses[number][0]
    details = scored.details
    boxes = [
        {"box": details[key], "kind": kind}
        for key, kind in (("gold_box", "gold"), ("box", "predicted"))
        if key in details
    ]
    boxes += [
        {"box": entry["box"], "kind": kind}
        for key, kind in (("gold_boxes", "gold"), ("boxes", "predicted"))
        for entry in details.get(key, ())
    ]
    if "point" in details:
        x, y = details["point"]
        boxes.append({"box": [x - 2, y - 2, x + 2, y + 2], "kind": "predicted"})
    return {
        "response": response.text,
        "finish": response.finish,
        "error": response.error,
        "score": mean_score(graded.scored[number]),
        "rule": scored.route or scored.reason,
        "extracted": None if scored.extracted is None else str(scored.extracted),
        "boxes": boxes,
    }


def _picture(data: SuiteData, number: int) -> dict[str, Any] | None:
    """The record's first picture, or four frames of its first video, as a data URI with the original size;
    None without media."""
    try:
        images, videos = media_of(data, data.records[number])
        if not images and not videos:
            return None
        loaded = (images or videos)[0].load()
    except MediaError as error:
        return {"error": str(error)}
    assert not isinstance(loaded, Sound), "suites have pictures and videos"
    image = film_strip(loaded) if isinstance(loaded, Clip) else loaded
    width, height = image.size
    small = (
        image.resize((min(WIDTH, width), max(1, round(height * min(WIDTH, width) / width))))
        if width > WIDTH
        else image
    )
    buffer = io.BytesIO()
    kind = "png" if width <= WIDTH else "jpeg"
    small.save(buffer, kind.upper())
    return {
        "uri": f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}",
        "width": width,
        "height": height,
    }


def film_strip(clip: Clip) -> Image.Image:
    """Up to four frames of a clip, side by side."""
    places = np.linspace(0, len(clip) - 1, min(4, len(clip)), dtype=int)
    return Image.fromarray(np.concatenate([clip.frames_THWC[place] for place in places], axis=1))
