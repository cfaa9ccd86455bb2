"""Validation of rows: the one check that `vlrl data check`, `vlrl data preview` and training share.

    validate_row(row)      # None, or RowError with a reason that names the field, what is wrong with it and
    what is allowed

A `Row` is a plain dataclass, so a source can put anything into its fields. What passes here can be rendered
as a prompt, encoded as UTF-8, scored and logged. Media are not opened; `Media.check` and `Media.load` do
that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from vlrl.types import Media, Row, RowError

MAX_CHARACTERS = 1_000_000  # of one text; a prompt of 200,000 tokens is shorter
MAX_DEPTH = 64  # of nested lists and mappings
MARKERS = {"<image>": "images", "<video>": "videos", "<audio>": "audios"}
INVISIBLE = str.maketrans("", "", "\u200b\u200c\u200d\u2060\ufeff\u00ad")
OTHER_NAMES = {  # what data sets call the question, the answer and the picture, besides words that are close
    **dict.fromkeys(("instruction", "query", "input", "ask", "text"), "question"),
    **dict.fromkeys(("output", "response", "label", "gold", "ground_truth", "target_text", "gt"), "answer"),
    **dict.fromkeys(("file", "file_name", "filename", "img", "image_path", "img_path", "picture"), "image"),
    **dict.fromkeys(("video_path", "clip"), "video"),
}

Path = tuple[str | int, ...]  # field, then keys and indices, of a value inside a row


def validate_row(
    row: Row, answers: Literal["required", "optional"] = "required", max_characters: int = MAX_CHARACTERS
) -> None:
    """Check every field of a row.

    Args:
        row: the row, as a source made it.
        answers: whether a row without an answer is a fault.
        max_characters: the longest text that a field may hold.

    Raises:
        RowError: with a reason such as "its question is list, not text".
    """
    _check_types(row)
    _check_values(row, max_characters)
    _check_question(row)
    _check_answer(row, answers)


def is_box(value: Any) -> bool:
    """[x1, y1, x2, y2]."""
    return isinstance(value, (list, tuple)) and len(value) == 4 and all(is_number(item) for item in value)


def is_labelled_boxes(value: Any) -> bool:
    """A list of {"bbox_2d": ...}, {"bbox": ...} or {"Position": ...}."""
    keys = {"bbox_2d", "Position", "bbox"}
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(item, Mapping) and keys & set(item) for item in value)
    )


def is_number(value: Any) -> bool:
    """An int or a float, and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ---- types


def _check_types(row: Row) -> None:
    for name in ("id", "question", "task", "target", "system"):
        if not isinstance(value := getattr(row, name), str):
            raise RowError(f"its {name} is {_type(value)}, not text")
    for name in ("id", "task"):
        if not getattr(row, name).strip():
            raise RowError(f"its {name} is empty")
    for name in ("choices", "rewards"):
        _check_list(name, getattr(row, name), str, "texts")
        for place, text in enumerate(getattr(row, name)):
            if not text.strip():
                raise RowError(f"its {name}[{place}] is empty")
    for name, kind in (("images", "image"), ("videos", "video"), ("audios", "audio")):
        _check_list(name, getattr(row, name), Media, "media")
        for place, medium in enumerate(getattr(row, name)):
            if medium.kind != kind:
                raise RowError(
                    f"its {name}[{place}] is a {medium.kind}, not {'a' if kind == 'video' else 'an'} {kind}"
                )
    if not isinstance(row.meta, Mapping):
        raise RowError(f"its meta is {_type(row.meta)}, not a mapping")
    _check_list("messages", row.messages, Mapping, "mappings of role and content")
    for place, message in enumerate(row.messages):
        _check_message(message, f"messages[{place}]")


def _check_list(name: str, value: Any, item_type: type, items: str) -> None:
    if not isinstance(value, (list, tuple)):
        raise RowError(f"its {name} is {_type(value)}, not a list of {items}")
    for place, item in enumerate(value):
        if not isinstance(item, item_type):
            raise RowError(f"its {name}[{place}] is {_type(item)}, where a list of {items} is expected")


def _check_message(message: Mapping[str, Any], where: str) -> None:
    if missing := [key for key in ("role", "content") if key not in message]:
        raise RowError(f"its {where} has no {missing[0]}")
    if not isinstance(message["role"], str) or not message["role"]:
        raise RowError(
            f"its {where}.role is {_type(message['role'])} {str(message['role'])[:40]!r}; give system, "
            "user, assistant or tool"
        )
    content = message["content"]
    if isinstance(content, str):
        return
    if not isinstance(content, (list, tuple)):
        raise RowError(f"its {where}.content is {_type(content)}, not text or a list of parts")
    for place, part in enumerate(content):
        if not isinstance(part, Mapping):
            raise RowError(f"its {where}.content[{place}] is {_type(part)}, not a mapping of type and text")
        if part.get("type") not in ("text", "image", "video", "audio"):
            raise RowError(
                f"its {where}.content[{place}].type is {str(part.get('type'))[:40]!r}. Known: text, image, "
                "video, audio."
            )
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            raise RowError(f"its {where}.content[{place}].text is {_type(part.get('text'))}, not text")


def _type(value: Any) -> str:
    return "missing" if value is None else type(value).__name__


# ---- values: what every text and number inside a row must be


def _check_values(row: Row, max_characters: int) -> None:
    for name in (
        "id",
        "question",
        "answer",
        "choices",
        "task",
        "target",
        "system",
        "messages",
        "rewards",
        "meta",
    ):
        whole = getattr(row, name)
        if type(whole) is str:  # nearly always: a million rows are read one by one
            _check_text(whole, (name,), max_characters)
            continue
        for path, value in _leaves(whole, (name,)):
            if isinstance(value, str):
                _check_text(value, path, max_characters)
            elif isinstance(value, (bytes, bytearray)) and name != "meta":
                raise RowError(f"its {_dotted(path)} is {len(value)} bytes, not text")
            elif isinstance(value, int) and abs(value) >= 1 << 1023:
                raise RowError(
                    f"its {_dotted(path)} is an integer of {value.bit_length()} bits, beyond the range of "
                    "floating-point numbers"
                )


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Every value inside nested lists and mappings (their keys too), with its path. Raises RowError beyond
    `MAX_DEPTH`."""
    pending = [(path, value)]
    while pending:
        path, value = pending.pop()
        if len(path) > MAX_DEPTH:
            raise RowError(f"its {path[0]} is nested deeper than {MAX_DEPTH} levels")
        if type(value) is dict or isinstance(value, Mapping):
            yield from ((path, key) for key in value if isinstance(key, str))
            pending += [((*path, str(key)), inner) for key, inner in value.items()]
        elif isinstance(value, (list, tuple)):
            pending += [((*path, place), inner) for place, inner in enumerate(value)]
        else:
            yield path, value


def _check_text(text: str, path: Path, max_characters: int) -> None:
    if len(text) > max_characters:
        raise RowError(
            f"its {_dotted(path)} has {len(text)} characters, over the limit of {max_characters} "
            "(max_characters)"
        )
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        cause = "a byte that is not UTF-8" if 0xDC80 <= code <= 0xDCFF else "a lone surrogate"
        raise RowError(
            f"its {_dotted(path)} has {cause} (U+{code:04X} at character {error.start + 1}), which no "
            "UTF-8 text can hold"
        ) from None


def _dotted(path: Path) -> str:
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
        for place, part in enumerate(path)
    )


# ---- question and markers


def _check_question(row: Row) -> None:
    texts = [
        row.question,
        *(_text_of(message["content"]) for message in row.messages if message["role"] != "assistant"),
    ]
    visible = "".join(texts).translate(INVISIBLE)
    if not visible.strip() or (not row.media and not _without_markers(visible).strip()):
        raise RowError("it has no question")
    if row.messages and not any(message["role"] == "user" for message in row.messages):
        raise RowError("its messages have no user turn")
    shown = [message["content"] for message in row.messages] if row.messages else [row.question, *row.choices]
    counts = {marker: sum(_count(content, marker) for content in shown) for marker in MARKERS}
    for marker, name in MARKERS.items():
        count, media = counts[marker], getattr(row, name)
        left_out = (
            not any(counts.values()) if row.messages else not count
        )  # a conversation has markers for all of its media, or for none
        if not left_out and count != len(media):
            raise RowError(
                f"it has {count} {marker} markers for {len(media)} {name if media else 'such media'}; give "
                "one per marker, or no marker"
            )


def _count(content: Any, marker: str) -> int:
    """Markers in a text, or parts of that kind in a list of parts."""
    return (
        content.count(marker)
        if isinstance(content, str)
        else sum(f"<{part['type']}>" == marker for part in content)
    )


def _text_of(content: Any) -> str:
    return (
        content
        if isinstance(content, str)
        else "".join(part["text"] if part["type"] == "text" else f"<{part['type']}>" for part in content)
    )


def _without_markers(text: str) -> str:
    for marker in MARKERS:
        text = text.replace(marker, "")
    return text


# ---- answers


def _check_answer(row: Row, answers: str) -> None:
    answer = row.answer
    if (
        answer is None
        or (isinstance(answer, str) and not answer.translate(INVISIBLE).strip())
        or (isinstance(answer, Mapping) and not answer)
    ):
        if answers == "required":
            raise RowError(f"it has no answer{_unread(row)} (`answers: optional` if none is meant)")
        return
    for path, value in _leaves(answer, ("answer",)) if type(answer) is not str else ():
        if isinstance(value, float) and not math.isfinite(value):
            raise RowError(f"its {_dotted(path)} is {value}")
    if row.choices and _beyond(answer, row.choices):
        raise RowError(
            f"its answer {answer!r} is none of its {len(row.choices)} choices (A to "
            f"{chr(ord('A') + len(row.choices) - 1)}, or their texts)"
        )
    expected = ANSWER_FORMS.get(row.task)
    if expected and not expected[1](answer):
        raise RowError(
            f"its answer is {_type(answer)} {str(answer)[:40]!r}; task {row.task!r} needs {expected[0]}"
        )


def _unread(row: Row) -> str:
    """The row's own columns that could be its answer, and how one of them is taken."""
    names = [name for name, value in row.meta.items() if isinstance(value, (str, int, float, list))]
    if not names:
        return ""
    usual = next((name for name in names if OTHER_NAMES.get(name.lower()) == "answer"), names[-1])
    listed = ", ".join(f"`{name}`" for name in names[:6])
    return f"; nothing reads {listed}: `fields: {{{usual}: answer}}` takes one"


OPTION_LETTER = re.compile(r"\(?([A-Za-z])[.):]?\)?")


def _beyond(answer: Any, choices: tuple[str, ...]) -> bool:
    """Whether an answer is a letter or a number (from 0 on) that no choice has, and the text of none."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        return not 0 <= answer < len(choices) and str(answer) not in choices
    if not isinstance(answer, str):
        return False
    letter = OPTION_LETTER.fullmatch(answer.strip())
    texts = {choice.strip().casefold() for choice in choices}
    return (
        letter is not None
        and ord(letter[1].upper()) - ord("A") >= len(choices)
        and answer.strip().casefold() not in texts
    )


NUMBER_WORDS = re.compile(
    (
        r"\d|\b(no|none|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty|"
        r"hundred)\b"
    ),
    re.IGNORECASE,
)


def _has_numbers(text: Any, count: int = 1) -> bool:
    return isinstance(text, str) and len(re.findall(r"\d+", text)) >= count


def _is_count(value: Any) -> bool:
    return is_number(value) or (isinstance(value, str) and bool(NUMBER_WORDS.search(value)))


def _is_boxes(value: Any) -> bool:
    listed = isinstance(value, (list, tuple)) and bool(value) and all(is_box(item) for item in value)
    labelled = is_labelled_boxes([value] if isinstance(value, Mapping) else value)
    return is_box(value) or listed or labelled or _has_numbers(value, 4)


def _is_detection(value: Any) -> bool:
    return (
        _is_boxes(value)
        or (isinstance(value, (list, tuple)) and not value)
        or (isinstance(value, str) and value.strip().lower() == "none")
    )


def _is_order(value: Any) -> bool:
    listed = (
        isinstance(value, (list, tuple))
        and all(isinstance(item, int) for item in value)
        and sorted(value) == list(range(1, len(value) + 1))
    )
    word = value if isinstance(value, str) and value.isdigit() else ""  # "2413" of VideoSSR
    counted = [int(digit) for digit in sorted(word)] == list(range(1, len(word) + 1))
    return listed or _has_numbers(value, 2) or bool(word and counted)


def _is_numbers(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple)) and bool(value) and all(is_number(item) for item in value)
    ) or _has_numbers(value)


def _is_spans(value: Any) -> bool:
    pairs = [value] if isinstance(value, (list, tuple)) and value and is_number(value[0]) else value
    listed = (
        isinstance(pairs, (list, tuple))
        and bool(pairs)
        and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs)
    )
    return (listed and all(is_number(time) for pair in pairs for time in pair)) or _has_numbers(value, 2)


def _is_label(value: Any) -> bool:
    one = isinstance(value, (str, int)) and not isinstance(value, bool)
    return one or (
        isinstance(value, (list, tuple)) and bool(value) and all(isinstance(item, str) for item in value)
    )


def _is_yes_no(value: Any) -> bool:
    return isinstance(value, bool) or (
        isinstance(value, str) and value.strip().casefold() in ("yes", "no", "true", "false")
    )


_LABELLED = (
    "choice",
    "classification",
    "digits",
    "emotion",
    "multiple_choice",
    "odd_one_out",
    "verdict",
    "video_states",
)
# The form of the gold answer of tasks that this package defines or that a record family sets; other tasks
# hold whatever their rewards read.
ANSWER_FORMS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "grounding": ("a box [x1, y1, x2, y2]", _is_boxes),
    "detection": ('a list of boxes, or "None"', _is_detection),
    "od_ap": ('a list of boxes, or "None"', _is_detection),
    **dict.fromkeys(
        ("counting", "arithmetic", "chains", "rotation", "causal", "numerical"), ("one number", _is_count)
    ),
    **dict.fromkeys(("jigsaw", "video_jigsaw"), ("the numbers 1 to n in some order", _is_order)),
    **dict.fromkeys(("chain", "video_counting"), ("a list of numbers", _is_numbers)),
    "anomaly": ("a list of [start, end] in seconds", _is_spans),
    **dict.fromkeys(_LABELLED, ("a label: text or an integer", _is_label)),
    "yes_no": ('"yes" or "no"', _is_yes_no),
}
