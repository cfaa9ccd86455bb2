"""Reads the JSON-like values (JSON, Python literals, half-broken lists) that models write. Never evaluates; linear in the length of the text."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, NamedTuple

from vlrl_rewards.text.denials import denied

MAX_CHARS = 20_000
MAX_DEPTH = 24

# Every quantifier is bounded, so a token costs at most a few hundred steps whatever the text.
NUMBER = r"[-+]?(?:[0-9]{1,15}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,3})?"
_TOKEN = re.compile(
    rf"""(?P<number>{NUMBER})(?!\.?[0-9])|(?P<string>"[^"\\]{{0,4000}}"|'[^'\\]{{0,4000}}'|"(?:[^"\\]|\\.){{0,200}}"|'(?:[^'\\]|\\.){{0,200}}')"""
    r"""|(?P<word>[^\W\d][\w./-]{0,99}|[^\s\[\](){},:=;|`*$\\])|(?P<mark>[\[\](){},:=])""",
    re.DOTALL,
)
_FENCED = re.compile(r"\s*(?:```(?:json)?\s*)?([\[{].*[\]}])\s*(?:```)?\s*", re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")
_FRACTION = re.compile(r"[.eE]")
_ESCAPE = re.compile(r"\\(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_WORDS = {"true": True, "false": False, "null": None, "none": None}


class Found(NamedTuple):
    """A bracketed value and where it stands in the text."""

    value: Any
    start: int
    end: int


class _Unfinished(NamedTuple):
    value: Any


def find_values(text: str) -> list[Found]:
    """The bracketed values of a text, in order; lists and tuples become lists, objects dicts. Values that the text denies are left out.

    Commas and closing brackets may be missing; a value that the end of the text cuts off keeps its whole members. A stray character inside a bracket
    is a member (so `[1, 2%]` is no list of numbers). Texts longer than 20,000 characters, nested deeper than 24, or with a closing bracket after
    loose numbers (`[1, 2], 3]`) hold nothing.
    """
    if len(text) > MAX_CHARS:
        return []
    whole = _strict(text)
    if whole is not None:
        return [whole]
    reader = _Reader(text)
    try:
        return [found for found in reader.top() if not denied(text, found.start, found.end)]
    except RecursionError:
        return []


def fold(text: str) -> str:
    """The text as a reader sees it: NFKC (full-width digits and brackets), the minus sign as "-", invisible characters out.

    Superscripts, circled and other numbers that are not plain digits stay what they are; so does a text of more than 60,000 characters, in which
    nothing is looked for.
    """
    if text.isascii() or len(text) > 3 * MAX_CHARS:
        return text
    seen = [c for c in text if unicodedata.category(c) != "Cf"]
    return "".join(c if c.isnumeric() and not c.isdecimal() else unicodedata.normalize("NFKC", c) for c in seen).replace("\u2212", "-")


def is_number(value: Any) -> bool:
    """A finite int or float, not a bool, below 1e9 in size (so that products stay finite)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9


def _strict(text: str) -> Found | None:
    """The value of a text that is one JSON value (in a fence or not), in a fraction of the time; None for anything else."""
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
        return Found(json.loads(match[1], parse_constant=_no_constant), match.start(1), match.end(1))
    except ValueError:
        return None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens = [(m.lastgroup, m.group(), m.start(), m.end()) for m in _TOKEN.finditer(text)]
        self.at = 0

    def top(self) -> list[Found]:
        found: list[Found] = []
        loose_number = False
        while self.at < len(self.tokens):
            kind, text, start, _ = self.tokens[self.at]
            if kind == "mark" and text in "[({":
                value = _finished(self.value(0))
                found.append(Found(value, start, self.tokens[self.at - 1][3]))
                loose_number = False
                continue
            loose_number = loose_number or kind == "number"
            if kind == "mark" and text in "]}" and found and loose_number:
                return []
            self.at += 1
        return found

    def value(self, depth: int) -> Any:
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
        """The inside of a bracket; a brace without a colon is a list."""
        if depth > MAX_DEPTH:
            raise RecursionError("nested too deeply")
        items: list[Any] = []
        mapping: dict[str, Any] = {}
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
            if word:  # bare words side by side are one text: (red cat, sits on, mat)
                items[-1] = f"{items[-1]} {text}"
                continue
            if braces and self.is_colon() and isinstance(item, (str, int, float)):
                self.at += 1
                joinable = False
                if not self.ends():
                    mapping[str(item)] = self.value(depth)
            else:
                items.append(item)
        return _Unfinished(mapping or items)

    def is_colon(self) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at][1] in (":", "=")

    def ends(self) -> bool:
        return self.at >= len(self.tokens) or self.tokens[self.at][1] in ("]", ")", "}", ",")


def _unescape(match: re.Match[str]) -> str:
    code = match.group(1)
    return json.loads(f'"\\{code}"') if len(code) > 1 else _ESCAPES.get(code, code)


def _finished(value: Any, top: bool = True) -> Any:
    """A cut-off value reduced to its whole members: a cut-off list of numbers is dropped, a cut-off list of boxes keeps the boxes."""
    if not isinstance(value, _Unfinished):
        return value
    inner = value.value
    if isinstance(inner, dict):
        return {k: _finished(v, False) for k, v in inner.items() if not isinstance(v, _Unfinished) or _finished(v, False)}
    whole = [member for member in inner if not isinstance(member, _Unfinished)]
    last = [_finished(inner[-1], False)] if inner and isinstance(inner[-1], _Unfinished) else []
    if not any(isinstance(member, (list, dict)) for member in whole):
        return [member for member in last if member]
    return whole + [member for member in last if isinstance(member, list) and member]
