"""Each reward tried on the rows' own gold answers, before a model is loaded: a gold that a reward cannot read
is found here."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Sequence
from typing import Any

from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import Reward
from vlrl.trainer.phase import PhasePlan, applies
from vlrl.types import Group, Prompt, Rollout, Row

log = logging.getLogger("vlrl")

TRIED = 32  # rows of a source, spread evenly
SECONDS = 1.0  # for all sources together; what is left is tried by the run itself


def check_golds(phases: Sequence[PhasePlan]) -> None:
    """Score each tried row's own gold answer with every reward that reads it.

    Only whether the reward raises counts, not its score. Rewards that need a loaded run, or that await a
    service, are left out. Raises ConfigError where more than `error_limit` of a source's tried rows cannot be
    scored; fewer are one warning.
    """
    until = time.monotonic() + SECONDS
    for phase in phases:
        for split, sources in phase.read_rows.items():
            for slot, rows in sources.items():
                if phase.rewards and (split == "heldout" or phase.rollout.samples):
                    _check_source(phase, rows, f"data.{split}.{slot}", until)


def _check_source(phase: PhasePlan, rows: Sequence[Row], where: str, until: float) -> None:
    tried, broken = 0, []
    for place in range(0, len(rows), max(1, len(rows) // TRIED)):
        if time.monotonic() > until:
            break
        tried += 1
        if found := _broken(phase, rows[place]):
            broken.append(f"{where}: row {rows[place].id!r}: {found}")
    if broken and len(broken) > phase.settings.error_limit * tried:
        more = f" ({len(broken)} of {tried} rows tried)" if len(broken) > 1 else ""
        raise ConfigError(
            f"{broken[0]}{more}; correct `answer`, or leave the reward out for these rows by its `tasks`"
        )
    if broken:
        log.warning(
            "%s (%d of %d rows tried); such rollouts are dropped in training", broken[0], len(broken), tried
        )


def _broken(phase: PhasePlan, row: Row) -> str:
    """The reason why a reward cannot read the row's gold answer, "" if all can."""
    for slot, reward in phase.rewards.items():
        if (
            not reward.reads_answer
            or not reward.needs_gold
            or not applies(slot, reward.tasks, row)
            or not _can_try(reward)
        ):
            continue
        group = Group(Prompt(row, ()), [_demonstration(row)], id="gold")
        try:
            _close(reward.score_group(group))
        except ValueError as error:  # what verifiers raise for a gold that they cannot read
            return f"reward {slot!r} cannot read the answer {_short(row.answer)}: {_one_line(error)}"
        except Exception as error:  # perhaps because there is no run yet
            log.debug("reward %r raised on the answer of row %r: %s", slot, row.id, _one_line(error))
    return ""


def _can_try(reward: Reward) -> bool:
    """Whether a reward needs nothing but the rollout: no service, and nothing that other plug-ins write."""
    waits = any(map(inspect.iscoroutinefunction, (type(reward).__call__, type(reward).score_group)))
    return not waits and not reward.requires


def _demonstration(row: Row) -> Rollout:
    answer = row.answer if isinstance(row.answer, str) else repr(row.answer)
    return Rollout(
        prompt=Prompt(row, ()),
        ids=[0],
        text=row.target or f"<answer>{answer}</answer>",
        logp=[0.0],
        finish="stop",
    )


def _close(values: Any) -> None:
    """A result that has to be awaited is closed: its service is not called before the run starts."""
    for value in values if isinstance(values, (list, tuple)) else [values]:
        if inspect.iscoroutine(value):
            value.close()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:200]
