"""Statements of a small logic in Lean's notation: propositions, quantifiers over the integers, and polynomial
equations, orders and divisibility. What is parsed here is proved in `small_proofs.py`.

    term     n | x | -t | t + t | t - t | t * t | t ^ n
    formula  P | True | False | t = t, ≠, <, ≤, >, ≥, ∣ | ¬f | f ∧ f | f ∨ f | f → f | f ↔ f
             | ∀ x : ℤ, f | ∃ x : ℤ, f

Terms and formulas are nested tuples. Bound variables are de Bruijn indices ("bound", i), so that equal up to
the names of bound variables is equal, and substitution captures nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MAX_TEXT = 20_000  # characters of a theorem with its proof
MAX_DEPTH = 60  # of nesting
MAX_POWER = 64

Formula = tuple[Any, ...]
Term = tuple[Any, ...]
ASCII = {"/\\": "∧", "\\/": "∨", "<->": "↔", "->": "→", "<=": "≤", ">=": "≥", "Int": "ℤ", "=>": "↦"}
_TOKEN = re.compile(
    r"\s+|--[^\n]*|(?P<token>/\\|\\/|<->|->|<=|>=|:=|=>|←"
    r"|[A-Za-z_][\w'₀-₉]*(?:\.(?:\d|[A-Za-z_][\w']*))*|\d+|[∃∀∧∨¬→↔=≠<≤>≥+\-*^∣()⟨⟩,:.\[\]ℤ|·↦])"
)
_RELATIONS = ("=", "≠", "<", "≤", ">", "≥", "∣")


class LogicError(ValueError):
    """A text that is no theorem, or a step that proves nothing; the message says why."""


class Theorem(NamedTuple):
    """A statement: its name, its variables ("ℤ" or "Prop" by name), hypotheses and goal."""

    name: str
    variables: Mapping[str, str]
    hypotheses: Mapping[str, Formula]
    goal: Formula


def tokens(text: str) -> list[str]:
    """The tokens of a text, ASCII spellings replaced. Raises LogicError for a character of no token."""
    if len(text) > MAX_TEXT:
        raise LogicError(f"more than {MAX_TEXT:,} characters")
    found, at, depth = [], 0, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise LogicError(f"unexpected {text[at]!r}")
        if match["token"]:
            found.append(ASCII.get(match["token"], match["token"]))
            depth += (found[-1] in ("(", "⟨")) - (found[-1] in (")", "⟩"))
            if depth > MAX_DEPTH:
                raise LogicError(f"nested more than {MAX_DEPTH} deep")
        at = match.end()
    return found


class LogicParser:
    """A recursive descent over tokens. `variables` are the names in scope."""

    def __init__(self, words: Sequence[str], variables: Mapping[str, str]) -> None:
        self.words, self.at, self.variables = list(words), 0, dict(variables)
        self.bound: list[str] = []
        self.depth = 0

    @property
    def word(self) -> str:
        """The next token; "" at the end."""
        return self.words[self.at] if self.at < len(self.words) else ""

    def take(self, *wanted: str) -> str:
        """The next token, which is one of `wanted` if any are given."""
        word = self.word
        if not word or (wanted and word not in wanted):
            raise LogicError(f"expected {' or '.join(wanted) or 'more'}, found {word or 'the end'!r}")
        self.at += 1
        return word

    def end(self) -> None:
        """Nothing is left."""
        if self.word:
            raise LogicError(f"unexpected {self.word!r}")

    def name(self) -> str:
        """An identifier without dots."""
        if not re.fullmatch(r"[A-Za-z_][\w'₀-₉]*", self.word):
            raise LogicError(f"expected a name, found {self.word or 'the end'!r}")
        return self.take()

    def nested(self) -> None:
        """One level deeper."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise LogicError(f"nested more than {MAX_DEPTH} deep")

    def formula(self) -> Formula:
        """f ↔ f, the loosest."""
        self.nested()
        left = self.implication()
        if self.word == "↔":
            self.take()
            left = ("iff", left, self.implication())
        self.depth -= 1
        return left

    def implication(self) -> Formula:
        """f → f, to the right."""
        self.nested()
        left = self.junction("∨", "or", lambda: self.junction("∧", "and", self.negation))
        if self.word == "→":
            self.take()
            left = ("imp", left, self.implication())
        self.depth -= 1
        return left

    def junction(self, sign: str, kind: str, part: Any) -> Formula:
        """Parts with a sign between them, to the right."""
        parts = [part()]
        while self.word == sign:
            self.take()
            parts.append(part())
        found = parts.pop()
        while parts:
            found = (kind, parts.pop(), found)
        return found

    def negation(self) -> Formula:
        """¬f, a quantifier, or a relation."""
        if self.word == "¬":
            self.take()
            self.nested()
            found = ("not", self.negation())
            self.depth -= 1
            return found
        if self.word in ("∀", "∃"):
            return self.quantified()
        return self.relation()

    def quantified(self) -> Formula:
        """∀ or ∃ over one or more integers."""
        self.nested()
        kind = "all" if self.take() == "∀" else "ex"
        names = [self.name()]
        while self.word not in (":", ","):
            names.append(self.name())
        if self.word == ":":
            self.take()
            self.take("ℤ")
        self.take(",")
        self.bound += names
        found = self.formula()
        del self.bound[-len(names) :]
        for _ in names:
            found = (kind, found)
        self.depth -= 1
        return found

    def relation(self) -> Formula:
        """A relation of two terms, a proposition, or a formula in parentheses."""
        start, depth = self.at, self.depth
        if self.word in ("True", "False"):
            return (self.take().lower(),)
        if self.variables.get(self.word) == "Prop" and self.word not in self.bound:
            return ("atom", self.take())
        try:
            left = self.sum()
            sign = self.take(*_RELATIONS)
        except LogicError:
            self.at, self.depth = start, depth
            if self.word != "(":
                raise
            self.take()
            found = self.formula()
            self.take(")")
            return found
        right = self.sum()
        return related(sign, left, right)

    def sum(self) -> Term:
        """t + t, t - t."""
        found = self.product()
        while self.word in ("+", "-"):
            found = (self.take(), found, self.product())
        return found

    def product(self) -> Term:
        """t * t."""
        found = self.signed()
        while self.word == "*":
            self.take()
            found = ("*", found, self.signed())
        return found

    def signed(self) -> Term:
        """-t."""
        if self.word == "-":
            self.take()
            self.nested()
            found = ("neg", self.signed())
            self.depth -= 1
            return found
        return self.power()

    def power(self) -> Term:
        """t ^ n."""
        found = self.atom()
        if self.word == "^":
            self.take()
            if not self.word.isdigit() or len(self.word) > 2 or int(self.word) > MAX_POWER:
                raise LogicError(f"an exponent is a number up to {MAX_POWER}, not {self.word!r}")
            found = ("^", found, int(self.take()))
        return found

    def atom(self) -> Term:
        """A number, an integer variable, or a term in parentheses."""
        if self.word.isdigit():
            if len(self.word) > 1000:
                raise LogicError("a number of more than 1,000 digits")
            return ("int", int(self.take()))
        if self.word == "(":
            self.take()
            self.nested()
            found = self.sum()
            self.depth -= 1
            self.take(")")
            return found
        word = self.name()
        if word in self.bound:
            return ("bound", self.bound[::-1].index(word))
        if self.variables.get(word) != "ℤ":
            raise LogicError(f"{word!r} is no integer in scope")
        return ("var", word)


def related(sign: str, left: Term, right: Term) -> Formula:
    """A relation by its sign; ≠, > and ≥ are written with =, < and ≤."""
    if sign == "≠":
        return ("not", ("=", left, right))
    if sign in (">", "≥"):
        return ("<" if sign == ">" else "≤", right, left)
    return (sign, left, right)


def parse_formula(text: str | Sequence[str], variables: Mapping[str, str]) -> Formula:
    """A whole formula. Raises LogicError."""
    parser = LogicParser(tokens(text) if isinstance(text, str) else text, variables)
    found = parser.formula()
    parser.end()
    return found


def parse_term(text: str | Sequence[str], variables: Mapping[str, str]) -> Term:
    """A whole term. Raises LogicError."""
    parser = LogicParser(tokens(text) if isinstance(text, str) else text, variables)
    found = parser.sum()
    parser.end()
    return found


def parse_theorem(text: str) -> Theorem:
    """`theorem NAME (P Q : Prop) (n : ℤ) (h : FORMULA) : GOAL`. Raises LogicError."""
    parser = LogicParser(tokens(text), {})
    parser.take("theorem")
    name = parser.name()
    hypotheses: dict[str, Formula] = {}
    while parser.word == "(":
        parser.take()
        names = [parser.name()]
        while parser.word != ":":
            names.append(parser.name())
        parser.take(":")
        if set(names) & {*parser.variables, *hypotheses} or len(set(names)) < len(names):
            raise LogicError(f"a name is declared twice: {' '.join(names)}")
        if parser.word in ("ℤ", "Prop"):
            parser.variables |= dict.fromkeys(names, parser.take())
        else:
            hypotheses |= dict.fromkeys(names, parser.formula())
        parser.take(")")
    parser.take(":")
    goal = parser.formula()
    parser.end()
    return Theorem(name, dict(parser.variables), hypotheses, goal)


def opened(body: Formula, term: Term, level: int = 0) -> Formula:
    """The body of a quantifier with its variable replaced by a term, which has no bound variable of its
    own."""
    if body[0] == "bound":
        return term if body[1] == level else body
    if body[0] in ("int", "var", "atom"):
        return body
    deeper = level + (body[0] in ("all", "ex"))
    return (body[0], *(opened(part, term, deeper) if isinstance(part, tuple) else part for part in body[1:]))


def replaced(where: Formula, old: Term, new: Term) -> Formula:
    """Every occurrence of a term without bound variables, replaced."""
    if where == old:
        return new
    if where[0] in ("int", "var", "atom", "bound"):
        return where
    return (where[0], *(replaced(part, old, new) if isinstance(part, tuple) else part for part in where[1:]))
