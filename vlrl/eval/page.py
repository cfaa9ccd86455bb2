"""The page of one run or of two: scores with intervals and floors, items with pictures, boxes and both extractions, and the card that replays it."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vlrl.eval.card import differences, read_card
from vlrl.eval.grade import Graded, grade
from vlrl.eval.prompts import media_of
from vlrl.eval.rows import Rows
from vlrl.eval.runner import reopen
from vlrl.eval.statistics import compare
from vlrl.eval.statistics.intervals import macro_weights
from vlrl.eval.summary import of_journal
from vlrl.registry import ConfigError
from vlrl.types import Clip, MediaError

WIDTH = 360  # pixels of an embedded picture
PICTURES = 400  # items that carry their picture; flipped ones first


def write_page(runs: Sequence[Path], target: Path, profile: str = "official") -> dict[str, Any]:
    """Write the page of run A and, if given, B; returns its scores and counts. Raises ConfigError for more runs, or without a suite in common."""
    if not 1 <= len(runs) <= 2:
        raise ConfigError(f"report: give one run or two, got {len(runs)}")
    facts = page_facts(runs, profile)
    template = (resources.files("vlrl.eval") / "page.html").read_text(encoding="utf-8")
    embedded = json.dumps(facts, ensure_ascii=False, default=str).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(template.replace("__FACTS__", embedded), encoding="utf-8")
    counts = {status: sum(item["status"] == status for item in facts["items"]) for status in ("gained", "lost", "right", "wrong")}
    return {"page": str(target), "scores": facts["scores"], "items": counts}


def page_facts(runs: Sequence[Path], profile: str) -> dict[str, Any]:
    """All that the page shows, as plain values."""
    opened = [reopen(run) for run in runs]
    by_name = [{rows.suite.name: rows for rows in all_rows} for _, all_rows, _ in opened]
    names = [name for name in by_name[0] if all(name in other for other in by_name)]
    if not names:
        raise ConfigError(f"report: {runs[0]} and {runs[-1]} have no suite in common ({', '.join(by_name[0])} and {', '.join(by_name[-1])})")
    summaries = [_summary(run) for run in runs]
    scores, items = [], []
    for name in names:
        graded = [
            grade(by_name[i][name], of_journal(run, name), _profile(by_name[i][name], profile), opened[i][0].protocol) for i, run in enumerate(runs)
        ]
        scores += _scores(name, summaries)
        if len(graded) == 2:
            _compared(scores, name, graded)
        items += _items(graded)
    items.sort(key=lambda item: item["status"] not in ("gained", "lost"))
    for item in items[:PICTURES]:
        item["picture"] = _picture(item.pop("_rows"), item.pop("_number"))
    for item in items[PICTURES:]:
        item.pop("_rows"), item.pop("_number")
    cards = [read_card(run) for run in runs]
    return {
        "runs": [{"name": run.name, "model": options.model, "engine": options.engine} for run, (options, _, _) in zip(runs, opened, strict=True)],
        "profile": profile,
        "scores": scores,
        "items": items,
        "cards": cards,
        "changed": differences(cards[0], cards[1]) if len(cards) == 2 else [],
        "replay": [f"vlrl eval --card {run / 'card.json'} --output {run}-replay" for run in runs],
    }


def _profile(rows: Rows, profile: str) -> str:
    """The profile asked for, or the suite's first where it lacks it."""
    return profile if profile.partition(":")[0] in rows.suite.built else rows.suite.usual[0]


def _summary(run: Path) -> dict[str, Any]:
    file = run / "summary.json"
    if not file.is_file():
        raise ConfigError(f"report: {run} is not finished (no summary.json); run the same `vlrl eval` command again to go on with it")
    return json.loads(file.read_text(encoding="utf-8"))


def _scores(name: str, summaries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per profile of a suite, with the figures of every run."""
    tables = [{part["profile"]: part for part in summary["results"] if part["suite"] == name} for summary in summaries]
    out = []
    for profile in tables[0]:
        parts = [table[profile] for table in tables if profile in table]
        keep = ("overall", "interval", "floors", "audit", "warnings", "variants", "k", "gold_self_test", "training_verifier", "origin")
        out.append({"suite": name, "profile": profile, "runs": [{key: part.get(key) for key in keep} for part in parts]})
    return out


def _compared(scores: list[dict[str, Any]], name: str, graded: Sequence[Graded]) -> None:
    """Put the paired comparison beside the scores of the page's profile. Rows that only one run has are left out."""
    a, b = ({key: (score, i) for i, (key, score) in enumerate(zip(g.rows.ids, g.scores, strict=True))} for g in graded)
    shared = [key for key in a if key in b]
    rows = graded[0].rows
    clusters = [rows.suite.cluster_of(rows.fields[a[key][1]], a[key][1]) for key in shared]
    if not shared:
        return
    paths = rows.suite.profile(graded[0].profile).aggregate.paths([rows.fields[a[key][1]] for key in shared])
    weights = macro_weights(paths) if paths and any(paths) else None
    result = compare([a[key][0] for key in shared], [b[key][0] for key in shared], clusters, None if weights is None else weights.tolist())
    for entry in scores:
        if entry["suite"] == name and entry["profile"] == graded[0].profile:
            entry["comparison"] = vars(result)


def _items(graded: Sequence[Graded]) -> list[dict[str, Any]]:
    """Every row with the first response, score, extraction and drawn boxes of each run."""
    first = graded[0]
    places = [{name: i for i, name in enumerate(g.rows.ids)} for g in graded]
    out = []
    for number, (name, row) in enumerate(zip(first.rows.ids, first.rows.fields, strict=True)):
        if any(name not in place for place in places):
            continue
        answers = [_answer(g, place[name]) for g, place in zip(graded, places, strict=True)]
        right = [answer["score"] >= 0.5 for answer in answers]
        status = ("right" if right[0] else "wrong") if right[0] == right[-1] else ("gained" if right[-1] else "lost")
        out.append({"suite": first.rows.suite.name, "id": name, "question": first.rows.suite.text(row), "gold": str(first.rows.suite.gold(row)),
                    "status": status, "answers": answers, "_rows": first.rows, "_number": number})  # fmt: skip
    return out


def _answer(graded: Graded, number: int) -> dict[str, Any]:
    mark, sample = graded.marks[number][0], graded.samples[number][0]
    details = mark.details
    boxes = [{"box": details[key], "kind": kind} for key, kind in (("gold_box", "gold"), ("box", "said")) if key in details]
    boxes += [{"box": entry["box"], "kind": kind} for key, kind in (("gold_boxes", "gold"), ("boxes", "said")) for entry in details.get(key, ())]
    if "point" in details:
        x, y = details["point"]
        boxes.append({"box": [x - 2, y - 2, x + 2, y + 2], "kind": "said"})
    return {
        "response": sample.text, "finish": sample.finish, "error": sample.error, "score": graded.scores[number], "rule": mark.rule,
        "extracted": None if mark.extracted is None else str(mark.extracted), "boxes": boxes,
    }  # fmt: skip


def _picture(rows: Rows, number: int) -> dict[str, Any] | None:
    """The row's first picture, or four frames of its first video side by side, as a data URI with its original size; None where there is none."""
    try:
        images, videos = media_of(rows, rows.fields[number])
        if not images and not videos:
            return None
        loaded = (images or videos)[0].load()
    except MediaError as error:
        return {"error": str(error)}
    image = strip(loaded) if isinstance(loaded, Clip) else loaded
    width, height = image.size
    small = image.resize((min(WIDTH, width), max(1, round(height * min(WIDTH, width) / width)))) if width > WIDTH else image
    buffer = io.BytesIO()
    small.save(buffer, "PNG" if width <= WIDTH else "JPEG")
    kind = "png" if width <= WIDTH else "jpeg"
    return {"uri": f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}", "width": width, "height": height}


def strip(clip: Clip) -> Image.Image:
    """Up to four frames of a clip, side by side."""
    places = np.linspace(0, len(clip) - 1, min(4, len(clip)), dtype=int)
    return Image.fromarray(np.concatenate([clip.frames_THWC[place] for place in places], axis=1))
