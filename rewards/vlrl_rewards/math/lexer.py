"""The lexer of written mathematics: the tokens of a text, and the names that the parser knows."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

FUNCTIONS = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "log", "ln", "lg",
    "exp", "sqrt", "abs", "floor", "ceil", "gcd", "lcm", "max", "min", "cbrt",
))  # fmt: skip
CONSTANTS = {
    "pi": "pi",
    "e": "e",
    "i": "i",
    "infty": "inf",
    "infinity": "inf",
    "inf": "inf",
    "oo": "inf",
    "emptyset": "empty",
}
GREEK = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "lambda", "mu", "nu",
    "xi", "rho", "sigma", "tau", "phi",
    "chi", "psi", "omega", "Delta", "Omega", "Phi", "Sigma", "Gamma", "Theta",
))  # fmt: skip
SERIES = ("sum", "prod", "int", "lim")
RELATIONS = {
    "=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "==": "=", "!=": "!=",
    r"\le": "<=", r"\ge": ">=", r"\ne": "!=", r"\approx": "~", "~": "~", r"\sim": "~", r"\in": "in",
}  # fmt: skip
CLOSING = {"(": (")", "]"), "[": ("]", ")"), r"\{": (r"\}",), "{": ("}",), r"\langle": (r"\rangle",)}
NUMBERS = ("num", "grouped", "repeat", "sci", "mixed")
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
    """The text is not mathematics that the parser supports."""


def tokens_of(text: str, grouping: bool = True) -> list[Token]:
    """(kind, text) of every token.

    "100,200" is two numbers inside brackets, and one number outside them unless `grouping` is False. "7 3/4"
    becomes one token of kind "mixed". Raises NotMath on a character that is no part of mathematics.
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
        if (
            len(four) == 4
            and _is_int(four[0])
            and _is_int(four[1])
            and four[2][1] == "/"
            and _is_int(four[3])
            and not (out and out[-1][1] == "^")
        ):
            out.append(("mixed", f"{four[0][1]} {four[1][1]}/{four[3][1]}"))
            i += 4
        else:
            out.append(tokens[i])
            i += 1
    return out


def written(value: Fraction) -> str:
    """The value as digits ("12", "1/3"). Raises NotMath beyond 4,000 digits, which Python refuses to
    write."""
    if max(abs(value.numerator), value.denominator).bit_length() > 13_000:
        raise NotMath("too many digits")
    return str(value)


def number(token: str) -> Node:
    """A number literal as ("num", value, significant digits); the digits are 0 for an exact number. Raises
    NotMath beyond MAX_DIGITS."""
    plain = token.replace(",", "")
    if len(plain) > MAX_DIGITS:
        raise NotMath("too many digits")
    repeat = re.fullmatch(
        r"(\d*)\.(\d*)(?:\\overline\s*\{\s*(\d+)\s*\}|\((\d+)\)|\\dot\s*\{\s*(\d)\s*\})", plain
    )
    if repeat:
        whole, head, block = repeat[1] or "0", repeat[2], repeat[3] or repeat[4] or repeat[5]
        shift = 10 ** len(head)
        return (
            "num",
            Fraction(int(whole + head), shift) + Fraction(int(block), shift * (10 ** len(block) - 1)),
            0,
        )
    mixed = re.fullmatch(r"(\d+) (\d+)/(\d+)", plain)
    if mixed:
        whole, top, below = (int(part) for part in mixed.groups())
        if not top < below:
            raise NotMath("two numbers side by side")
        return ("num", whole + Fraction(top, below), 0)
    mantissa = plain.lower().partition("e")[0]
    digits = len(mantissa.replace(".", "").lstrip("0")) if "." in mantissa.rstrip(".") else 0
    return ("num", Fraction(plain), digits)


class TokenCursor:
    """A position in a list of tokens."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.at = tokens, 0

    def peek(self, ahead: int = 0) -> Token:
        """The token `ahead` places after the next one; ("end", "") behind the last."""
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ("end", "")

    def take(self) -> Token:
        """Consume the next token. Raises NotMath at the end."""
        token = self.peek()
        if token[0] == "end":
            raise NotMath("unexpected end")
        self.at += 1
        return token

    def accept(self, *texts: str) -> str:
        """Consume the next token if its text is one of `texts`, and return that text; else ""."""
        token = self.peek()[1]
        if token and token in texts:
            self.at += 1
            return token
        return ""

    def expect(self, *texts: str) -> str:
        """Consume a token whose text is one of `texts`. Raises NotMath if the next token is another."""
        found = self.accept(*texts)
        if not found:
            raise NotMath(f"expected {texts[0]!r}, got {self.peek()[1]!r}")
        return found

    def word(self) -> str:
        """The next token as a lower-case word; "" if it is no word."""
        kind, token = self.peek()
        return (
            token.lower() if kind == "word" else (token[6:-1].strip(" ,.").lower() if kind == "text" else "")
        )
