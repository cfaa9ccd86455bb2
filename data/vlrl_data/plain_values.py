"""Values of arrow tables as JSON has them: numbers, texts, lists, mappings.

`to_pylist` alone gives a float32 0.1 as 0.10000000149011612, a decimal 1.50 and a date as objects, and a map
as a list of pairs. Here a number is the shortest text that reads back as the same number of its own type, a
decimal, a date and a time are their text, and a map with text keys, each there once, is a mapping.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np

TEMPORAL = (datetime.date, datetime.time)  # datetime.datetime is a date


def plain_row(table: Any, index: int) -> dict[str, Any]:
    """Row `index` of an arrow table or record batch. Raises what pyarrow raises for values that Python cannot
    hold."""
    one = table.slice(index, 1)
    row: dict[str, Any] = one.to_pylist()[0]
    for field in table.schema:
        if (
            str(field.type) == "time64[ns]" and row[field.name] is not None
        ):  # Python's times end at microseconds
            row[field.name] = one[field.name].cast("string")[0].as_py()
            continue
        convert = converter(field.type)
        if convert is not None and row[field.name] is not None:
            row[field.name] = convert(row[field.name])
    return row


@lru_cache(maxsize=1 << 12)
def converter(kind: Any) -> Callable[[Any], Any] | None:
    """What turns values of an arrow type into plain ones; None where they are plain already."""
    from pyarrow import types

    if types.is_float16(kind) or types.is_float32(kind):
        number = np.float16 if types.is_float16(kind) else np.float32
        return lambda value: float(str(number(value)))
    if types.is_decimal(kind) or types.is_temporal(kind):
        return as_text
    if types.is_map(kind):
        return _of_map(converter(kind.key_type), converter(kind.item_type), _is_text(kind.key_type))
    if types.is_struct(kind):
        fields = [(field.name, convert) for field in kind if (convert := converter(field.type))]
        return _of_struct(fields) if fields else None
    if types.is_dictionary(kind):
        return converter(kind.value_type)
    inner = getattr(kind, "value_type", None)  # of lists, large lists, lists of one size, views
    convert = converter(inner) if inner is not None else None
    return None if convert is None else lambda values: [_each(convert, value) for value in values]


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def as_text(value: Any) -> str:
    """A decimal or a time as its text: "1.50", "2024-05-01", "2024-05-01T12:00:00"."""
    if isinstance(value, TEMPORAL):
        return value.isoformat()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _each(convert: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if value is None or convert is None else convert(value)


def _of_struct(fields: list[tuple[str, Callable[[Any], Any]]]) -> Callable[[Any], Any]:
    return lambda value: value | {name: _each(convert, value[name]) for name, convert in fields}


def _of_map(key: Any, item: Any, named: bool) -> Callable[[Any], Any]:
    def convert(pairs: Any) -> Any:
        plain = [(_each(key, name), _each(item, value)) for name, value in pairs]
        found = dict(plain) if named else {}
        return found if named and len(found) == len(plain) else [list(pair) for pair in plain]

    return convert
