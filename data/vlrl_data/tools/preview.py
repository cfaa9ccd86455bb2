"""Rows as one self-contained HTML page: the prompt, images with the gold boxes drawn on them, video frames,
the answer."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from PIL import Image

from vlrl.pages.kit import render
from vlrl.services.waveform import waveform
from vlrl.types import Clip, Media, MediaError, Prompt, Row, Sound
from vlrl_data.tools.convert import record_of

SHOWN_SIDE = 640  # pixels of the longer side of a shown image
SHOWN_FRAMES = 8


def page(
    rows: Iterable[Row],
    title: str,
    about: str = "",
    template: Callable[[Row], Prompt] | None = None,
    unusable: Sequence[tuple[str, str]] = (),
) -> str:
    """HTML of rows; with a prompt template, the prompts that it makes. `unusable`: (place, reason) of rows
    that cannot be used."""
    shown = [entry(row, template) for row in rows]
    return render("preview", title, "vlrl data preview", about=about, rows=shown, unusable=unusable)


def evenly(items: Sequence[Any], count: int) -> list[Any]:
    """`count` of the items, evenly spaced, first and last included."""
    if len(items) <= count:
        return [items[i] for i in range(len(items))]
    return [items[round(i * (len(items) - 1) / max(count - 1, 1))] for i in range(count)]


def entry(row: Row, template: Callable[[Row], Prompt] | None = None) -> dict[str, Any]:
    """The values that the page shows of a row."""
    marks = marks_of(row.answer)
    media = [medium_entry(medium, marks if i == 0 else [], i) for i, medium in enumerate(row.media)]
    record = record_of(Row(row.id, row.question, meta=row.meta))
    return {
        "id": row.id,
        "task": row.task,
        "tags": [
            _count(row.images, "image"),
            _count(row.videos, "video"),
            _count(row.audios, "sound"),
            *row.rewards,
        ],
        "media": media,
        "turns": turns_of(row, template),
        "answer": row.answer
        if isinstance(row.answer, str)
        else json.dumps(row.answer, ensure_ascii=False, default=str),
        "target": row.target,
        "meta": json.dumps(record.get("meta"), ensure_ascii=False, indent=1, default=str) if row.meta else "",
    }


def _count(media: Sequence[Media], name: str) -> str:
    return f"{len(media)} {name}{'s' * (len(media) > 1)}" if media else ""


def turns_of(row: Row, template: Callable[[Row], Prompt] | None) -> list[dict[str, str]]:
    """The conversation as text, with markers in the places of media."""
    if template is None:
        turns = [{"role": str(m["role"]), "text": _plain(m["content"])} for m in row.messages]
        system = [{"role": "system", "text": row.system}] if row.system else []
        choices = "".join(
            f"\n{letter}. {text}" for letter, text in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", row.choices)
        )
        return system + (turns or [{"role": "user", "text": row.question + choices}])
    prompt = template(row)
    opening = [{"role": "assistant (opening)", "text": prompt.prefix}] if prompt.prefix else []
    return [{"role": str(m["role"]), "text": _plain(m["content"])} for m in prompt.messages] + opening


def _plain(content: str | Sequence[Mapping[str, Any]]) -> str:
    return (
        content
        if isinstance(content, str)
        else "".join(item.get("text", f"<{item['type']}>") for item in content)
    )


def marks_of(answer: Any) -> list[dict[str, Any]]:
    """Boxes and points in a gold answer: [x1, y1, x2, y2], [x, y], lists of them, or mappings with a box and
    a label."""
    if isinstance(answer, Mapping):
        box = next((answer[key] for key in ("bbox_2d", "bbox", "box", "Position") if key in answer), None)
        return [mark | {"label": str(answer.get("label", ""))} for mark in marks_of(box)] if box else []
    if not isinstance(answer, (list, tuple)) or not answer or is_order(answer):
        return []
    if all(isinstance(item, (int, float)) for item in answer):
        return (
            [{"box": list(answer)}]
            if len(answer) == 4
            else [{"point": list(answer)}]
            if len(answer) == 2
            else []
        )
    return [mark for item in answer for mark in marks_of(item)]


def is_order(answer: Sequence[Any]) -> bool:
    """Whether the answer is a permutation of 1..n: the answer of a puzzle, not a box."""
    return all(isinstance(item, int) for item in answer) and sorted(answer) == list(range(1, len(answer) + 1))


def medium_entry(medium: Media, marks: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """An image with marks, a video as frames, a sound as its waveform; what cannot be read as its error."""
    try:
        loaded = medium.load()
    except MediaError as error:
        return {"error": str(error), "caption": f"{medium.kind} {index + 1}"}
    if isinstance(loaded, Clip):
        return _clip_entry(loaded, index)
    if isinstance(loaded, Sound):
        drawn = waveform(loaded.samples_T)
        size = {"size": drawn.size, "width": drawn.width, "height": drawn.height}
        caption = f"sound {index + 1}: {loaded.seconds:.2f} s, {loaded.rate} samples per second"
        return size | {"src": _uri(drawn), "marks": [], "caption": caption}
    width, height = loaded.size
    scale = min(1.0, SHOWN_SIDE / max(width, height))
    shown = (
        loaded.resize((max(1, round(width * scale)), max(1, round(height * scale)))) if scale < 1 else loaded
    )
    zoom = max(1.0, 160 / max(shown.size))
    caption = f"image {index + 1}: {width} x {height}" + (
        f", {len(marks)} mark{'s' * (len(marks) > 1)}" if marks else ""
    )
    shown_width = round(shown.width * zoom)
    unit = width / shown_width  # image pixels per pixel of the page
    size = {"size": (width, height), "width": shown_width, "height": round(shown.height * zoom)}
    return size | {
        "src": _uri(shown),
        "marks": marks,
        "caption": caption,
        "line": 3 * unit,
        "font": 14 * unit,
    }


def _clip_entry(clip: Clip, index: int) -> dict[str, Any]:
    count, height, width = clip.frames_THWC.shape[:3]
    step = max(1, -(-count // SHOWN_FRAMES))
    scale = 120 / max(height, width)
    frames = []
    for i in range(0, count, step):
        image = Image.fromarray(clip.frames_THWC[i])
        frames.append(
            {
                "src": _uri(image),
                "width": round(width * scale),
                "height": round(height * scale),
                "time": round(i / clip.fps, 2),
            }
        )
    every = f", every {step}th shown" if step > 1 else ""
    size = f"{count} frames of {width} x {height} at {clip.fps:.2f} per second"
    return {"frames": frames, "caption": f"video {index + 1}: {size}{every}"}


def _uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG" if max(image.size) <= 256 else "JPEG", quality=88)
    kind = "png" if max(image.size) <= 256 else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
