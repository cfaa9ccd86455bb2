r"""Mathematics to a tree of tuples, by a hand-written parser: nothing is evaluated, depth is bounded, nothing backtracks.

Nodes: ("num", Fraction, digits), digits = significant digits of a decimal literal, 0 for an exact number; ("sym", name); ("const", name);
("text", words);
("add"|"mul"|"div"|"pow"|"pm"|"mp", a, b); ("neg"|"fact"|"pct"|"deg", a); ("fn", name, a, ...); ("seq", open, close, items...);
("rel", a, op, b, op, c ...); ("cup"|"cap"|"minus", a, b); ("matrix", (row), ...); ("base", digits, base);
("sum"|"prod", index, low, high, term); ("int", letter, low, high, integrand); ("lim", letter, target, side, body).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from vlrl_rewards.mathnames import CONSTANTS, FUNCTIONS, GREEK, NUMBERS, RELATIONS
from vlrl_rewards.mathtokens import Node, NotMath, Token, number, tokens_of

MAX_DEPTH = 60


class Parser:
    """Recursive descent."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0

    def peek(self, ahead: int = 0) -> Token:
        """The token `ahead` of here, ('end', '') behind the last."""
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ("end", "")

    def take(self) -> Token:
        """The next token, used up."""
        token = self.peek()
        self.at += 1
        return token

    def accept(self, *texts: str) -> str:
        """Use up the next token if it is one of `texts`; it, or ''."""
        token = self.peek()[1]
        if token and token in texts:
            self.at += 1
            return token
        return ""

    def expect(self, *texts: str) -> str:
        """Use up one of `texts`. Raises NotMath if it is not there."""
        found = self.accept(*texts)
        if not found:
            raise NotMath(f"expected {texts[0]!r}, got {self.peek()[1]!r}")
        return found

    def parse(self) -> Node:
        """All tokens as one tree. Raises NotMath."""
        items = self.items()
        if self.peek()[0] != "end":
            raise NotMath(f"left over: {self.peek()[1]!r}")
        return items[0] if len(items) == 1 else ("seq", "", "", *items)

    def items(self) -> list[Node]:
        """Relations parted by commas, semicolons, 'and', 'or'."""
        items = [self.relation()]
        while self.separator():
            if self.peek()[0] == "end" or self.peek()[1] in (")", "]", "}", r"\}", r"\rangle"):
                break
            items.append(self.relation())
        return items

    def separator(self) -> bool:
        """Use up separators; whether there were any."""
        found = False
        while self.peek()[1] in (",", ";") or self.word() in ("and", "or"):
            self.take()
            found = True
        return found

    def word(self) -> str:
        """The next token as a lower-case word, or ''."""
        kind, token = self.peek()
        return token.lower() if kind == "word" else (token[6:-1].strip(" ,").lower() if kind == "text" else "")

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
        """Powers joined by times, over, or nothing."""
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
            elif starts_atom(self):
                node = implicit(self, node)
            else:
                return node

    def ratio(self, first: Node) -> Node:
        """a : b is a quotient; a : b : c are the quotients to the first."""
        parts = []
        while self.accept(":"):
            parts.append(self.signed())
        return ("div", first, parts[0]) if len(parts) == 1 else ("seq", ":", ":", *(("div", part, first) for part in parts))

    def times_x(self) -> bool:
        """Whether an x stands for times ('3 x 10^8')."""
        follows = self.tokens[self.at - 1][0] in NUMBERS and self.peek(1)[1] == "10" and self.peek(2)[1] == "^"
        return follows and self.peek()[1] in ("x", "X")

    def signed(self) -> Node:
        """A power with its signs."""
        negative = False
        while True:
            sign = self.accept("-", "+")
            if not sign:
                break
            negative ^= sign == "-"
        node = power(self)
        return ("neg", node) if negative else node

    def deeper(self) -> None:
        """Raises NotMath beyond MAX_DEPTH."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotMath("nested too deeply")


def starts_atom(p: Parser) -> bool:
    """Whether the next token can be multiplied on without a sign."""
    kind, token = p.peek()
    if kind in NUMBERS or kind == "word":
        return p.word() not in ("and", "or", "u", "union")
    return token in ("(", "[", "{", r"\{", r"\sqrt", r"\frac", r"\binom", r"\lfloor", r"\lceil", r"\sum", r"\int", r"\prod", r"\lim") or (
        kind == "cmd" and (token[1:] in FUNCTIONS or token[1:] in CONSTANTS or token[1:] in GREEK)
    )


def implicit(p: Parser, node: Node) -> Node:
    """`node` times what stands next to it; "7\\frac{3}{4}" is a mixed number; two plain numbers side by side are an error."""
    before, (kind, token) = p.tokens[p.at - 1], p.peek()
    if kind in NUMBERS and before[1] not in (")", "]", "}", "!") and before[0] != "word" and before[0] != "cmd":
        raise NotMath("two numbers side by side")
    factor = power(p)
    if token == r"\frac" and before[0] in ("num", "grouped") and node[0] == "num" and factor[0] == "div":
        top, below = factor[1], factor[2]
        if top[0] == below[0] == "num" and top[2] == below[2] == node[2] == 0 and 0 <= top[1] < below[1]:
            return ("add", node, factor)
    return ("mul", node, factor)


def power(p: Parser) -> Node:
    """An atom with its exponents, factorials, percent and degree signs."""
    p.deeper()
    node = atom(p)
    while True:
        if p.accept("^"):
            if p.accept(r"\circ"):
                node = ("deg", node)
            elif p.accept("'"):
                raise NotMath("a prime")
            else:
                node = ("pow", node, exponent(p))
        elif p.accept("!"):
            node = ("fact", node)
        elif p.accept("%"):
            node = ("pct", node)
        elif p.accept("_"):
            node = subscript(p, node)
        else:
            break
    p.depth -= 1
    return node


def exponent(p: Parser) -> Node:
    """What stands behind ^."""
    negative = bool(p.accept("-"))
    kind, token = p.peek()
    if kind == "word" and len(token) > 1 and token.lower() not in FUNCTIONS and token.lower() not in CONSTANTS:
        p.tokens[p.at : p.at + 1] = [("word", token[0]), ("word", token[1:])]
    node = group(p) if p.peek()[1] == "{" else (power(p) if p.peek()[1] != "(" else atom(p))
    return ("neg", node) if negative else node


def subscript(p: Parser, node: Node) -> Node:
    """A name's index, or a number's base."""
    if p.accept("{"):
        parts = []
        while p.peek()[1] != "}":
            if p.peek()[0] == "end":
                raise NotMath("an open subscript")
            parts.append(p.take()[1])
        p.take()
        name = "".join(parts)
    else:
        name = p.take()[1]
    name = name.replace(r"\text{", "").strip("{} ")
    if node[0] == "num" and name.isdigit():
        return ("base", str(node[1]), int(name[:3]))
    if node[0] == "sym":
        return ("sym", f"{node[1]}_{name}")
    raise NotMath("a subscript")


def group(p: Parser) -> Node:
    """`{...}`: one value."""
    p.expect("{")
    node = p.relation()
    p.expect("}")
    return node


def argument(p: Parser) -> Node:
    r"""What `\frac` and `\sqrt` take: a group, or one token ("\frac12")."""
    if p.peek()[1] == "{":
        return group(p)
    kind, token = p.peek()
    if kind == "num" and len(token) > 1 and token.isdigit():
        p.tokens[p.at] = ("num", token[1:])
        return number(token[0])
    return atom(p)


def atom(p: Parser) -> Node:
    """A number, name, bracket, root, fraction or function."""
    from vlrl_rewards.mathatoms import ATOMS, named

    kind, token = p.take()
    if kind in NUMBERS:
        return number(token)
    if kind == "word":
        return named(p, token)
    if kind == "text":
        return ("text", " ".join(token[6:-1].lower().split()))
    if token in ATOMS:
        return ATOMS[token](p, token)
    if kind == "env":
        return ATOMS["env"](p, token)
    if kind == "cmd" and token[1:].isalpha():
        return named(p, token[1:], command=True)
    raise NotMath(f"unexpected {token or 'end'!r}")


def parse(text: str, grouping: bool = True) -> Node:
    """The tree of `text` (already in the spelling of `plain_latex`). Raises NotMath."""
    tokens = tokens_of(text, grouping)
    if not tokens:
        raise NotMath("empty")
    return Parser(tokens).parse()
