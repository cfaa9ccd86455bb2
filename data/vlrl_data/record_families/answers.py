"""Gold answers and options as datasets write them, turned into the values that rewards read."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vlrl.types import CoordinateSpace, RowError
from vlrl_data.validation import is_box, is_labelled_boxes

ANSWER_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
CODE_FENCE = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)
NUMBER = r"-?\d+(?:\.\d+)?"
BOX = re.compile(rf"\[\s*({NUMBER})\s*,\s*({NUMBER})\s*,\s*({NUMBER})\s*,\s*({NUMBER})\s*\]")
BOX_CORNERS = re.compile(
    rf"\(\s*({NUMBER})\s*,\s*({NUMBER})\s*\)\s*,\s*\(\s*({NUMBER})\s*,\s*({NUMBER})\s*\)"
)


def strip_tags(text: str) -> str:
    """The content of the last <answer> tags, or else of the only code fence, or else the text; trimmed."""
    tagged = ANSWER_TAGS.findall(text)
    text = tagged[-1] if tagged else text
    fenced = CODE_FENCE.findall(text)
    return (fenced[0] if len(fenced) == 1 else text).strip()


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def numbers_of(match: re.Match[str]) -> list[int | float]:
    """The groups of a match as numbers."""
    return [_number(group) for group in match.groups()]


def literal(text: str) -> Any:
    """JSON, or else a Python literal (no code is run). Raises ValueError if it is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        try:
            return ast.literal_eval(text)
        except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
            raise ValueError(f"neither JSON nor a Python literal: {error}") from None


def parse_answer(answer: Any, boxes: bool = True) -> Any:
    """`<answer>3</answer>` -> "3"; with `boxes` (of a row with media), a box or a list of boxes in text ->
    numbers; None if there is nothing; anything else as it is."""
    if not isinstance(answer, str):
        return None if isinstance(answer, (list, dict)) and not answer and answer != [] else answer
    text = strip_tags(answer)
    if not text:
        return None
    if not boxes:
        return text
    if (box := BOX.fullmatch(text)) and is_corners(numbers_of(box)):
        return numbers_of(box)
    if text[0] == "[" and ("{" in text or BOX.search(text)):
        try:
            value = literal(text)
        except ValueError:
            return text
        return value if isinstance(value, list) and not is_box(value) else text
    return text


BOX_GUESS = "four numbers as the answer of a row with media are a box [x1, y1, x2, y2] in pixels"


def read_answer(answer: Any, media: bool) -> dict[str, Any]:
    """The `answer` of a row with or without media, the `task` that it implies, and what was `guessed`."""
    found = parse_answer(answer, media)
    guessed = (BOX_GUESS,) if is_box(found) and isinstance(answer, str) else ()
    return {"answer": found, "task": task_of(found, media), "guessed": guessed}


def is_corners(value: Any) -> bool:
    """[x1, y1, x2, y2] with x1 <= x2 and y1 <= y2."""
    return is_box(value) and value[0] <= value[2] and value[1] <= value[3]


def task_of(answer: Any, media: bool) -> str:
    """The task that a gold answer implies: of a row with media grounding for one box, detection for labelled
    boxes; else default."""
    return (
        "grounding"
        if media and is_corners(answer)
        else "detection"
        if is_labelled_boxes(answer)
        else "default"
    )


# ---- options

LABELS = ("label", "key", "letter", "id")  # names of an option's label in a mapping
TEXTS = ("text", "value", "option", "content")
INLINE = re.compile(r"(?:^|\s)\(?([A-Z])[.):]\s+")


def options_of(value: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the options, their keys or ()) of a list, a mapping from keys to texts, the hub's {label: [...], text:
    [...]}, a list of {label, text}, or a text: JSON, one option a line, or "(A) red (B) blue".

    Raises RowError for anything else: what is read as one option must be one.
    """
    if value is None or value == "":
        return (), ()
    if isinstance(value, str):
        return _options_in_text(value.strip())
    if isinstance(value, Mapping):
        texts = next((value[name] for name in TEXTS if isinstance(value.get(name), (list, tuple))), None)
        labels = next((value[name] for name in LABELS if isinstance(value.get(name), (list, tuple))), ())
        if texts is not None and len(labels) in (0, len(texts)):
            return _texts(texts), _texts(labels)
        return _texts(value.values()), _texts(value)
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(item, Mapping) for item in value):
            pairs = [(_first(item, LABELS), _first(item, TEXTS)) for item in value]
            keys = [key for key, _ in pairs if key is not None]
            return _texts(text for _, text in pairs), _texts(keys) if len(keys) == len(pairs) else ()
        return _texts(value), ()
    raise RowError(f"its options are {type(value).__name__} {str(value)[:40]!r}, not a list")


def _options_in_text(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if text[0] in "[{":
        try:
            return options_of(literal(text))
        except RowError:
            raise
        except ValueError:  # a text that only begins like one
            pass
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1:
        return tuple(lines), ()
    marks = [mark for mark in INLINE.finditer(text)]
    if len(marks) > 1 and not text[: marks[0].start()] and _in_order(mark[1] for mark in marks):
        ends = [*(mark.start() for mark in marks[1:]), len(text)]
        return tuple(text[mark.end() : end].strip() for mark, end in zip(marks, ends)), ()
    raise RowError(
        f"its options are one text, {text[:40]!r}; give a list, a mapping, JSON, or one option a line"
    )


def _in_order(labels: Iterable[str]) -> bool:
    return all(label == chr(ord("A") + place) for place, label in enumerate(labels))


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    found = tuple(values)
    for place, value in enumerate(found):
        if not isinstance(value, (str, int, float)):
            raise RowError(f"its options[{place}] is {type(value).__name__} {str(value)[:40]!r}, not text")
    return tuple(map(str, found))


def _first(item: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((item[name] for name in names if item.get(name) is not None), None)


def without_labels(options: Sequence[str]) -> tuple[str, ...]:
    """The options without "A. ", "(B) " ... where all have the label of their place: "U.S. Army" keeps its
    name."""
    found = [re.match(r"\(?([A-Z])[.):]\)?\s*", option) for option in options]
    if len(options) < 2 or not all(found) or not _in_order(match[1] for match in found if match):
        return tuple(options)
    return tuple(option[match.end() :] for option, match in zip(options, found) if match)


def letter_of(answer: Any, keys: Sequence[str]) -> Any:
    """An answer that is a key of the options, as the letter of its place, where keys are no letters in order;
    else as it is."""
    place = keys.index(str(answer)) if isinstance(answer, (str, int)) and str(answer) in keys else -1
    return answer if place < 0 or _in_order(keys) else chr(ord("A") + place)


def to_pixels(value: Any, space: CoordinateSpace) -> Any:
    """Boxes and points in the units of `space` (lists of four or two numbers, in lists and mappings) in
    original pixels, rounded to two decimals."""
    if isinstance(value, Mapping):
        return {key: to_pixels(item, space) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) in (2, 4) and all(isinstance(item, (int, float)) for item in value):
            return [round(item, 2) for item in space.to_original([float(item) for item in value])]
        return [to_pixels(item, space) for item in value]
    return value
