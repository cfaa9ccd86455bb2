"""Checks of dataset rows that need no model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.registry import ConfigError
from vlrl.types import MediaError, Row

if TYPE_CHECKING:
    from vlrl.run import Run


def applies(slot: str, tasks: tuple[str, ...], row: Row) -> bool:
    """Whether a reward slot scores a row: the row names it, or names none and its task is the slot's."""
    if row.rewards:
        return slot in row.rewards
    return not tasks or row.task in tasks


def check_row(row: Row, where: str, run: Run) -> None:
    """Raise ConfigError, with the row's id, for a row that cannot be trained on."""
    place = f"{where}: row {row.id!r}"
    if not row.question and not row.messages:
        raise ConfigError(f"{place} has no question")
    for kind, media in (("image", row.images), ("video", row.videos)):
        markers = row.question.count(f"<{kind}>")
        if markers and markers != len(media):
            raise ConfigError(f"{place} has {markers} <{kind}> markers and {len(media)} {kind}s; give one {kind} per marker")
        for medium in media:
            try:
                medium.check()
            except MediaError as error:
                raise ConfigError(f"{place}: {error}") from None
    if not run.strategy.samples:
        if not row.target:
            raise ConfigError(f"{place} has no `target`, which phase {run.phase!r} learns from; fill it or use another strategy")
        return
    unknown = [slot for slot in row.rewards if slot not in run.rewards]
    if unknown:
        raise ConfigError(f"{place} names the reward {unknown[0]!r}; the config has {sorted(run.rewards)}")
    scored = [slot for slot, reward in run.rewards.items() if applies(slot, reward.tasks, row)]
    if not scored:
        raise ConfigError(f"{place} (task {row.task!r}) is scored by no reward; add its task to a reward's `tasks`: {sorted(run.rewards)}")
    if row.answer is None and any(run.rewards[slot].reads_answer for slot in scored):
        raise ConfigError(f"{place} has no answer, which {', '.join(s for s in scored if run.rewards[s].reads_answer)} compare with; fill `answer`")
