"""Coordinates of demonstrations in the units that the policy writes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlrl.types import TARGET_UNITS, CoordinateSpace, Prompt, Row, RowError

if TYPE_CHECKING:
    from vlrl.plugins.views import PolicyView

DECODER = json.JSONDecoder()


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
