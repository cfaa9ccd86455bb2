r"""Parser of written mathematics: recursive descent to a tree of tuples. It evaluates nothing, its depth is
bounded, and it never backtracks.

Nodes: ("num", Fraction, digits), digits = significant digits of a decimal literal, 0 for an exact number;
("sym", name); ("const", name); ("text", words);
("add"|"mul"|"div"|"pow"|"pm"|"mp", a, b); ("neg"|"fact"|"pct"|"deg", a); ("fn", name, a, ...); ("seq", open,
close, items...); ("rel", a, op, b, op, c ...); ("cup"|"cap"|"minus", a, b); ("matrix", (row), ...); ("base",
digits, base);
("sum"|"prod", index, low, high, term); ("int", letter, low, high, integrand); ("lim", letter, target, side,
body).
"""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from typing import Any

from vlrl_rewards.math.atoms import ATOMS, Grammar, named
from vlrl_rewards.math.lexer import (
    CONSTANTS,
    FUNCTIONS,
    GREEK,
    NUMBERS,
    RELATIONS,
    Node,
    NotMath,
    Token,
    number,
    tokens_of,
    written,
)

MAX_DEPTH = 60
MAX_LEVELS = 200  # of a tree: "1+1+..." is a level a term, and comparing recurses


def is_bound(node: Node) -> bool:
    """Whether a tree is an inequality."""
    return node[0] == "rel" and all(op in ("<", ">", "<=", ">=", "!=") for op in node[2::2])


class Parser(Grammar):
    """The grammar's rules, one method each, from the loosest binding to the tightest."""

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self.depth = 0

    def parse(self) -> Node:
        """All tokens as one tree. Raises NotMath."""
        items = self.items()
        if self.peek()[0] != "end":
            raise NotMath(f"left over: {self.peek()[1]!r}")
        return items[0] if len(items) == 1 else ("seq", "", "", *items)

    def items(self) -> list[Node]:
        """Relations separated by commas, semicolons, "and", "or"."""
        items, joins = [self.relation()], set()
        while joined := self.separator():
            token = self.peek()[1]
            if not token or token in (")", "]", "}", r"\}", r"\rangle", r"\cr") or token.startswith(r"\end"):
                if joined & {"and", "or"}:
                    raise NotMath("an open list")
                break
            joins |= joined
            items.append(self.relation())
        if "or" in joins and all(is_bound(item) for item in items):
            return [reduce(lambda a, b: ("cup", a, b), items)]
        return items

    def separator(self) -> set[str]:
        """Consume separators: those there were."""
        found = set()
        while self.peek()[1] in (",", ";") or self.word() in ("and", "or"):
            found.add(self.word() or ",")
            self.take()
        return found

    def relation(self) -> Node:
        """Unions joined by =, <, ..."""
        chain: list[Any] = [self.union()]
        while self.peek()[1] in RELATIONS:
            chain += [RELATIONS[self.take()[1]], self.union()]
        return chain[0] if len(chain) == 1 else ("rel", *chain)

    def union(self) -> Node:
        """Sums joined by union, intersection, difference."""
        node = self.sum()
        names = {r"\cup": "cup", r"\cap": "cap", r"\setminus": "minus"}
        while self.peek()[1] in names or (self.word() in ("u", "union") and node[0] in ("seq", "cup")):
            node = (names.get(self.take()[1], "cup"), node, self.sum())
        return node

    def sum(self) -> Node:
        """Products joined by +, -, plus-minus."""
        self.deeper()
        signs = {"+": "add", "-": "sub", r"\pm": "pm", r"\mp": "mp"}
        node: Node = ("num", Fraction(0), 0) if self.peek()[1] in signs else self.product()
        first = self.peek()[1] in signs and node == ("num", Fraction(0), 0)
        while self.peek()[1] in signs:
            sign, term = signs[self.take()[1]], self.product()
            if first and sign in ("add", "sub"):
                node = term if sign == "add" else ("neg", term)
            else:
                node = ("add", node, ("neg", term)) if sign == "sub" else (sign, node, term)
            first = False
        self.depth -= 1
        return node

    def product(self) -> Node:
        """Powers joined by multiplication (also implicit) and division."""
        node = self.signed()
        while True:
            token = self.peek()[1]
            if token in ("*", r"\times", r"\cdot") or self.times_x():
                self.take()
                node = ("mul", node, self.signed())
            elif token in ("/", r"\bmod", "mod"):
                self.take()
                node = ("div", node, self.signed()) if token == "/" else ("fn", "mod", node, self.signed())
            elif token == ":" and node[0] in ("num", "div"):
                node = self.ratio(node)
            elif self.starts_atom():
                node = self.implicit(node)
            else:
                return node

    def ratio(self, first: Node) -> Node:
        """a : b is a quotient; a : b : c are the quotients to the first."""
        parts = []
        while self.accept(":"):
            parts.append(self.signed())
        return (
            ("div", first, parts[0])
            if len(parts) == 1
            else ("seq", ":", ":", *(("div", part, first) for part in parts))
        )

    def times_x(self) -> bool:
        """Whether an x means multiplication ("3 x 10^8")."""
        follows = (
            self.tokens[self.at - 1][0] in NUMBERS and self.peek(1)[1] == "10" and self.peek(2)[1] == "^"
        )
        return follows and self.peek()[1] in ("x", "X")

    def signed(self) -> Node:
        """A power with its leading signs."""
        negative = False
        while True:
            sign = self.accept("-", "+")
            if not sign:
                break
            negative ^= sign == "-"
        node = self.power()
        return ("neg", node) if negative else node

    def deeper(self) -> None:
        """Count one more level of nesting. Raises NotMath beyond MAX_DEPTH."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotMath("nested too deeply")

    def starts_atom(self) -> bool:
        """Whether the next token can be an implicit factor."""
        kind, token = self.peek()
        if kind in NUMBERS or kind == "word":
            return self.word() not in ("and", "or", "u", "union")
        if kind == "env":
            return token.startswith(r"\begin") and "matrix" in token
        return token in (
            "(",
            "[",
            "{",
            r"\{",
            r"\sqrt",
            r"\frac",
            r"\binom",
            r"\lfloor",
            r"\lceil",
            r"\sum",
            r"\int",
            r"\prod",
            r"\lim",
        ) or (kind == "cmd" and (token[1:] in FUNCTIONS or token[1:] in CONSTANTS or token[1:] in GREEK))

    def implicit(self, node: Node) -> Node:
        """`node` times the factor that follows; "7\\frac{3}{4}" is a mixed number. Raises NotMath on two
        plain numbers side by side."""
        before, (kind, token) = self.tokens[self.at - 1], self.peek()
        if node[0] == "text":
            raise NotMath("a word before a value")
        if (
            kind in NUMBERS
            and before[1] not in (")", "]", "}", "!")
            and before[0] != "word"
            and before[0] != "cmd"
        ):
            raise NotMath("two numbers side by side")
        factor = self.power()
        if (
            token == r"\frac"
            and factor[0] == "pct"
            and factor[1][0] == "div"
            and before[0] in ("num", "grouped")
            and node[0] == "num"
        ):
            return ("pct", self.mixed(node, factor[1], before))  # "12\frac{1}{2}%"
        return self.mixed(node, factor, before) if token == r"\frac" else ("mul", node, factor)

    def mixed(self, node: Node, factor: Node, before: Token) -> Node:
        """A whole number and a fraction behind it: their sum if the fraction is below 1, else their
        product."""
        if before[0] in ("num", "grouped") and node[0] == "num" and factor[0] == "div":
            top, below = factor[1], factor[2]
            if top[0] == below[0] == "num" and top[2] == below[2] == node[2] == 0 and 0 <= top[1] < below[1]:
                return ("add", node, factor)
        return ("mul", node, factor)

    def power(self) -> Node:
        """An atom with its exponents, factorials, percent and degree signs."""
        self.deeper()
        node = self.atom()
        while True:
            if self.accept("^"):
                if self.accept(r"\circ"):
                    node = ("deg", node)
                elif self.accept("'"):
                    raise NotMath("a prime")
                else:
                    node = ("pow", node, self.exponent())
            elif self.accept("!"):
                node = ("fact", node)
            elif self.accept("%"):
                node = ("pct", node)
            elif self.accept("_"):
                node = self.subscript(node)
            else:
                break
        self.depth -= 1
        return node

    def exponent(self) -> Node:
        """The exponent behind ^."""
        negative = bool(self.accept("-"))
        kind, token = self.peek()
        if (
            kind == "word"
            and len(token) > 1
            and token.lower() not in FUNCTIONS
            and token.lower() not in CONSTANTS
        ):
            self.tokens[self.at : self.at + 1] = [("word", token[0]), ("word", token[1:])]
        node = (
            self.group()
            if self.peek()[1] == "{"
            else (self.power() if self.peek()[1] != "(" else self.atom())
        )
        return ("neg", node) if negative else node

    def subscript(self, node: Node) -> Node:
        """The index of a name, or the base of a number."""
        if self.accept("{"):
            parts = []
            while self.peek()[1] != "}":
                if self.peek()[0] == "end":
                    raise NotMath("an open subscript")
                parts.append(self.take()[1])
            self.take()
            name = "".join(parts)
        else:
            name = self.take()[1]
        name = name.replace(r"\text{", "").strip("{} ")
        if node[0] == "num" and name.isdigit():
            return ("base", written(node[1]), int(name[:3]))
        if node[0] == "sym":
            return ("sym", f"{node[1]}_{name}")
        raise NotMath("a subscript")

    def group(self) -> Node:
        """`{...}`: one value."""
        self.expect("{")
        node = self.relation()
        self.expect("}")
        return node

    def argument(self) -> Node:
        r"""An argument of `\frac` or `\sqrt`: a group, or one token ("\frac12")."""
        if self.peek()[1] == "{":
            return self.group()
        kind, token = self.peek()
        if kind == "num" and len(token) > 1 and token.isdigit():
            self.tokens[self.at] = ("num", token[1:])
            return number(token[0])
        return self.atom()

    def atom(self) -> Node:
        """A number, name, bracket, root, fraction or function."""
        kind, token = self.take()
        if kind in NUMBERS:
            return number(token)
        if kind == "word":
            return named(self, token)
        if kind == "text":
            return ("text", " ".join(token[6:-1].lower().split()))
        if token in ATOMS:
            return ATOMS[token](self, token)
        if kind == "env":
            return ATOMS["env"](self, token)
        if kind == "cmd" and token[1:].isalpha():
            return named(self, token[1:], command=True)
        raise NotMath(f"unexpected {token or 'end'!r}")


def parse(text: str, grouping: bool = True) -> Node:
    """The tree of `text`, which is in the spelling of `plain_latex`. `grouping`: as for `tokens_of`. Raises
    NotMath."""
    tokens = tokens_of(text, grouping)
    if not tokens:
        raise NotMath("empty")
    node = Parser(tokens).parse()
    level, depth = [node], 0
    while level := [child for parent in level for child in parent if isinstance(child, tuple)]:
        depth += 1
        if depth > MAX_LEVELS:
            raise NotMath("too many terms")
    return node
