"""Demonstrations of a row: where they come from, and a check that the data has any."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from vlrl.capabilities import Capability
from vlrl.registry import ConfigError
from vlrl.types import Row

if TYPE_CHECKING:
    from vlrl.context import RunContext

UNTRAINED_DEMONSTRATIONS = Capability("untrained_demonstrations", hint="rollout: {name: luffy, replace: false, trained: false}")
CHECKED_ROWS = 256  # rows of each source that are searched for demonstrations when a phase begins


def demonstrations(row: Row) -> list[str]:
    """The row's demonstrations: `row.meta["demonstrations"]` (one text per teacher), else its `target`, else none. Empty texts are left out."""
    return [text for text in row.meta.get("demonstrations", ()) if text] or [text for text in (row.target,) if text]


def check_demonstrations(run: RunContext, plugin: str, key: str = "") -> None:
    """Raise ConfigError if none of the first rows of any source has a demonstration, or a text at `row.meta[key]`."""
    rows = (row for source in run.rows.values() for row in islice(source, CHECKED_ROWS))
    if not any(demonstrations(row) or (key and row.meta.get(key)) for row in rows):
        places = f"a `target`, a list `meta.demonstrations` or a `meta.{key}`" if key else "a `target` or a list `meta.demonstrations`"
        raise ConfigError(
            f"rollout: {plugin!r} needs demonstrations, and none of the first {CHECKED_ROWS} rows of a source has {places}; "
            "fill one of them, or use rollout: {name: independent}"
        )
