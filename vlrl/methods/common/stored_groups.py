"""Groups in checkpoints: rollouts as plain values, and prompts made again from the training rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any

from vlrl.plugins.contexts import StageContext
from vlrl.types import Group, Rollout, Row

STORED_FIELDS = (
    *("ids", "text", "logp", "finish", "loss_mask", "sampled_mask", "version", "source", "temperature"),
    *("rewards", "reward", "outcome", "correct"),
)


def rows_of(run: StageContext, ids: Collection[str]) -> dict[str, Row]:
    """The training rows with these ids that are still in the data."""
    return {row.id: row for source in run.rows.values() for row in source if row.id in ids} if ids else {}


def packed(group: Group) -> dict[str, Any]:
    """A group as plain values."""
    return {
        "row": group.row.id,
        "id": group.id,
        "rollouts": [{name: deepcopy(getattr(r, name)) for name in STORED_FIELDS} for r in group],
    }


def unpacked(items: Sequence[Mapping[str, Any]], run: StageContext) -> list[Group]:
    """Undo `packed`; groups whose row is no longer in the data are left out."""
    rows = rows_of(run, {item["row"] for item in items})
    groups = []
    for item in items:
        if item["row"] in rows:
            prompt = run.prompt_template(rows[item["row"]])
            spaces = tuple(run.policy.spaces(prompt))
            groups.append(
                Group(
                    prompt,
                    [Rollout(prompt, spaces=spaces, **deepcopy(values)) for values in item["rollouts"]],
                    item["id"],
                )
            )
    return groups
