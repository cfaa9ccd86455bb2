"""Responses made to cost time or memory: any number of different ones, a function of the seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

Draw = random.Random


class Bomb(NamedTuple):
    """A wrong response to a question whose gold answer is `gold`."""

    name: str
    kind: str
    gold: str
    response: str
    choices: tuple[str, ...] = ()


def _repeat(unit: str, close: str = "") -> Callable[[Draw], str]:
    def made(draw: Draw) -> str:
        many = draw.choice((30, 300, 3000, 30_000))
        return unit * many + "9" + close * many

    return made


def _nested(opening: str, most: int = 4000) -> Callable[[Draw], str]:
    def made(draw: Draw) -> str:
        depth = draw.randint(20, most)
        return opening * depth + "9" + "}" * depth

    return made


_WORDS = (
    *" $\\{}()[],.:-/|*_^=#&\"'1axAB，。个或½√²", "\n", "\t", "\u0304", "...", "**", "12", "0.", "1,000", "e",
    "or", "and", "not", "is", "so",
    "wait,", "the answer", "answer", "Answer:", "option", "choice", r"\boxed{", r"\text{", r"\frac", r"\sqrt",
    r"\left", r"\,", r"\choose",
    r"\pm", r"\cup", "<think>", "</think>", "<answer>", "</answer>", "yes", "no", "there is", "cm", "hour",
    "A.", "(B)",
)  # fmt: skip


def _refrain(draw: Draw) -> str:
    """A few words repeated, then a character that breaks the pattern: backtracking for regular
    expressions."""
    part = draw.choice(("", " ", " ")).join(draw.choice(_WORDS) for _ in range(draw.randint(1, 4)))
    return part * (draw.choice((300, 3000, 20_000)) // len(part)) + draw.choice("!}$]x")


def _integrand(draw: Draw) -> str:
    return (
        rf"\int {draw.choice(('e', 'x', 'a'))}^{{-x^{draw.randint(3, 9)}}} "
        rf"\sin(x^{{{draw.randint(3, 99)}}}) \ln(\cos x) \, dx"
    )


# Targets: big integers, expansion, the depth of the parser, regular expressions, math-verify, numeric
# evaluation.
_MATHEMATICS: dict[str, Callable[[Draw], str]] = {
    "tower": lambda d: "^{".join([str(d.randint(7, 99))] * d.randint(3, 40)) + "}" * 39,
    "flat tower": lambda d: "^".join([str(d.randint(7, 99))] * d.randint(3, 60)),
    "python tower": lambda d: "**".join([str(d.randint(7, 99))] * d.randint(3, 60)),
    "factorials": lambda d: "(" * 5 + str(d.randint(9, 99)) + "!)" * 5,
    "big factorial": lambda d: f"{d.randint(10**4, 10**12)}!",
    "factorial product": lambda d: r"\cdot ".join(
        f"{d.randint(900, 1999)}!" for _ in range(d.randint(2, 400))
    ),
    "big binomial": lambda d: rf"\binom{{{d.randint(10**8, 10**9)}}}{{{d.randint(10**7, 10**8)}}}",
    "big power": lambda d: f"{d.randint(2, 9)}^{{{d.randint(10**5, 10**12)}}}",
    "power of a sum": lambda d: f"(x+y+z+{d.randint(1, 9)})^{{{d.randint(50, 10**5)}}}",
    "modular power": lambda d: (
        rf"{d.randint(2, 9)}^{{{d.randint(10**8, 10**12)}}} \bmod {d.randint(100, 999)}"
    ),
    "fractions": lambda d: "+".join(
        rf"\frac{{{d.randint(1, 9)}}}{{{i}^{{{i}}}}}" for i in range(2, d.randint(40, 300))
    ),
    "quotients of powers": lambda d: "+".join(
        rf"\frac{{3^{{{d.randint(9000, 99000)}}}}}{{7^{{{d.randint(9000, 60000)}}}}}" for _ in range(20)
    ),
    "long sum": lambda d: rf"\sum_{{k=1}}^{{{d.randint(500, 10**12)}}} k^{{k}}",
    "double sum": lambda d: (
        rf"\sum_{{i=1}}^{{{d.randint(900, 2000)}}}\sum_{{j=1}}^{{1999}} \sin(ij+{d.randint(1, 99)})"
    ),
    "endless sum": lambda d: rf"\sum_{{k=1}}^{{\infty}} \frac{{\sin(k^{d.randint(2, 5)})}}{{k}}",
    "sum in a sum": lambda d: r"\sum_{i=1}^{\infty} " * d.randint(2,
        9) + rf"\frac{{1}}{{i^{{{d.randint(2, 5)}}}}}",
    "integral": lambda d: rf"\int_0^{{{d.randint(1, 99)}}} \sin(x^{{x^{{x}}}})\,dx",
    "integrals": lambda d: r"\int_0^1" * d.randint(2,
        6) + rf" \sin(xyz+{d.randint(1, 99)})" + r"\,dx\,dy\,dz",
    "indefinite integral": _integrand,
    "limit": lambda d: r"\lim_{x\to 0} " * d.randint(1, 6) + rf"x^{{x^{{{d.randint(2, 9)}x}}}}",
    "determinant": lambda d: (
        r"\begin{vmatrix}"
        + r"\\".join("&".join([f"x^{{y^{{{d.randint(2, 9)}}}}}"] * 4) for _ in range(4))
        + r"\end{vmatrix}"
    ),
    "wide matrix": lambda d: r"\begin{pmatrix}" + "1&" * d.randint(100, 9000) + r"1\end{pmatrix}",
    "roots of sums": lambda d: ",".join(
        rf"\sqrt{{{i}}}+\sqrt{{{d.randint(2, 99)}}}" for i in range(d.randint(20, 200))
    ),
    "unknown command": lambda d: rf"\oint_{{\Gamma}} \frac{{z^{{{d.randint(2, 99)}}}}}{{(z-1)^{{9}}}}\,dz",
    "polynomial": lambda d: rf"\prod_{{k=1}}^{{n}} (x-k)^{{{d.randint(3, 30)}}}",
    "digits": lambda d: "9" * d.randint(500, 100_000),
    "decimals": lambda d: "0." + "37" * d.randint(500, 50_000) + "...",
    "exponent": lambda d: f"1e{d.randint(400, 10**12)}",
    "gcd": lambda d: r"\gcd(" * d.randint(20, 200) + "2,4" + ")" * 200,
}  # fmt: skip
_READING: dict[str, Callable[[Draw], str]] = {
    "refrain": _refrain,
    "braces": _repeat("{", "}"), "brackets": _repeat("(", ")"), "squares": _repeat("[", "]"),
    "bars": _repeat("|"), "dollars": _repeat("$"),
    "minus": _repeat("-"),
    "plus": _repeat("x+"), "commas": _repeat("1,"), "slashes": _repeat("1/"), "colons": _repeat("1:"),
    "blanks": _repeat(" "),
    "lines": _repeat("\n"), "stars": _repeat("**"), "not": _repeat("not "), "wait": _repeat("wait, "),
    "actually": _repeat("actually "),
    "phrases": _repeat("the answer is "), "bold phrases": _repeat("**Answer:** "),
    "headings": _repeat("### Answer\n"),
    "fields": _repeat('"answer": '),
    "think": _repeat("<think>"), "unthink": _repeat("</think>"), "answers": _repeat("<answer>"),
    "unanswers": _repeat("</answer>"),
    "boxes": _repeat(r"\boxed{"), "texts": _repeat(r"\text{"), "commands": _repeat(r"\frac"),
    "limits": _repeat(r"\lim_{x\to "),
    "accents": _repeat("e\u0301"), "zero width": _repeat("\u200b"), "letters": _repeat("A or "),
    "words": _repeat("yes no "),
    "units": _repeat("1 hour "),
    "initials": _repeat("U.S. "), "ordinals": _repeat("the first option "), "grouped": _repeat("1,000"),
    "backslashes": _repeat("\\"),
    "boxed powers": _nested(r"\boxed{x^{"), "nested fractions": _nested(r"\frac{1}{"),
    "nested roots": _nested(r"\sqrt{1+"),
    "nested powers": _nested("x^{"),
    "nested text": _nested(r"\text{"), "nested functions": _nested(r"\sin{"),
    "nested boxes": _nested(r"\boxed{"),
}  # fmt: skip
_KINDS = {"math": "5", "numeric": "5", "text": "Paris", "mcq": "B", "yes_no": "yes", "auto": "5"}
_WRAPPERS = (r"\boxed{%s}", "<answer>%s</answer>", "The answer is %s.", "%s", "<think>hm</think>%s", "$%s$")


def bombs(count: int, seed: int = 0) -> Iterator[Bomb]:
    """`count` bombs: half are mathematics for the mathematical kinds, half are hard to parse for the readers
    of all kinds."""
    draw = random.Random(seed)
    for i in range(count):
        table = _MATHEMATICS if i % 2 else _READING
        name = list(table)[i // (2 if i % 2 else 4) % len(table)] if i % 4 else "refrain"
        kind = (
            draw.choice(("math", "math", "numeric", "auto"))
            if table is _MATHEMATICS
            else draw.choice(list(_KINDS))
        )
        response = draw.choice(_WRAPPERS).replace("%s", table[name](draw))
        yield Bomb(
            name, kind, _KINDS[kind], response, ("London", "Paris", "Rome", "Berlin") if kind == "mcq" else ()
        )
