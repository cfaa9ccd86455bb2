"""Exact prompt lengths in tokens, before training, with any Hugging Face processor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from vlrl.types import Clip, Media, Prompt, Row


class Length(NamedTuple):
    """Tokens of a row's prompt, its pictures and videos written out."""

    id: str
    tokens: int


def token_count(prompt: Prompt, processor: Any) -> int:
    """Tokens of a prompt, exactly as the processor makes them: the media are decoded and processed."""
    is_processor = hasattr(processor, "tokenizer")
    text = processor.apply_chat_template(list(prompt.messages), tokenize=False, add_generation_prompt=True, **prompt.options) + prompt.prefix
    if not is_processor:
        return len(processor(text, add_special_tokens=False)["input_ids"])
    media: dict[str, Any] = {}
    if prompt.images:
        media["images"] = [medium.load() for medium in prompt.images]
    if prompt.videos:
        media["videos"] = [_frames(medium) for medium in prompt.videos]
        media["videos_kwargs"] = {"do_sample_frames": False}
    found = processor(text=[text], **media)["input_ids"][0]
    return len(found)


def _frames(medium: Media) -> Any:
    loaded = medium.load()
    assert isinstance(loaded, Clip), loaded
    return loaded.frames_THWC.transpose(0, 3, 1, 2)


def over_budget(rows: Iterable[Row], scaffold: Callable[[Row], Prompt], processor: Any, most: int) -> tuple[list[Row], list[Length]]:
    """Rows whose prompt has at most `most` tokens, and the lengths of the others. Nothing is cut."""
    kept: list[Row] = []
    dropped: list[Length] = []
    for row in rows:
        tokens = token_count(scaffold(row), processor)
        if tokens <= most:
            kept.append(row)
        else:
            dropped.append(Length(row.id, tokens))
    return kept, dropped


def summary(kept: Sequence[Row], dropped: Sequence[Length], most: int) -> dict[str, Any]:
    """Figures of a cut."""
    told: dict[str, Any] = {"kept": len(kept), "dropped": len(dropped), "max tokens": most}
    if dropped:
        told["longest"] = max(length.tokens for length in dropped)
        told["rows"] = {length.id: f"{length.tokens} tokens, over {most}" for length in dropped[:50]}
    return told
