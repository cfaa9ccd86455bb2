"""Tokens of written mathematics."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

_TOKEN = re.compile(
    r"(?P<grouped>(?<![\d.])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,]))"
    r"|(?P<repeat>\d*\.\d*(?:\\overline\s*\{\s*\d+\s*\}|\(\d+\)|\\dot\s*\{\s*\d\s*\}))"
    r"|(?P<sci>(?:\d+\.?\d*|\.\d+)[eE][-+]?\d{1,4}(?![\d.a-zA-Z]))"
    r"|(?P<num>\d+\.\d+|\.\d+|\d+\.(?![\w.])|\d+)"
    r"|(?P<text>\\text\{[^{}]*\})"
    r"|(?P<env>\\(?:begin|end)\s*\{[a-zA-Z]+\*?\}(?:\{[lcr| ]*\})?)"
    r"|(?P<cmd>\\[a-zA-Z]+|\\.)"
    r"|(?P<word>[a-zA-Z]+)"
    r"|(?P<op><=|>=|!=|==|[-+*/^_=<>(){}\[\],;:!|%&'~])"
)
Token = tuple[str, str]
Node = tuple[Any, ...]
MAX_DIGITS = 2000


class NotMath(ValueError):
    """Text that the parser does not read as mathematics."""


def tokens_of(text: str, grouping: bool = True) -> list[Token]:
    """(kind, text) of every token. Inside brackets "100,200" is two numbers; outside it is one, unless grouping is off.

    Raises NotMath on a character that mathematics does not use. "7 3/4" becomes one token of kind "mixed".
    """
    out: list[Token] = []
    at, depth = 0, 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotMath(f"unknown character {text[at]!r}")
        kind, token = str(match.lastgroup), match.group()
        if kind == "grouped" and (depth > 0 or not grouping):
            kind, token = "num", token.split(",")[0]
        if kind == "op":
            depth += (token in "([{") - (token in ")]}")
        elif token in (r"\{", r"\}"):
            depth += 1 if token == r"\{" else -1
        out.append((kind, token))
        at += len(token)
    return _merge_mixed(out)


def _is_int(token: Token) -> bool:
    return token[0] == "num" and token[1].isascii() and token[1].isdigit()


def _merge_mixed(tokens: list[Token]) -> list[Token]:
    out: list[Token] = []
    i = 0
    while i < len(tokens):
        four = tokens[i : i + 4]
        if len(four) == 4 and _is_int(four[0]) and _is_int(four[1]) and four[2][1] == "/" and _is_int(four[3]) and not (out and out[-1][1] == "^"):
            out.append(("mixed", f"{four[0][1]} {four[1][1]}/{four[3][1]}"))
            i += 4
        else:
            out.append(tokens[i])
            i += 1
    return out


def number(token: str) -> Node:
    """A number literal as ("num", value, significant digits of a decimal, else 0). Raises NotMath beyond MAX_DIGITS."""
    plain = token.replace(",", "")
    if len(plain) > MAX_DIGITS:
        raise NotMath("too many digits")
    repeat = re.fullmatch(r"(\d*)\.(\d*)(?:\\overline\s*\{\s*(\d+)\s*\}|\((\d+)\)|\\dot\s*\{\s*(\d)\s*\})", plain)
    if repeat:
        whole, head, block = repeat[1] or "0", repeat[2], repeat[3] or repeat[4] or repeat[5]
        shift = 10 ** len(head)
        return ("num", Fraction(int(whole + head), shift) + Fraction(int(block), shift * (10 ** len(block) - 1)), 0)
    mixed = re.fullmatch(r"(\d+) (\d+)/(\d+)", plain)
    if mixed:
        whole, top, below = (int(part) for part in mixed.groups())
        if not top < below:
            raise NotMath("two numbers side by side")
        return ("num", whole + Fraction(top, below), 0)
    mantissa = plain.lower().partition("e")[0]
    digits = len(mantissa.replace(".", "").lstrip("0")) if "." in mantissa.rstrip(".") else 0
    return ("num", Fraction(plain), digits)
