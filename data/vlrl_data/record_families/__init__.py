"""The record families of the field: how each is recognised from its fields, and how its records become rows.

A family's recogniser gives the reason ("it has `conversations` of {from, value}") or "". The first family
that gives one is chosen, so the special families come before the general ones. Its converter gives a draft:
values for `Row`, with media as the dataset holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from vlrl.plugins.registry import ConfigError, suggest
from vlrl_data.record_families import (  # they register their families, the special ones first
    assembled,  # noqa: F401
    assessed,  # noqa: F401
    chat,  # noqa: F401
    columns,  # noqa: F401, I001
    screens,  # noqa: F401
)
from vlrl_data.record_families.base import FAMILIES, RecordFamily
from vlrl_data.validation import OTHER_NAMES

__all__ = ["FAMILIES", "RecordFamily", "by_name", "recognise"]


def recognise(record: Any) -> tuple[RecordFamily, str]:
    """The family of a record, and the reason. Raises ConfigError with the record's fields if no family
    fits."""
    if isinstance(record, (str, list)):
        record = {"": record}
    if not isinstance(record, Mapping):
        raise ConfigError(f"a record must be a mapping of fields, got {type(record).__name__}")
    for family in FAMILIES.values():
        if reason := family.why(record):
            return family, reason
    usual = (
        "question",
        "answer",
        "problem",
        "prompt",
        "solution",
        "image",
        "images",
        "messages",
        "choices",
        "target",
    )
    near = {
        str(name): close
        for name in record
        if (
            close := OTHER_NAMES.get(str(name).lower())
            or next(iter(get_close_matches(str(name).lower(), usual, n=1, cutoff=0.7)), "")
        )
        and name != close
    }
    first = {new: name for name, new in reversed(near.items()) if new not in record}
    meant = ", ".join(f"{name}: {new}" for new, name in reversed(first.items()))
    fields = ", ".join(sorted(str(name)[:40] for name in record)[:40])
    raise ConfigError(
        f"format: no record family has the fields {fields}; a row needs `question` and `answer`, and has "
        f"`image`, `images` or `video` for what it shows. Rename yours with `fields: "
        f"{{{meant or 'yours: ours'}}}`. Families of others: {', '.join(FAMILIES)}."
    )


def by_name(name: str) -> RecordFamily:
    """A family by its name. Raises ConfigError."""
    if name not in FAMILIES:
        raise ConfigError(f"format: no record family {name!r}.{suggest(name, ['auto', *FAMILIES])}")
    return FAMILIES[name]
