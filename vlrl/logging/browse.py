"""The rollouts that the report shows: a bounded sample, even over steps and tasks, whole groups with their
image."""

from __future__ import annotations

import base64
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vlrl.logging.boxes import drawn_mask
from vlrl.logging.pictures import encode
from vlrl.logging.rollouts import PART, REWARD, read
from vlrl.services.media_files import open_picture

log = logging.getLogger("vlrl")

MAX_GROUPS = 48
MAX_STEPS = 16
MAX_ROLLOUTS = 8  # of one group
MAX_TEXT = 3000  # characters of one text
MAX_READ = 200  # characters of what a reward read, and of its reason
MAX_SHIFT = 3.0  # nats against the reference that have the strongest colour
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
    """Cards of at most `groups` groups from at most `steps` steps, the newest first and demonstrations last;
    within a step the tasks take turns."""
    files = evenly(sorted(folder.glob("step-*.parquet")), min(steps, groups))
    budget = [MAX_PICTURE_BYTES]
    shares = [groups * (i + 1) // len(files) - groups * i // len(files) for i in range(len(files))]
    cards = [card for file, share in zip(files, shares) for card in _cards(file, share, budget)]
    own = [any(rollout["source"] == "policy" for rollout in card["rollouts"]) for card in cards]
    order = sorted(range(len(cards)), key=lambda i: (not own[i], -cards[i]["step"]))
    return [cards[i] for i in order]


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
    best_first = sorted(rows, key=lambda row: (-row["reward"], row["index"]))[:MAX_ROLLOUTS]
    mean = sum(row["reward"] for row in rows) / len(rows)
    answer = json.loads(first["answer"])
    rollouts = [_rollout(row, largest, mean, answer) for row in best_first]
    gold = [(mark, "gold", "") for mark in _drawable(json.loads(first["gold_marks"]), "gold")]
    said = [
        (mark, "said", row["index"])
        for row in best_first
        for mark in _drawable(json.loads(row["marks"]), "said")
    ]
    judged = [row["correct"] for row in best_first if row.get("correct") is not None]
    turns = json.loads(first.get("turns") or "null") or [["", first["prompt"]]]
    return {
        "step": first["step"], "phase": first["phase"], "task": first["task"], "id": first["id"],
        "turns": [{"role": role, "text": clip(text)} for role, text in turns],
        "answer": clip(first["answer"]),
        "media": [_media(item, budget, i) for i, item in enumerate(first["media"][:8], start=1)],
        "marks": [*said, *gold],
        "rollouts": rollouts,
        "parts": list({name: 0 for rollout in rollouts for name in rollout["raw"]}),
        "right": sum(judged) if judged else None,
        "low": min(row["reward"] for row in rows), "high": max(row["reward"] for row in rows),
        "left_out": max(len(rows) - MAX_ROLLOUTS, 0),
    }  # fmt: skip


def _drawable(marks: Sequence[Card], kind: str) -> Iterator[Card]:
    """Marks with masks as pictures; those that cannot be drawn are left out."""
    for mark in marks:
        if "rle" not in mark:
            yield mark
        elif uri := drawn_mask(mark["rle"], kind):
            yield {"uri": uri, "label": mark["label"]}


def _rollout(row: dict[str, Any], largest: float, mean: float, gold: Any) -> Card:
    spans = json.loads(row["spans"]) or [[row["completion"], row["advantage"]]]
    scale = max([largest, *(abs(span[1]) for span in spans)])
    raw = {
        name.removeprefix(REWARD): value
        for name, value in row.items()
        if name.startswith((REWARD, PART)) and value is not None
    }
    verdict = json.loads(row.get("verdict") or "null")
    known = ("index", "reward", "advantage", "length", "finish", "source", "entropy", "logp")
    return {
        **{name: row[name] for name in known},
        "correct": row.get("correct"),
        "raw": raw,
        "verdict": verdict and _shown_verdict(verdict),
        "flags": _flags(row, raw, verdict, mean, gold),
        "pieces": [_piece(piece, scale) for piece in _pieces(spans, row["completion"], verdict)],
    }


def _shown_verdict(verdict: dict[str, Any]) -> Card:
    extracted = verdict.get("extracted")
    text = extracted if isinstance(extracted, str) else "" if extracted is None else json.dumps(extracted)
    return {"extracted": text[:MAX_READ], "reason": str(verdict.get("reason") or "")[:MAX_READ]}


def _flags(row: Card, raw: Card, verdict: Card | None, mean: float, gold: Any) -> list[str]:
    """The filters that keep the rollout."""
    values = [value for name, value in raw.items() if not name.startswith(PART)]
    unread = verdict is not None and verdict.get("extracted") is None
    facts = {
        "underpaid": bool(row.get("correct")) and row["reward"] < mean,
        "ungrounded": bool(row.get("correct")) and _lacks(row["completion"], gold),
        "disagree": any(value > 0 for value in values) and any(value <= 0 for value in values),
        "failed": row["finish"] != "stop" or unread,
    }
    return [name for name, holds in facts.items() if holds]


def _lacks(text: str, gold: Any) -> bool:
    """Whether a gold answer that is a text or a number stands nowhere in a response."""
    if isinstance(gold, bool) or not isinstance(gold, (str, int, float)):
        return False
    return str(gold).strip().casefold() not in text.casefold()


def _pieces(spans: Sequence[Sequence[Any]], completion: str, verdict: Card | None) -> Iterator[Card]:
    """The text in pieces that look alike: one advantage, one shift, read by the reward or not."""
    whole = "".join(span[0] for span in spans)
    start, end = (verdict or {}).get("span") or (0, 0)
    begin = completion.find(whole) if end > start else -1
    edges = (start - begin, end - begin) if begin >= 0 else (0, 0)
    at, left = 0, MAX_TEXT
    for span in spans:
        text, advantage, (shift, sampled) = span[0], span[1], _rest(span)
        cuts = sorted({0, len(text), *(edge - at for edge in edges if 0 < edge - at < len(text))})
        for a, b in itertools.pairwise(cuts):
            read = edges[0] <= at + a < edges[1]
            kind = "read" if read else "" if sampled else "reply"
            shown = text[a:b][:left]
            yield {"text": shown, "advantage": advantage, "shift": shift, "kind": kind}
            left -= len(shown)
        at += len(text)
        if left <= 0 and len(whole) > MAX_TEXT:
            rest = f" [... {len(whole) - MAX_TEXT} more characters]"
            yield {"text": rest, "advantage": 0.0, "shift": None, "kind": ""}
            return


def _rest(span: Sequence[Any]) -> tuple[float | None, bool]:
    """(shift, sampled) of a span; older files have neither."""
    return (span[2], bool(span[3])) if len(span) > 3 else (None, True)


def _piece(piece: Card, scale: float) -> Card:
    shift = piece["shift"]
    return {
        **piece,
        "advantage_style": tint(piece["advantage"] / scale),
        "shift_style": "" if shift is None else tint(shift / MAX_SHIFT),
    }


def clip(text: str) -> str:
    """The text, or its beginning and the number of characters left out."""
    return (
        text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} [... {len(text) - MAX_TEXT} more characters]"
    )


def tint(share: float) -> str:
    """CSS for an advantage as a share of the largest one: green above zero, red below, stronger farther from
    it."""
    if not share:
        return ""
    colour = "34,160,90" if share > 0 else "215,60,60"
    return f"background:rgba({colour},{min(abs(share), 1.0) * 0.3:.2f})"


def _media(item: dict[str, Any], budget: list[int], place: int) -> Card:
    """A picture for the page: a data URI, or None where the page has enough of them."""
    picture = open_picture(item["bytes"])
    data = encode(picture, STRIP_SIDE if item["kind"] == "video" else PICTURE_SIDE)
    budget[0] -= len(data)
    mime = "image/png" if data.startswith(b"\x89PNG") else "image/jpeg"
    uri = f"data:{mime};base64,{base64.b64encode(data).decode()}" if budget[0] >= 0 else None
    return {
        **{name: item[name] for name in ("kind", "width", "height")},
        "uri": uri,
        "times": item.get("times") or [],
        "caption": f"{item['kind']} {place}, {item['width']} x {item['height']} pixels",
    }
