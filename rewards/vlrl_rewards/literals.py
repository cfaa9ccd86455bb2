"""A tolerant reader of JSON-like values in a text: JSON, Python literals and truncated lists. Evaluates
nothing; linear in the length of the text."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, NamedTuple

from vlrl_rewards.text.denials import denied

MAX_CHARS = 20_000
MAX_DEPTH = 24

# Every quantifier is bounded, so that one token costs at most a few hundred steps on any text.
NUMBER = r"[-+]?(?:[0-9]{1,15}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,3})?"
_TOKEN = re.compile(
    rf"""(?P<number>{NUMBER})(?!\.?[0-9])|(?P<string>"[^"\\]{{0,4000}}"|'[^'\\]{{0,4000}}'|"(?:[^"\\]|\\.){{0,200}}"|'(?:[^'\\]|\\.){{0,200}}')"""
    r"""|(?P<word>[^\W\d][\w./-]{0,99}|[^\s\[\](){},:=;|`*$\\])|(?P<mark>[\[\](){},:=])""",
    re.DOTALL,
)
_FENCED = re.compile(r"\s*(?:```(?:json)?\s*)?([\[{].*[\]}])\s*(?:```\s*)?", re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")
_FRACTION = re.compile(r"[.eE]")
_ESCAPE = re.compile(
    r"\\(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_WORDS = {"true": True, "false": False, "null": None, "none": None}


class Found(NamedTuple):
    """A bracketed value and its [start, end) character offsets in the text."""

    value: Any
    start: int
    end: int


class Members(dict[str, Any]):
    """An object of a text. `repeated`: (key, value) of the values that a later, different value of the same
    key replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.repeated: list[tuple[str, Any]] = []

    def add(self, key: str, value: Any) -> None:
        """Set a key; the value that it replaces is kept in `repeated`."""
        if key in self and self[key] != value:
            self.repeated.append((key, self[key]))
        self[key] = value


def repeated_in(value: Any) -> list[tuple[str, Any]]:
    """The replaced (key, value) pairs of an object of a text; empty for any other mapping."""
    return value.repeated if isinstance(value, Members) else []


class _Unfinished(NamedTuple):
    """A value that the end of the text cuts off."""

    value: Any


def find_values(text: str) -> list[Found]:
    """The bracketed values of a text, in order: lists and tuples as lists, objects as dicts. Values that the
    text denies are left out.

    Commas and closing brackets may be missing. A value that the end of the text cuts off keeps its complete
    members. A stray character inside a bracket is a member of its own, so `[1, 2%]` is not a list of numbers.
    An object in which a key is repeated keeps
    the last value (see `Members`).
    Limits: the result is empty for a text of more than 20,000 characters, for nesting deeper than 24, and for
    a closing bracket after numbers outside brackets (`[1, 2], 3]`).
    """
    if len(text) > MAX_CHARS:
        return []
    whole = _strict(text)
    if whole is not None:
        return [whole]
    reader = _ObjectReader(text)
    try:
        return [found for found in reader.top() if not denied(text, found.start, found.end)]
    except RecursionError:
        return []


def fold(text: str) -> str:
    """The text in the form a human sees: NFKC (full-width digits and brackets become plain), the minus sign
    as "-", invisible characters removed.

    Superscripts, circled digits and other numeric characters that are not decimal digits are unchanged. A
    text of more than 60,000 characters is returned unchanged; it is beyond what any reader here parses.
    """
    if text.isascii() or len(text) > 3 * MAX_CHARS:
        return text
    seen = [c for c in text if unicodedata.category(c) != "Cf"]
    return "".join(
        c if c.isnumeric() and not c.isdecimal() else unicodedata.normalize("NFKC", c) for c in seen
    ).replace("\u2212", "-")


def is_number(value: Any) -> bool:
    """Whether `value` is a finite int or float (not a bool) with |value| < 1e9, so that products of four such
    values are finite."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9


def _strict(text: str) -> Found | None:
    """The value of a text that is exactly one JSON value, fenced or not; None for any other text. Fast path
    of `find_values`."""
    match = _FENCED.fullmatch(text)
    if match is None:
        return None
    depth = most = 0
    for mark in _BRACKET.findall(match[1]):
        depth += 1 if mark in "[{" else -1
        most = max(most, depth)
    if most > MAX_DEPTH:
        return None
    try:
        return Found(
            json.loads(match[1], parse_constant=_no_constant, object_pairs_hook=_members),
            match.start(1),
            match.end(1),
        )
    except ValueError:
        return None


def _members(pairs: list[tuple[str, Any]]) -> Members:
    """The object of (key, value) pairs."""
    mapping = Members()
    for key, value in pairs:
        mapping.add(key, value)
    return mapping


def _no_constant(name: str) -> float:
    """Refuse NaN and Infinity, which `json` would read as numbers."""
    raise ValueError(f"{name} is not a JSON number")


class _ObjectReader:
    """Recursive-descent reader over the tokens of a text."""

    def __init__(self, text: str) -> None:
        self.tokens = [(m.lastgroup, m.group(), m.start(), m.end()) for m in _TOKEN.finditer(text)]
        self.at = 0

    def top(self) -> list[Found]:
        """All bracketed values of the text."""
        found: list[Found] = []
        outside_number = False
        while self.at < len(self.tokens):
            kind, text, start, _ = self.tokens[self.at]
            if kind == "mark" and text in "[({":
                value = _finished(self.value(0))
                found.append(Found(value, start, self.tokens[self.at - 1][3]))
                outside_number = False
                continue
            outside_number = outside_number or kind == "number"
            if kind == "mark" and text in "]}" and found and outside_number:
                return []
            self.at += 1
        return found

    def value(self, depth: int) -> Any:
        """The value that starts at the current token."""
        kind, text, _, _ = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            return int(text) if text.isdecimal() else float(text) if _FRACTION.search(text) else int(text)
        if kind == "string":
            return _ESCAPE.sub(_unescape, text[1:-1])
        if kind == "word":
            return _WORDS.get(text.lower(), text)
        return self.members(depth + 1, text == "{")

    def members(self, depth: int, braces: bool) -> Any:
        """The members of a bracket up to its end; braces without a colon make a list."""
        if depth > MAX_DEPTH:
            raise RecursionError("nested too deeply")
        items: list[Any] = []
        mapping = Members()
        joinable = False
        while self.at < len(self.tokens):
            kind, text, _, _ = self.tokens[self.at]
            if kind == "mark" and text in "])}":
                self.at += 1
                return mapping if mapping or (braces and not items) else items
            if kind == "mark" and text in ",:=":
                self.at += 1
                joinable = False
                continue
            item = self.value(depth)
            word, joinable = joinable and kind == "word", kind == "word"
            if word:  # adjacent bare words form one text: (red cat, sits on, mat)
                items[-1] = f"{items[-1]} {text}"
                continue
            if braces and self.is_colon() and isinstance(item, (str, int, float)):
                self.at += 1
                joinable = False
                if not self.ends():
                    mapping.add(str(item), self.value(depth))
            else:
                items.append(item)
        return _Unfinished(mapping or items)

    def is_colon(self) -> bool:
        """Whether the current token separates a key from its value."""
        return self.at < len(self.tokens) and self.tokens[self.at][1] in (":", "=")

    def ends(self) -> bool:
        """Whether the current token ends a member."""
        return self.at >= len(self.tokens) or self.tokens[self.at][1] in ("]", ")", "}", ",")


def _unescape(match: re.Match[str]) -> str:
    code = match.group(1)
    return json.loads(f'"\\{code}"') if len(code) > 1 else _ESCAPES.get(code, code)


def _finished(value: Any, top: bool = True) -> Any:
    """A cut-off value reduced to its complete members: a cut-off list of numbers is dropped, a cut-off list
    of boxes keeps the complete boxes."""
    if not isinstance(value, _Unfinished):
        return value
    inner = value.value
    if isinstance(inner, Members):
        complete = Members()
        complete.repeated = inner.repeated
        complete.update(
            {
                k: _finished(v, False)
                for k, v in inner.items()
                if not isinstance(v, _Unfinished) or _finished(v, False)
            }
        )
        return complete
    whole = [member for member in inner if not isinstance(member, _Unfinished)]
    last = [_finished(inner[-1], False)] if inner and isinstance(inner[-1], _Unfinished) else []
    if not any(isinstance(member, (list, dict)) for member in whole):
        return [member for member in last if member]
    return whole + [member for member in last if isinstance(member, list) and member]
