"""Rows of a phase's sources, their validation before a model is loaded, and the prompts of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vlrl.plugins.registry import ConfigError, home_of
from vlrl.plugins.stages import Source
from vlrl.trainer.data.bad_rows import reason_of
from vlrl.trainer.data.units import in_policy_units
from vlrl.trainer.phase import applies
from vlrl.types import MediaError, Prompt, Row, RowError

if TYPE_CHECKING:
    from vlrl.plugins.contexts import RunContext


def read_rows(run: RunContext, split: str) -> dict[str, Sequence[Row]]:
    """Rows of each source ("train" or "heldout") of the current phase; training rows go through the `select`
    chain.

    Raises ConfigError for an empty source.
    """
    key = f"{run.phase_index}/{split}"
    if key in run.cached_rows:
        return run.cached_rows[key]
    out: dict[str, Sequence[Row]] = {}
    for slot, source in getattr(run.current, split).items():
        rows: Any = source()
        rows = rows if isinstance(rows, Sequence) else list(rows)
        if split == "train":
            for select in run.current.maps["select"].values():
                rows = select(rows)
        if not len(rows):
            raise ConfigError(f"data.{split}.{slot}: no rows are left")
        out[slot] = rows
    run.cached_rows[key] = out
    return out


def heldout_by_task(run: RunContext) -> dict[str, list[Row]]:
    """Held-out rows of the current phase, by task."""
    by_task: dict[str, list[Row]] = {}
    for rows in read_rows(run, "heldout").values():
        for row in rows:
            by_task.setdefault(row.task, []).append(row)
    return by_task


def check_rows(run: RunContext, limit: int = 2000) -> None:
    """Validate the first rows of every source of every phase: question, media, answer, a reward that scores
    them. Raises ConfigError."""
    before = run.phase_index
    for index in range(len(run.phases)):
        run.use(index)
        for split in ("train", "heldout"):
            for slot, rows in read_rows(run, split).items():
                for i in range(min(limit, len(rows))):
                    check_row(rows[i], f"data.{split}.{slot}", run, split)
    run.use(before)


class PromptTooLongError(ConfigError):
    """A prompt is longer than `max_prompt_tokens`."""


def check_lengths(run: RunContext, limit: int = 64) -> None:
    """Refuse rows whose prompt is longer than `max_prompt_tokens`; prompts are never truncated. Raises
    ConfigError with the row's id and length.

    A row that fails in another way is quarantined when it is drawn.
    """
    for split in ("train", "heldout"):
        for slot, rows in read_rows(run, split).items():
            for i in range(min(limit, len(rows))):
                try:
                    prompt_of(run, rows[i], f"data.{split}.{slot}")
                except PromptTooLongError:
                    raise
                except Exception as error:
                    reason_of(error)


def usable_prompts(run: RunContext, rows: Sequence[Row]) -> list[Prompt]:
    """Prompts of the rows of a step. A row that cannot be used, for whatever reason, is left out, counted
    (`data/dropped`) and quarantined.

    Raises BadRowsError once too many rows are left out.
    """
    prompts = []
    for row in rows:
        run.bad_rows.drawn += 1
        try:
            prompts.append(prompt_of(run, row))
        except Exception as error:  # a row can make a chat template, a tokenizer or a decoder raise anything
            reason = reason_of(error)
            run.stats.count({"data/dropped": 1.0})
            run.bad_rows.add(run, row, reason)
    return prompts


def prompt_of(run: RunContext, row: Row, where: str = "data.train") -> Prompt:
    """The prompt of a row that is valid, renders, decodes and fits. Raises RowError, MediaError, ConfigError,
    and whatever templates raise."""
    validate_row(row)
    row = in_policy_units(run, row)
    if run.policy.family.special_tokens == "refuse" and (token := run.policy.encoder.special_in(row)):
        raise RowError(
            f"its text holds the model's special token {token!r}; remove it, or set policy.special_tokens: "
            "escape"
        )
    prompt = run.prompt_template(row)
    check_length(run, prompt, where)
    if prompt.train is not None:
        run.policy.encode(prompt.train)
    return prompt


def row_fault(run: RunContext, row: Row) -> str:
    """Why a row cannot be used now, or ""."""
    try:
        prompt_of(run, row)
    except Exception as error:  # as above
        return reason_of(error)
    return ""


def check_length(run: RunContext, prompt: Prompt, where: str = "data.train") -> None:
    """Refuse a prompt longer than `max_prompt_tokens`. Raises PromptTooLongError with the row's id and
    length."""
    length = len(run.policy.encode(prompt))
    if length > run.settings.max_prompt_tokens:
        raise PromptTooLongError(
            f"{where}: the prompt of row {prompt.row.id!r} has {length} tokens, max_prompt_tokens is "
            f"{run.settings.max_prompt_tokens}; "
            "raise it, lower the policy's max_pixels, or drop the row (prompts are never truncated)"
        )


def validate_row(row: Row) -> None:
    """The validation of `vlrl data check`: types, texts, markers, answers of every field. Raises RowError."""
    home_of(Source, "validation").validate_row(row, "optional")


def check_row(row: Row, where: str, run: RunContext, split: str = "train") -> None:
    """Raise ConfigError, with the row's id, for a row that cannot be trained on."""
    place = f"{where}: row {row.id!r}"
    try:
        validate_row(row)
        for medium in row.media:
            medium.check()
    except (RowError, MediaError) as error:
        raise ConfigError(f"{place}: {error}") from None
    if not run.rollout.samples and split == "train":
        if run.rollout.needs_target and not row.target:
            raise ConfigError(
                f"{place} has no `target`, the demonstration that phase {run.phase!r} learns from; fill "
                "the column, or make it from the "
                'answer: add `target: "<answer>{answer}</answer>"` to the source'
            )
        return
    if not run.rewards:
        return
    unknown = [slot for slot in row.rewards if slot not in run.rewards]
    if unknown:
        raise ConfigError(f"{place} names the reward {unknown[0]!r}; the config has {sorted(run.rewards)}")
    scored = [slot for slot, reward in run.rewards.items() if applies(slot, reward.tasks, row)]
    if not scored:
        raise ConfigError(
            f"{place} (task {row.task!r}) is scored by no reward; add its task to a reward's `tasks`: "
            f"{sorted(run.rewards)}"
        )
    compared = [slot for slot in scored if run.rewards[slot].reads_answer and run.rewards[slot].needs_gold]
    if row.answer is None and compared:
        raise ConfigError(f"{place} has no answer, which {', '.join(compared)} compare with; fill `answer`")
