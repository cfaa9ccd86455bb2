"""What of groups goes into a checkpoint, and how they come back: rollouts as plain values, prompts made again from the rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from vlrl.types import Group, Rollout, Row

if TYPE_CHECKING:
    from vlrl.context import RunContext

KEPT = ("ids", "text", "logp", "finish", "loss_mask", "version", "source", "temperature", "rewards", "reward")


def rows_of(run: RunContext, ids: Collection[str]) -> dict[str, Row]:
    """The training rows with these ids, as far as they are still in the data."""
    return {row.id: row for source in run.rows.values() for row in source if row.id in ids} if ids else {}


def packed(group: Group) -> dict[str, Any]:
    """A group as plain values."""
    return {"row": group.row.id, "id": group.id, "rollouts": [{name: deepcopy(getattr(r, name)) for name in KEPT} for r in group]}


def unpacked(items: Sequence[Mapping[str, Any]], run: RunContext) -> list[Group]:
    """Undo `packed`; groups whose row is gone are forgotten."""
    rows = rows_of(run, {item["row"] for item in items})
    groups = []
    for item in items:
        if item["row"] in rows:
            prompt = run.prompt_template(rows[item["row"]])
            spaces = tuple(run.policy.spaces(prompt))
            groups.append(Group(prompt, [Rollout(prompt, spaces=spaces, **deepcopy(values)) for values in item["rollouts"]], item["id"]))
    return groups
