"""Rows of a phase's sources, their validation before a model is loaded, the prompts of a step, and the
coordinates of demonstrations in the units that the policy writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlrl.plugins.registry import ConfigError, home_of
from vlrl.plugins.stages import Source
from vlrl.trainer.data.bad_rows import reason_of
from vlrl.trainer.phase import PhasePlan, applies
from vlrl.types import TARGET_UNITS, CoordinateSpace, MediaError, Prompt, Row, RowError

if TYPE_CHECKING:
    from vlrl.plugins.views import PolicyView
    from vlrl.policy.policy import Policy

DECODER = json.JSONDecoder()
LENGTHS_CHECKED = 64  # rows of a source whose prompts are made before training


def check_rows(phases: Sequence[PhasePlan], limit: int = 2000) -> None:
    """Validate the first rows of every source of every phase: question, media, answer, a reward that scores
    them. Raises ConfigError."""
    for phase in phases:
        for split in ("train", "heldout"):
            for slot, rows in phase.rows(split).items():
                for i in range(min(limit, len(rows))):
                    check_row(rows[i], f"data.{split}.{slot}", phase, split)
                    if i < LENGTHS_CHECKED:
                        check_words(rows[i], f"data.{split}.{slot}", phase)


class PromptTooLongError(ConfigError):
    """A prompt is longer than `max_prompt_tokens`."""


def check_words(row: Row, where: str, phase: PhasePlan) -> None:
    """Refuse a row whose prompt has more words than `max_prompt_tokens`, before the model is loaded: no
    tokenizer joins words. Raises PromptTooLongError."""
    try:
        messages = phase.prompt_template(row).messages
    except Exception:  # a row can make a template raise anything; what it is is said when the row is drawn
        return
    words = sum(len(text.split()) for message in messages for text in _texts(message["content"]))
    if words > phase.settings.max_prompt_tokens:
        raise _too_long(row, where, f"{words} words", phase)


def _texts(content: Any) -> list[str]:
    """The texts of a message's content: a text, or parts."""
    parts = content if isinstance(content, (list, tuple)) else [{"text": content}]
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _too_long(row: Row, where: str, length: str, phase: PhasePlan) -> PromptTooLongError:
    return PromptTooLongError(
        f"{where}: the prompt of row {row.id!r} has {length}, max_prompt_tokens is "
        f"{phase.settings.max_prompt_tokens}; raise it, lower the policy's max_pixels, or drop the row "
        "(prompts are never truncated)"
    )


def check_lengths(policy: Policy, phase: PhasePlan, limit: int = LENGTHS_CHECKED) -> None:
    """Refuse rows whose prompt is longer than `max_prompt_tokens`; prompts are never truncated. Raises
    ConfigError with the row's id and length.

    A row that fails in another way is quarantined when it is drawn.
    """
    for split in ("train", "heldout"):
        for slot, rows in phase.rows(split).items():
            for i in range(min(limit, len(rows))):
                try:
                    prompt_of(policy, phase, rows[i], f"data.{split}.{slot}")
                except PromptTooLongError:
                    raise
                except Exception as error:
                    reason_of(error)


def prompt_of(policy: Policy, phase: PhasePlan, row: Row, where: str = "data.train") -> Prompt:
    """The prompt of a row that is valid, renders, decodes and fits. Raises RowError, MediaError, ConfigError,
    and whatever templates raise."""
    validate_row(row)
    row = to_model_coordinates(policy, row)
    if policy.family.special_tokens == "refuse" and (token := policy.encoder.special_in(row)):
        raise RowError(
            f"its text holds the model's special token {token!r}; remove it, or set policy.special_tokens: "
            "escape"
        )
    prompt = phase.prompt_template(row)
    length, most = len(policy.encode(prompt)), phase.settings.max_prompt_tokens
    if length > most:
        raise _too_long(prompt.row, where, f"{length} tokens", phase)
    if prompt.train is not None:
        policy.encode(prompt.train)
    return prompt


def row_fault(policy: Policy, phase: PhasePlan, row: Row) -> str:
    """Why a row cannot be used now, or ""."""
    try:
        prompt_of(policy, phase, row)
    except Exception as error:  # a row can make a chat template, a tokenizer or a decoder raise anything
        return reason_of(error)
    return ""


def validate_row(row: Row) -> None:
    """The validation of `vlrl data check`: types, texts, markers, answers of every field. Raises RowError."""
    home_of(Source, "validation").validate_row(row, "optional")


def check_row(row: Row, where: str, phase: PhasePlan, split: str = "train") -> None:
    """Raise ConfigError, with the row's id, for a row that cannot be trained on."""
    place = f"{where}: row {row.id!r}"
    try:
        validate_row(row)
        for medium in row.media:
            medium.check()
    except (RowError, MediaError) as error:
        raise ConfigError(f"{place}: {error}") from None
    if row.media and not phase.family.is_multimodal:
        kind = "images" if row.images else "videos" if row.videos else "audio"
        raise ConfigError(
            f"{place} has {kind}, and policy: {phase.family.name!r} reads no {kind}; use a vision family, or "
            "rows without media"
        )
    if not phase.rollout.samples and split == "train":
        if phase.rollout.needs_target and not row.target:
            raise ConfigError(
                f"{place} has no `target`, the demonstration that phase {phase.phase!r} learns from; fill "
                "the column, or make it from the "
                'answer: add `target: "<answer>{answer}</answer>"` to the source'
            )
        return
    if not phase.rewards:
        return
    unknown = [slot for slot in row.rewards if slot not in phase.rewards]
    if unknown:
        raise ConfigError(f"{place} names the reward {unknown[0]!r}; the config has {sorted(phase.rewards)}")
    scored = [slot for slot, reward in phase.rewards.items() if applies(slot, reward.tasks, row)]
    if not scored:
        raise ConfigError(
            f"{place} (task {row.task!r}) is scored by no reward; add its task to a reward's `tasks`: "
            f"{sorted(phase.rewards)}"
        )
    compared = [
        slot for slot in scored if phase.rewards[slot].reads_answer and phase.rewards[slot].needs_gold
    ]
    if row.answer is None and compared:
        raise ConfigError(f"{place} has no answer, which {', '.join(compared)} compare with; fill `answer`")


# --- units of demonstrations --------------------------------------------------------------------------------


def to_model_coordinates(policy: PolicyView, row: Row) -> Row:
    """The row with the coordinates of its demonstrations (`target`, `meta.demonstrations`) as the policy's
    family writes them.

    Only rows that say so, by `meta.target_units: original`, have demonstrations in pixels of the original
    picture: those of generated tasks, whose author cannot know the policy, and of files whose author says so.
    `meta.picture` is the number of the picture that is meant, from 0. Other rows are returned as they are.
    Raises RowError for other units, and for a picture that is not there.
    """
    units = row.meta.get(TARGET_UNITS, "policy")
    if units == "policy" or not row.images:
        return row
    place = row.meta.get("picture", 0)
    if units != "original" or not isinstance(place, int) or not 0 <= place < len(row.images):
        raise RowError(
            f"meta.{TARGET_UNITS} is {units!r} and meta.picture {place!r}; allowed are original or policy, "
            f"and 0 to {len(row.images) - 1}"
        )
    shown = Prompt(row, ({"role": "user", "content": [{"type": "image"} for _ in row.images]},), row.images)
    space = policy.spaces(shown)[place]
    meta = {**row.meta, TARGET_UNITS: "policy"}
    if isinstance(told := meta.get("demonstrations"), (list, tuple)):
        meta["demonstrations"] = [converted(text, space) for text in told]
    return replace(row, target=converted(row.target, space), meta=meta)


def converted(text: str, space: CoordinateSpace) -> str:
    """A text whose boxes and points, lists of four or two numbers inside of JSON, go from original pixels to
    the space's units.

    Pixels and thousandths become whole numbers, fractions have two decimals. Other numbers, other texts and
    what is no JSON stay.
    """
    out, at = [], 0
    while at < len(text):
        if text[at] in "[{":
            try:
                value, end = DECODER.raw_decode(text, at)
            except (ValueError, RecursionError):
                value, end = None, at
            if end > at:
                out.append(json.dumps(_converted(value, space), ensure_ascii=False))
                at = end
                continue
        out.append(text[at])
        at += 1
    return "".join(out)


def _converted(value: Any, space: CoordinateSpace) -> Any:
    if isinstance(value, dict):
        return {key: _converted(item, space) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) in (2, 4) and all(
        isinstance(item, (int, float)) and not isinstance(item, bool) for item in value
    ):
        digits = 2 if space.units == "unit" else None
        return [round(item, digits) for item in space.from_original(value)]
    return [_converted(item, space) for item in value]
