"""From raw rows to prompts: the suite's wording and media, or a variant of it for a floor or an audit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vlrl.eval.expressions import evaluate, render
from vlrl.eval.media import as_media
from vlrl.eval.rows import Rows
from vlrl.registry import ConfigError, suggest
from vlrl.types import Media, Message, Prompt, Row

THINKING = "First reason inside <think> </think> tags, then give the final answer inside <answer> </answer> tags."
PROTOCOLS = ("direct", "thinking")


@dataclass(frozen=True)
class Asked:
    """One row as it is asked: its prompt, and the row whose gold answer counts (other than the raw one where options were moved)."""

    id: str
    fields: dict[str, Any]
    prompt: Prompt


def media_of(rows: Rows, fields: Any) -> tuple[tuple[Media, ...], tuple[Media, ...]]:
    """(pictures, videos) of a row, in the order of the suite's expressions. Raises MediaError."""
    spec = rows.suite.media
    images = [m for text in spec.images for m in as_media(evaluate(text, fields), rows.folder, "image")]
    videos = [m for text in spec.videos for m in as_media(evaluate(text, fields), rows.folder, "video", spec.frames)]
    return tuple(images), tuple(videos)


def make_prompt(row: Row, text: str, protocol: str) -> Prompt:
    """Media first, then the text; the thinking protocol adds its instruction."""
    words = f"{text}\n{THINKING}" if protocol == "thinking" else text
    content = [{"type": "image"} for _ in row.images] + [{"type": "video"} for _ in row.videos] + [{"type": "text", "text": words}]
    system: list[Message] = [{"role": "system", "content": row.system}] if row.system else []
    return Prompt(row, (*system, {"role": "user", "content": content}), row.images, row.videos)


def _plain(rows: Rows, number: int, shift: int) -> tuple[Any, Any]:
    return rows.fields[number], media_of(rows, rows.fields[number])


def _blind(rows: Rows, number: int, shift: int) -> tuple[Any, Any]:
    return rows.fields[number], ((), ())


def _wrong_picture(rows: Rows, number: int, shift: int) -> tuple[Any, Any]:
    """The media of the next row of another cluster; a suite whose rows all share one is refused."""
    suite, count = rows.suite, len(rows)
    own = suite.cluster_of(rows.fields[number], number)
    for step in range(1, count):
        other = (number + step) % count
        if suite.cluster_of(rows.fields[other], other) != own:
            return rows.fields[number], media_of(rows, rows.fields[other])
    raise ConfigError(f"suite {suite.name!r}: variant wrong_picture needs rows with different media, and all {count} share one")


def _permuted(rows: Rows, number: int, shift: int) -> tuple[Any, Any]:
    from vlrl.eval.permute import rotated

    return rotated(rows.suite, rows.fields[number], shift), media_of(rows, rows.fields[number])


VARIANTS: dict[str, Callable[[Rows, int, int], tuple[Any, Any]]] = {
    "plain": _plain,
    "blind": _blind,
    "wrong_picture": _wrong_picture,
    "permuted": _permuted,
}


def ask(rows: Rows, number: int, variant: str = "plain", protocol: str = "direct", text: str | None = None) -> Asked:
    """Row `number` as a prompt. `variant` may carry a count, as in "permuted1": the options rotated by one. Raises ConfigError, MediaError."""
    name = variant.rstrip("0123456789")
    if name not in VARIANTS:
        raise ConfigError(f"variant: no variant {variant!r}.{suggest(name, VARIANTS)}")
    fields, (images, videos) = VARIANTS[name](rows, number, int(variant[len(name) :] or 1))
    suite = rows.suite
    identity = suite.identity(rows.fields[number], number)
    words = suite.text(fields) if text is None else text
    row = Row(
        id=f"{suite.name}/{identity}",
        question=words,
        answer=suite.gold(fields),
        images=images,
        videos=videos,
        choices=suite.options(fields),
        task=suite.name,
        system=render(suite.system, fields) if suite.system else "",
    )
    return Asked(identity, fields, make_prompt(row, words, protocol))


def sample_seed(seed: int, suite: str, identity: str, sample: int) -> int:
    """The random stream of one sample: a function of what it is, not of when or where it is drawn (31 bits)."""
    digest = hashlib.sha256(f"{seed}\x00{suite}\x00{identity}\x00{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "little") & 0x7FFFFFFF
