"""Exact prompt lengths in tokens, before training, with any Hugging Face processor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from vlrl.types import Clip, Media, Prompt, Row


class Length(NamedTuple):
    """The number of tokens of a row's prompt, its images and videos included."""

    id: str
    tokens: int


def token_count(prompt: Prompt, processor: Any) -> int:
    """The number of tokens of a prompt, exactly as the processor makes them: the media are decoded and
    processed."""
    is_processor = hasattr(processor, "tokenizer")
    text = (
        processor.apply_chat_template(
            list(prompt.messages), tokenize=False, add_generation_prompt=True, **prompt.options
        )
        + prompt.prefix
    )
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


def split_by_length(
    rows: Iterable[Row], template: Callable[[Row], Prompt], processor: Any, max_tokens: int
) -> tuple[list[Row], list[Length]]:
    """The rows whose prompt has at most `max_tokens` tokens, and the lengths of the others. Nothing is
    truncated."""
    kept: list[Row] = []
    dropped: list[Length] = []
    for row in rows:
        tokens = token_count(template(row), processor)
        if tokens <= max_tokens:
            kept.append(row)
        else:
            dropped.append(Length(row.id, tokens))
    return kept, dropped


def summary(kept: Sequence[Row], dropped: Sequence[Length], max_tokens: int) -> dict[str, Any]:
    """Counts of kept and dropped rows, and the lengths of dropped ones."""
    figures: dict[str, Any] = {"kept": len(kept), "dropped": len(dropped), "max tokens": max_tokens}
    if dropped:
        figures["longest"] = max(length.tokens for length in dropped)
        figures["rows"] = {length.id: f"{length.tokens} tokens, over {max_tokens}" for length in dropped[:50]}
    return figures
