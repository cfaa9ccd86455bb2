"""The atoms of the mathematics parser: brackets, roots, fractions, functions, names, matrices, sums,
integrals and limits."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from fractions import Fraction

from vlrl_rewards.math.lexer import CLOSING, CONSTANTS, FUNCTIONS, GREEK, Node, NotMath, TokenCursor

_ENGLISH = frozenset((
    "not", "no", "so", "the", "is", "are", "was", "it", "its", "he", "she", "we", "you", "i'm", "of", "by",
    "to", "in", "on", "at", "if", "as",
    "be", "an", "any", "all", "but", "yes", "nor", "per", "has", "had", "can", "may", "let", "get",
))  # fmt: skip


class Grammar(TokenCursor):
    """The rules of the grammar that an atom calls for its parts. `Parser` implements them."""

    @abstractmethod
    def items(self) -> list[Node]:
        """Relations separated by commas, semicolons, "and", "or"."""

    @abstractmethod
    def relation(self) -> Node:
        """Unions joined by =, <, ..."""

    @abstractmethod
    def sum(self) -> Node:
        """Products joined by +, -, plus-minus."""

    @abstractmethod
    def product(self) -> Node:
        """Powers joined by multiplication (also implicit) and division."""

    @abstractmethod
    def power(self) -> Node:
        """An atom with its exponents, factorials, percent and degree signs."""

    @abstractmethod
    def exponent(self) -> Node:
        """The exponent behind ^."""

    @abstractmethod
    def group(self) -> Node:
        """`{...}`: one value."""

    @abstractmethod
    def argument(self) -> Node:
        """An argument of a LaTeX command: a group, or one token."""

    @abstractmethod
    def atom(self) -> Node:
        """A number, name, bracket, root, fraction or function."""

    @abstractmethod
    def starts_atom(self) -> bool:
        """Whether the next token can be an implicit factor."""


def bracket(p: Grammar, opening: str) -> Node:
    """`(a)` is a; `(a, b)`, `[a, b)`, `\\{a\\}` are sequences that keep their brackets."""
    if p.accept(*CLOSING[opening]):
        return ("const", "empty") if "{" in opening else ("seq", opening, ")")
    items = p.items()
    closing = p.expect(*CLOSING[opening])
    if len(items) == 1 and opening in ("(", "[", "{") and closing == CLOSING[opening][0]:
        return items[0]
    return ("seq", opening.strip("\\"), closing.strip("\\"), *items)


def fraction(p: Grammar, _: str) -> Node:
    """`\\frac{a}{b}`."""
    return ("div", p.argument(), p.argument())


def binomial(p: Grammar, _: str) -> Node:
    """`\\binom{n}{k}`."""
    return ("fn", "binom", p.argument(), p.argument())


def root(p: Grammar, _: str) -> Node:
    """`\\sqrt{a}`, `\\sqrt[n]{a}`."""
    index: Node = ("num", Fraction(2), 0)
    if p.accept("["):
        index = p.sum()
        p.expect("]")
    return ("fn", "root", p.argument(), index)


def absolute(p: Grammar, _: str) -> Node:
    """`|a|`."""
    node = p.sum()
    p.expect("|")
    return determinant(list(node[1:])) if node[0] == "matrix" else ("fn", "abs", node)


def rounded(p: Grammar, token: str) -> Node:
    """Floor and ceiling."""
    node = p.sum()
    p.expect({r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}[token])
    return ("fn", {r"\lfloor": "floor", r"\lceil": "ceil"}[token], node)


def number_set(p: Grammar, _: str) -> Node:
    """`\\mathbb{R}` is the interval from -inf to inf; other number sets are names."""
    braced = p.accept("{")
    name = p.take()[1]
    if braced:
        p.expect("}")
    infinity = ("const", "inf")
    return ("seq", "(", ")", ("neg", infinity), infinity) if name == "R" else ("sym", f"set {name}")


def matrix(p: Grammar, token: str) -> Node:
    r"""`\begin{pmatrix} a & b \\ c & d \end{pmatrix}`, `\begin{cases} ...`; other environments raise
    NotMath."""
    if "{cases" in token and not token.startswith(r"\end"):
        return cases(p)
    if ("matrix" not in token and "array" not in token) or token.startswith(r"\end"):
        raise NotMath(token)
    rows: list[tuple[Node, ...]] = []
    row: list[Node] = [p.relation()]
    while not p.peek()[1].startswith(r"\end"):
        if p.accept("&"):
            row.append(p.relation())
        elif p.accept(r"\cr"):
            rows.append(tuple(row))
            row = []
            if not p.peek()[1].startswith(r"\end"):
                row = [p.relation()]
        else:
            raise NotMath("a broken matrix")
    p.take()
    rows += [tuple(row)] if row else []
    return determinant(rows) if "{vmatrix" in token else ("matrix", *rows)


def cases(p: Grammar) -> Node:
    r"""`\begin{cases} a & x > 0 \\ b & \text{otherwise} \end{cases}`: ("cases", (value, condition), ...);
    "otherwise" is ("text", "otherwise")."""
    rows: list[tuple[Node, Node]] = []
    while not p.peek()[1].startswith(r"\end"):
        value = p.relation()
        p.accept(",", ";")
        p.expect("&")
        while p.word() in ("if", "for", "when", "where", ""):
            if p.peek()[0] not in ("word", "text"):
                break
            p.take()
        if p.word() in ("otherwise", "else", "elsewhere", "if otherwise"):
            p.take()
            condition: Node = ("text", "otherwise")
        else:
            items = p.items()
            condition = items[0] if len(items) == 1 else ("seq", "", "", *items)
        p.accept(",", ";")
        rows.append((value, condition))
        if not p.accept(r"\cr"):
            break
    if not rows or not p.take()[1].startswith(r"\end"):
        raise NotMath("broken cases")
    return ("cases", *rows)


def determinant(rows: list[tuple[Node, ...]]) -> Node:
    """The determinant, by Laplace expansion along the first row. Raises NotMath unless it is square and at
    most 4 x 4."""
    if not 1 <= len(rows) <= 4 or any(len(row) != len(rows) for row in rows):
        raise NotMath("no determinant")
    if len(rows) == 1:
        return rows[0][0]
    total: Node = ("num", Fraction(0), 0)
    for i, entry in enumerate(rows[0]):
        term: Node = ("mul", entry, determinant([row[:i] + row[i + 1 :] for row in rows[1:]]))
        total = ("add", total, ("neg", term) if i % 2 else term)
    return total


def function(p: Grammar, name: str) -> Node:
    """`sin x`, `\\sin^2(2x)`, `log_2 8`, `gcd(4, 6)`, `sqrt 2`."""
    raised, base = None, None
    while p.peek()[1] in ("^", "_"):
        mark = p.take()[1]
        value = p.exponent()
        raised, base = (value, base) if mark == "^" else (raised, value)
    if p.peek()[1] in ("(", "["):
        closing = CLOSING[p.take()[1]][0]
        arguments = p.items()
        p.expect(closing)
    elif p.peek()[1] == "{":
        arguments = [p.argument()]
    else:
        node = p.power()
        while name != "sqrt" and p.starts_atom() and not _is_function(p):
            node = ("mul", node, p.power())
        arguments = [node]
    if raised == ("neg", ("num", Fraction(1), 0)) and name in ("sin", "cos", "tan"):
        name, raised = "arc" + name, None
    node = (
        ("fn", "root", arguments[0], ("num", Fraction(2), 0)) if name == "sqrt" else ("fn", name, *arguments)
    )
    if base is not None:
        node = ("fn", "logbase", arguments[0], base)
    return ("pow", node, raised) if raised is not None else node


def _is_function(p: Grammar) -> bool:
    return p.peek()[1].lstrip("\\") in FUNCTIONS


def named(p: Grammar, token: str, command: bool = False) -> Node:
    """A word or a command: function, constant, Greek letter, or a product of letters."""
    low = token if command else token.lower()
    if low in FUNCTIONS:
        return function(p, {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}.get(low, low))
    if token in CONSTANTS or (not command and len(low) > 1 and low in CONSTANTS):
        return ("const", CONSTANTS[token if token in CONSTANTS else low])
    if token in GREEK:
        return ("sym", token)
    if command:
        raise NotMath(f"the command \\{token}")
    if len(token) == 1:
        return (
            chosen(p)
            if token == "C"
            and [p.peek(i)[0 if i % 2 else 1] for i in range(5)] == ["(", "num", ",", "num", ")"]
            else ("sym", token)
        )
    glued = re.fullmatch(r"(sqrt|pi)([a-z])", low)
    letters_only = len(token) <= 3 and (len(p.tokens) > 1 or len(token) == 2)
    if glued or not letters_only or low in _ENGLISH:
        raise NotMath(f"the word {token!r}")
    node: Node = letter(token[0])
    for char in token[1:]:
        node = ("mul", node, letter(char))
    return node


def chosen(p: Grammar) -> Node:
    """`C(5, 2)`."""
    p.take()
    above, below = p.items()
    p.take()
    return ("fn", "binom", above, below)


def letter(char: str) -> Node:
    """One letter of a product of letters; "e" and "i" are constants."""
    return ("const", char) if char in "ei" else ("sym", char)


def bounds(p: Grammar, name: str) -> tuple[str, Node, Node]:
    r"""The index and bounds of `\sum_{i=1}^{n}`, or ("", low, high) of `\int_a^b`."""
    low: Node | None = None
    high: Node | None = None
    while p.peek()[1] in ("_", "^"):
        mark = p.take()[1]
        value = p.group() if p.peek()[1] == "{" else (("neg", p.atom()) if p.accept("-") else p.atom())
        low, high = (value, high) if mark == "_" else (low, value)
    if low is None or high is None:
        raise NotMath("no bounds")
    if name == "int":
        return "", low, high
    if low[0] != "rel" or len(low) != 4 or low[2] != "=" or low[1][0] not in ("sym", "const"):
        raise NotMath("no index")
    return low[1][1], low[3], high


def series(p: Grammar, token: str) -> Node:
    """A finite sum or product: ("sum"|"prod", index, low, high, term)."""
    name = token.lstrip("\\")
    index, low, high = bounds(p, name)
    return (name, index, low, high, _rename(p.product(), index))


def _rename(node: Node, index: str) -> Node:
    """The tree with the index as a symbol: inside its series "i" is not the imaginary unit."""
    if node == ("const", index):
        return ("sym", index)
    return tuple(_rename(child, index) if isinstance(child, tuple) and child else child for child in node)


def integral(p: Grammar, token: str) -> Node:
    """A definite integral over one letter: ("int", letter, low, high, integrand). The integrand ends at "d"
    and a letter."""
    _, low, high = bounds(p, "int")
    end = next(
        (
            i
            for i in range(p.at, len(p.tokens))
            if re.fullmatch(r"[a-z]*d[a-z]", p.tokens[i][1]) and p.tokens[i][0] == "word"
        ),
        None,
    )
    if end is None and any(p.tokens[i][1] == "d" for i in range(p.at, len(p.tokens) - 1)):
        end = next(i for i in range(p.at, len(p.tokens) - 1) if p.tokens[i][1] == "d")
        p.tokens[end : end + 2] = [("word", "d" + p.tokens[end + 1][1])]
    if end is None:
        raise NotMath("no differential")
    word = p.tokens[end][1]
    p.tokens[end : end + 1] = ([("word", word[:-2])] if word[:-2] else []) + [("op", "~d"), ("sym", word[-1])]
    body: Node = ("num", Fraction(1), 0) if p.peek()[1] == "~d" else p.sum()
    p.expect("~d")
    return ("int", p.take()[1], low, high, body)


def limit(p: Grammar, _: str) -> Node:
    r"""`\lim_{x \to a} f`: ("lim", letter, target, side, body); side "+", "-" or "" for both."""
    p.expect("_")
    p.expect("{")
    name = p.take()
    p.expect(r"\to")
    end = next((i for i in range(p.at, len(p.tokens)) if p.tokens[i][1] == "^"), len(p.tokens))
    tail = "".join(token for _, token in p.tokens[end : end + 5])
    side = next(
        (sign for sign in "+-" for form in (f"^{sign}}}", f"^{{{sign}}}}}") if tail.startswith(form)), ""
    )
    if side:
        del p.tokens[end : end + (2 if tail[1] == side else 4)]
    target = p.sum()
    p.expect("}")
    if name[0] != "word" or len(name[1]) != 1:
        raise NotMath("no letter goes to a limit")
    return ("lim", name[1], target, side, _rename(p.product(), name[1]))


ATOMS: dict[str, Callable[[Grammar, str], Node]] = {
    "(": bracket, "[": bracket, "{": bracket, r"\{": bracket, r"\langle": bracket, r"\frac": fraction,
    r"\binom": binomial, r"\sqrt": root,
    "|": absolute, r"\lfloor": rounded, r"\lceil": rounded, r"\mathbb": number_set, "env": matrix,
    r"\sum": series, r"\prod": series, r"\int": integral, r"\lim": limit,
}  # fmt: skip
