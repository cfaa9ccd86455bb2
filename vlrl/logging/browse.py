"""The rollouts that the report shows: a bounded sample, even over steps and tasks, whole groups with their
image."""

from __future__ import annotations

import base64
import itertools
import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vlrl.logging.pictures import encode
from vlrl.logging.rollouts import PART, REWARD, read
from vlrl.services.media_files import open_picture

log = logging.getLogger("vlrl")

MAX_GROUPS = 48
MAX_STEPS = 16
MAX_ROLLOUTS = 8  # of one group
MAX_TEXT = 3000  # characters of one text
MAX_PICTURE_BYTES = 2_000_000  # of the whole page, before base64
PICTURE_SIDE = 360
STRIP_SIDE = 720

Card = dict[str, Any]


def evenly(items: Sequence[Any], count: int) -> list[Any]:
    """`count` of the items, evenly spaced, first and last included."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / max(count - 1, 1))] for i in range(count)]


def sample(folder: Path, groups: int = MAX_GROUPS, steps: int = MAX_STEPS) -> list[Card]:
    """Cards of at most `groups` groups from at most `steps` steps; within a step the tasks take turns."""
    files = evenly(sorted(folder.glob("step-*.parquet")), min(steps, groups))
    budget = [MAX_PICTURE_BYTES]
    shares = [groups * (i + 1) // len(files) - groups * i // len(files) for i in range(len(files))]
    return [card for file, share in zip(files, shares) for card in _cards(file, share, budget)]


def _cards(file: Path, count: int, budget: list[int]) -> list[Card]:
    """Cards of a rollout file; none of a file that is damaged."""
    try:
        return [_card(rows, budget) for rows in _groups_of(file, count)]
    except (
        Exception
    ) as error:  # a damaged file makes pyarrow raise errors of many classes, and columns lack or mix types
        log.warning(
            "%s cannot be read and is left out of the report: %s",
            file,
            str(error).splitlines()[0] if str(error) else type(error).__name__,
        )
        return []


def _groups_of(file: Path, count: int) -> list[list[dict[str, Any]]]:
    chosen: list[list[int]] = []

    def first_rows(rows: list[dict[str, Any]]) -> list[int]:
        chosen[:] = _take_turns(rows, count)
        return [places[0] for places in chosen]

    rows = read(file, first_rows)  # the pictures of the chosen groups alone
    return [[rows[place] for place in places] for places in chosen]


def _take_turns(rows: Sequence[dict[str, Any]], count: int) -> list[list[int]]:
    """The row numbers of up to `count` groups, the tasks taking turns."""
    by_task: dict[str, list[list[int]]] = {}
    for _, members in itertools.groupby(
        range(len(rows)), key=lambda place: (rows[place]["group"], rows[place]["id"])
    ):
        group = list(members)
        by_task.setdefault(rows[group[0]]["task"], []).append(group)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*by_task.values()))
    return [group for group in turns if group][:count]


def _card(rows: Sequence[dict[str, Any]], budget: list[int]) -> Card:
    first = rows[0]
    largest = max((abs(row["advantage"]) for row in rows), default=0.0) or 1.0
    return {
        "step": first["step"], "phase": first["phase"], "task": first["task"], "id": first["id"],
        "prompt": clip(first["prompt"]),
        "answer": clip(first["answer"]), "media": [_media(item, budget) for item in first["media"][:8]],
        "gold": json.loads(first["gold_marks"]),
        "rollouts": [_rollout(row, largest) for row in rows[:MAX_ROLLOUTS]],
        "left_out": max(len(rows) - MAX_ROLLOUTS, 0),
    }  # fmt: skip


def _rollout(row: dict[str, Any], largest: float) -> Card:
    spans = json.loads(row["spans"]) or [[row["completion"], row["advantage"]]]
    scale = max([largest, *(abs(advantage) for _, advantage in spans)])
    pieces = [
        {"text": text, "style": tint(advantage / scale), "advantage": advantage}
        for text, advantage in _shorten(spans)
    ]
    raw = {
        name.removeprefix(REWARD): value
        for name, value in row.items()
        if name.startswith((REWARD, PART)) and value is not None
    }
    known = ("index", "reward", "advantage", "length", "finish", "source", "entropy", "logp")
    return {
        **{name: row[name] for name in known},
        "raw": raw,
        "pieces": pieces,
        "marks": json.loads(row["marks"]),
    }


def clip(text: str) -> str:
    """The text, or its beginning and the number of characters left out."""
    return (
        text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} [... {len(text) - MAX_TEXT} more characters]"
    )


def _shorten(spans: Sequence[Sequence[Any]]) -> Iterable[tuple[str, float]]:
    left = MAX_TEXT
    for text, advantage in spans:
        if left <= 0:
            yield f" [... {sum(len(part) for part, _ in spans) - MAX_TEXT} more characters]", 0.0
            return
        yield (clip(text) if len(spans) == 1 else text[:left]), advantage
        left -= len(text)


def tint(share: float) -> str:
    """CSS for an advantage as a share of the largest one: green above zero, red below, stronger farther from
    it."""
    if not share:
        return ""
    colour = "34,160,90" if share > 0 else "215,60,60"
    return f"background:rgba({colour},{min(abs(share), 1.0) * 0.3:.2f})"


def _media(item: dict[str, Any], budget: list[int]) -> Card:
    """A picture for the page: a data URI, or None where the page has enough of them."""
    picture = open_picture(item["bytes"])
    data = encode(picture, STRIP_SIDE if item["kind"] == "video" else PICTURE_SIDE)
    budget[0] -= len(data)
    mime = "image/png" if data.startswith(b"\x89PNG") else "image/jpeg"
    uri = f"data:{mime};base64,{base64.b64encode(data).decode()}" if budget[0] >= 0 else None
    return {"kind": item["kind"], "width": item["width"], "height": item["height"], "uri": uri}
