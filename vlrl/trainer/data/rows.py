"""Rows of a phase's sources, their validation before a model is loaded, and the prompts of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vlrl.plugins.registry import ConfigError, home_of
from vlrl.plugins.stages import Source
from vlrl.trainer.data.bad_rows import reason_of
from vlrl.trainer.data.units import to_model_coordinates
from vlrl.trainer.phase import PhasePlan, applies
from vlrl.types import MediaError, Prompt, Row, RowError

if TYPE_CHECKING:
    from vlrl.policy.policy import Policy


def check_rows(phases: Sequence[PhasePlan], limit: int = 2000) -> None:
    """Validate the first rows of every source of every phase: question, media, answer, a reward that scores
    them. Raises ConfigError."""
    for phase in phases:
        for split in ("train", "heldout"):
            for slot, rows in phase.rows(split).items():
                for i in range(min(limit, len(rows))):
                    check_row(rows[i], f"data.{split}.{slot}", phase, split)


class PromptTooLongError(ConfigError):
    """A prompt is longer than `max_prompt_tokens`."""


def check_lengths(policy: Policy, phase: PhasePlan, limit: int = 64) -> None:
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
    and
    whatever templates raise."""
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
        raise PromptTooLongError(
            f"{where}: the prompt of row {prompt.row.id!r} has {length} tokens, max_prompt_tokens is {most}; "
            "raise it, lower the policy's max_pixels, or drop the row (prompts are never truncated)"
        )
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
        kind = "images" if row.images else "videos"
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
