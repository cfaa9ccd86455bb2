"""Statistics of a dataset: tasks, answers, media, sizes, lengths, pass rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vlrl.types import Clip, Media, Row
from vlrl_data.row_builder import size_of


def frame_size(medium: Media) -> tuple[int, int]:
    """Width and height of an image, or of a video's frames."""
    if medium.kind == "image":
        return size_of(medium)
    clip = medium.load()
    assert isinstance(clip, Clip), clip
    height, width = clip.frames_THWC.shape[1:3]
    return width, height


def answer_kind(answer: Any) -> str:
    """box, boxes, list, mapping, int, number, letter, word, text or none."""
    if isinstance(answer, bool) or answer is None:
        return "none" if answer is None else "bool"
    if isinstance(answer, (int, float)):
        return "int" if isinstance(answer, int) else "number"
    if isinstance(answer, Mapping):
        return "mapping"
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        numbers = [item for item in answer if isinstance(item, (int, float))]
        return "box" if len(numbers) == len(answer) == 4 else "boxes" if answer and not numbers else "list"
    text = str(answer).strip()
    if _number(text):
        return "int" if text.lstrip("-+").isdigit() else "number"
    return "letter" if len(text) == 1 and text.isalpha() else "word" if len(text.split()) == 1 else "text"


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Minimum, quartiles, maximum and mean."""
    if not len(values):
        return {}
    points = np.percentile(values, [0, 25, 50, 75, 100]).round(2).tolist()
    return dict(zip(("min", "25%", "median", "75%", "max"), points)) | {
        "mean": round(float(np.mean(values)), 2)
    }


def stats(rows: Iterable[Row], media: bool = True) -> dict[str, Any]:
    """Counts and quartiles; with `media` false the images are not opened."""
    rows = list(rows)
    counters: dict[str, Counter[str]] = {
        name: Counter() for name in ("task", "answer", "media", "rewards", "sizes")
    }
    pixels: list[int] = []
    for row in rows:
        counters["task"][row.task] += 1
        counters["answer"][answer_kind(row.answer)] += 1
        counters["media"][
            f"{len(row.images)} images, {len(row.videos)} videos"
            + (f", {len(row.audios)} sounds" if row.audios else "")
        ] += 1
        for medium in row.images + row.videos if media else ():
            width, height = frame_size(medium)
            pixels.append(width * height)
            counters["sizes"][f"{width} x {height}"] += 1
        for slot in row.rewards:
            counters["rewards"][slot] += 1
    figures: dict[str, Any] = {"rows": len(rows), "ids": len({row.id for row in rows})}
    figures |= {name: dict(counter.most_common(20)) for name, counter in counters.items() if counter}
    figures["question characters"] = quartiles([len(row.question) for row in rows])
    figures["choices"] = quartiles([len(row.choices) for row in rows if row.choices])
    figures["pixels"] = quartiles(pixels)
    rates = [float(row.meta["pass_rate"]) for row in rows if "pass_rate" in row.meta]
    figures["pass rate"] = quartiles(rates)
    most = Counter(str(row.answer) for row in rows).most_common(1)
    figures["most common answer"] = {most[0][0][:60]: round(most[0][1] / len(rows), 3)} if most else {}
    return {name: value for name, value in figures.items() if value not in ({}, [])}
