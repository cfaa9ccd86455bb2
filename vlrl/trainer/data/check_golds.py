"""Each reward tried on the rows' own gold answers, before a model is loaded: a gold that a reward cannot
read, a reward that raises, hangs or returns no number, one that does not pay the gold as the prompt asks for
it."""

from __future__ import annotations

import inspect
import logging
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.plugins.function_reward import FunctionReward
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stage import BeforeSetupError
from vlrl.plugins.stages import Reward
from vlrl.services.deadline import OverdueError, deadline
from vlrl.services.failures import is_users, user_place
from vlrl.trainer.phase import PhasePlan, applies
from vlrl.types import Group, Prompt, Rollout, Row

log = logging.getLogger("vlrl")

TRIED = 32  # rows of a source, spread evenly
SECONDS = 1.0  # for all sources together; what is left is tried by the run itself
DEADLINE = 20.0  # seconds of one row, with the imports that its rewards make
TAGS = "<answer>{}</answer>"
FORMS = {
    "<answer>": TAGS,
    "\\boxed{": "\\boxed{{{}}}",
    '{"answer"': '{{"answer": "{}"}}',
}  # asked for: written


def check_golds(phases: Sequence[PhasePlan]) -> None:
    """Score each tried row's own gold answer, written as the prompt asks for it, with every reward.

    Shipped rewards are tried on the answers that they read. Rewards that need a loaded run, or that await a
    service, are left out. One warning names a reward that pays none of the golds because the prompt asks for
    no form of the answer. Raises ConfigError where more than `error_limit` of a source's tried rows cannot be
    scored (fewer are one warning), and for a row that takes longer than `DEADLINE` seconds.
    """
    until = time.monotonic() + SECONDS
    for phase in phases:
        for split, sources in phase.read_rows.items():
            for slot, rows in sources.items():
                if phase.rewards and (split == "heldout" or phase.rollout.samples):
                    _check_source(phase, rows, f"data.{split}.{slot}", until)


@dataclass
class Tried:
    """What a row's golds showed: `fault`, the reason why a reward cannot score them ("" if all can);
    `unpaid`, outcome reward -> the gold's text that it pays in tags, and not in the form of the prompt."""

    fault: str = ""
    unpaid: dict[str, str] = field(default_factory=dict)


def _check_source(phase: PhasePlan, rows: Sequence[Row], where: str, until: float) -> None:
    tried, broken = 0, []
    unpaid: list[dict[str, str]] = []
    for place in range(0, len(rows), max(1, len(rows) // TRIED)):
        if time.monotonic() > until:
            break
        tried += 1
        found = _try_within(phase, rows[place], where)
        unpaid.append(found.unpaid)
        if found.fault:
            broken.append(f"{where}: row {rows[place].id!r}: {found.fault}")
    if broken and len(broken) > phase.settings.error_limit * tried:
        more = f" ({len(broken)} of {tried} rows tried)" if len(broken) > 1 else ""
        raise ConfigError(
            f"{broken[0]}{more}; correct `answer` or the reward, or leave the reward out for these rows by "
            "its `tasks`"
        )
    if broken:
        log.warning(
            "%s (%d of %d rows tried); such rollouts are dropped in training", broken[0], len(broken), tried
        )
    for slot in unpaid[0] if unpaid and all(unpaid) else ():
        log.warning(
            "%s: reward %r pays no right answer that is written as the prompt asks: %r scores below %g, in "
            "<answer> tags it is paid; prompt_template.style=answer asks for the tags",
            where, slot, unpaid[0][slot], phase.rewards[slot].correct_at,
        )  # fmt: skip


def _try_within(phase: PhasePlan, row: Row, where: str) -> Tried:
    """`_try` with a deadline, since a reward of the user's may never return. Raises ConfigError after
    `DEADLINE` seconds, with the line that it is at."""
    tried = Tried()
    try:
        with deadline(DEADLINE):
            _try(phase, row, tried)
    except OverdueError as error:
        raise ConfigError(
            f"{where}: row {row.id!r}: reward {tried.fault!r} has not returned after {DEADLINE:g} s on the "
            f"row's own answer{f' (at {error})' if str(error) else ''}; every rollout would wait as long: "
            "make it faster, or async with a timeout"
        ) from None
    return tried


def _try(phase: PhasePlan, row: Row, tried: Tried) -> None:
    """Fill `tried`. Until a reward returned, `fault` is its slot."""
    form = _form(phase, row)
    outcome = phase.outcome_slots(row)[:1]
    for slot, reward in phase.rewards.items():
        users = isinstance(reward, FunctionReward) or is_users(_file(reward))
        reads = reward.reads_answer and reward.needs_gold
        if not (users or reads) or not applies(slot, reward.tasks, row) or not _can_try(reward):
            continue
        tried.fault = slot
        score, fault = _score(slot, reward, row, form, users)
        if fault:
            tried.fault = fault
            return
        looked = [slot] == outcome and reads and form != TAGS and not row.target
        if looked and not _paid(reward, score) and _paid(reward, _score(slot, reward, row, TAGS, users)[0]):
            tried.unpaid[slot] = form.format(_text(row))
    tried.fault = ""


def _paid(reward: Reward, score: float | None) -> bool:
    return score is not None and score >= reward.correct_at - 1e-9


def _score(slot: str, reward: Reward, row: Row, form: str, users: bool) -> tuple[float | None, str]:
    """(the score of the row's gold answer, "") or (None, why there is none; "" where that is no fault)."""
    group = Group(Prompt(row, ()), [_demonstration(row, form)], id="gold")
    try:
        values: Any = reward.score_group(group)
    except ValueError as error:  # what verifiers raise for a gold that they cannot read
        if users and user_place(error):
            return None, _raised(slot, row, error)
        return None, f"reward {slot!r} cannot read the answer {_short(row.answer)}: {_one_line(error)}"
    except (Exception, SystemExit) as error:  # of any kind: it is the user's code
        if users and not isinstance(error, BeforeSetupError):
            return None, _raised(slot, row, error)
        log.debug("reward %r raised on the answer of row %r: %s", slot, row.id, _one_line(error))
        return None, ""
    if _close(values):
        return None, ""
    return _number(slot, reward, values)


def _raised(slot: str, row: Row, error: BaseException) -> str:
    place = user_place(error)
    return (
        f"reward {slot!r} raised on the row's own answer {_short(row.answer)}: {_one_line(error)}"
        f"{f' ({place})' if place else ''}"
    )


def _number(slot: str, reward: Reward, values: Any) -> tuple[float | None, str]:
    """(the one score, "") or (None, what was returned in its place)."""
    at = f" ({_place(reward)})" if _place(reward) else ""
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != 1:
        return (
            None,
            f"reward {slot!r} returned {_short(values)} for a group of 1; return a list of scores{at}",
        )
    value: Any = values[0]
    try:
        number = float("nan") if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        return None, f"reward {slot!r} returned {_short(value)}; return a finite number{at}"
    return number, ""


def _file(reward: Reward) -> str:
    module = sys.modules.get(type(reward).__module__)
    return str(getattr(module, "__file__", None) or "")


def _place(reward: Reward) -> str:
    """file:line of what the user wrote of a reward; "" for a shipped one."""
    function = reward.function if isinstance(reward, FunctionReward) else type(reward).__call__
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code and is_users(code.co_filename) else ""


def _can_try(reward: Reward) -> bool:
    """Whether a reward needs nothing but the rollout: no service, and nothing that other plug-ins write."""
    waits = any(map(inspect.iscoroutinefunction, (type(reward).__call__, type(reward).score_group)))
    return not waits and not reward.requires


def _form(phase: PhasePlan, row: Row) -> str:
    """How a policy writes an answer, as the prompt asks: in tags, in a box, as JSON, or bare."""
    try:
        prompt = phase.prompt_template(row)
    except Exception:  # a row can make a template raise anything; the run's checks of rows find it
        return TAGS
    said = [str(message["content"]) for message in prompt.messages if message["role"] != "assistant"]
    text = f"{prompt.prefix} {' '.join(said)}"
    return next((form for mark, form in FORMS.items() if mark in text), "{}")


def _text(row: Row) -> str:
    return row.answer if isinstance(row.answer, str) else repr(row.answer)


def _demonstration(row: Row, form: str) -> Rollout:
    text = row.target or form.format(_text(row))
    return Rollout(prompt=Prompt(row, ()), ids=[0], text=text, logp=[0.0], finish="stop")


def _close(values: Any) -> bool:
    """Whether a result has to be awaited; it is closed, since its service is not called before the run
    starts."""
    waiting = [
        value
        for value in (values if isinstance(values, (list, tuple)) else [values])
        if inspect.iscoroutine(value)
    ]
    for value in waiting:
        value.close()
    return bool(waiting)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:200]
