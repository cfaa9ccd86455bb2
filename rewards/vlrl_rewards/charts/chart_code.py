"""Rewards for charts as code: what a plotting script would draw, read from its syntax tree. Nothing is run."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from PIL import ImageColor

from vlrl.registry import register
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged
from vlrl_rewards.recognition.classification import normal_label

MAX_CODE = 20_000
MAX_NODES = 20_000
MAX_VALUES = 5_000  # texts and numbers of a script that are read, names that stand for long lists included
DIMENSIONS = ("type", "text", "layout", "colour", "data")
_FENCE = re.compile(r"```(?:[a-zA-Z]{1,12})?[ \t]*\n(.*?)```", re.DOTALL)
_PLAIN_TYPES = (
    "scatter", "bar", "barh", "hist", "pie", "boxplot", "violinplot", "imshow", "heatmap", "contour", "contourf", "fill_between", "errorbar",
    "stackplot", "stem", "step", "polar", "hexbin", "quiver",
)  # fmt: skip
_LINES = dict.fromkeys(("plot", "semilogx", "semilogy", "loglog", "lineplot"), "line")
_TYPES = {**{name: name for name in _PLAIN_TYPES}, **_LINES, "scatterplot": "scatter", "barplot": "bar"}
_TEXTS = frozenset(
    ("title", "set_title", "suptitle", "xlabel", "set_xlabel", "ylabel", "set_ylabel", "zlabel", "set_zlabel", "legend", "text", "annotate")
) | frozenset(("xticks", "yticks", "set_xticklabels", "set_yticklabels"))
_WORD = re.compile(r"[^\W_]{2}")
_TEXT_KEYS = frozenset({"label", "labels", "title", "xlabel", "ylabel", "text", "tick_label"})
_COLOUR_KEYS = frozenset({"color", "colors", "c", "facecolor", "edgecolor", "facecolors", "edgecolors"})
_SHORT = {"r": "red", "g": "green", "b": "blue", "k": "black", "w": "white", "y": "yellow", "c": "cyan", "m": "magenta"}


def parsed(code: str) -> ast.Module | None:
    """The syntax tree of a script of at most 20,000 characters, or None."""
    if len(code) > MAX_CODE:
        return None
    try:
        tree = ast.parse(code)
        return tree if sum(1 for _ in ast.walk(tree)) <= MAX_NODES else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the parser's ways to say that this is no script
        return None


def colour_name(text: str) -> str:
    """A colour as "#rrggbb" where it is known, else as it is written."""
    plain = text.strip().lower().removeprefix("tab:")
    if re.fullmatch(r"#[0-9a-f]{3}", plain):
        plain = "#" + "".join(c * 2 for c in plain[1:])
    known = ImageColor.colormap.get(_SHORT.get(plain, plain), plain)
    return known.lower() if isinstance(known, str) else "#{:02x}{:02x}{:02x}".format(*known)


_PARTS: dict[type, Callable[[Any], Sequence[ast.AST]]] = {
    ast.List: lambda node: node.elts,
    ast.Tuple: lambda node: node.elts,
    ast.Dict: lambda node: [*filter(None, node.keys), *node.values],
    ast.Call: lambda node: node.args,  # np.array([...])
}


def constants(node: ast.AST, known: dict[str, ast.AST], depth: int = 0) -> Iterator[Any]:
    """Texts and numbers in an expression; names that were given a value stand for it."""
    if isinstance(node, ast.Constant):
        yield node.value
        return
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        yield -value if isinstance(value, (int, float)) else value
        return
    parts = _PARTS.get(type(node), lambda _: [])(node)
    if isinstance(node, ast.Name) and node.id in known and depth < 3:
        parts, depth = [known[node.id]], depth + 1
    for part in parts:
        yield from constants(part, known, depth)


def chart_of(code: str) -> dict[str, Counter[str]] | None:
    """What a script draws, by dimension: kinds of chart, texts, layout of subplots, colours, numbers. None if it is no script, or draws nothing."""
    tree = parsed(code)
    if tree is None:
        return None
    known = {
        target.id: node.value for node in ast.walk(tree) if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)
    }
    found: dict[str, Counter[str]] = {name: Counter() for name in DIMENSIONS}
    left = MAX_VALUES

    def values_of(*nodes: ast.AST) -> list[Any]:
        nonlocal left
        values = list(islice((value for node in nodes for value in constants(node, known)), left))
        left -= len(values)
        return values

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and left:
            _read_call(node, node.func.attr, values_of, found)
    return found if found["type"] else None


def _read_call(node: ast.Call, name: str, values_of: Callable[..., list[Any]], found: dict[str, Counter[str]]) -> None:
    values = values_of(*node.args)
    if name in _TYPES:
        found["type"][_TYPES[name]] += 1
        found["data"].update(f"{v:g}" for v in values if isinstance(v, (int, float)) and not isinstance(v, bool))
        found["text"].update(filter(None, (normal_label(v) for v in values if isinstance(v, str) and _WORD.search(v))))  # categories, not "k--"
    elif name in _TEXTS:
        found["text"].update(filter(None, (normal_label(v) for v in values if isinstance(v, str))))
    elif name in ("subplots", "subplot", "add_subplot"):
        named = {k.arg: next(iter(values_of(k.value)), 1) for k in node.keywords if k.arg in ("nrows", "ncols")}
        sides = values[:3] if values else [named.get("nrows", 1), named.get("ncols", 1)]
        found["layout"][" ".join(map(str, (name, *sides)))] += 1
    for keyword in node.keywords:
        if keyword.arg in _COLOUR_KEYS | _TEXT_KEYS:
            texts = [v for v in values_of(keyword.value) if isinstance(v, str)]
            plain, place = (colour_name, "colour") if keyword.arg in _COLOUR_KEYS else (normal_label, "text")
            found[place].update(filter(None, map(plain, texts)))


def bag_f1(said: Counter[str], meant: Counter[str]) -> float:
    """2 |P & G| / (|P| + |G|) of two bags, in [0, 1]."""
    total = sum(said.values()) + sum(meant.values())
    return 2 * sum((said & meant).values()) / total if total else 0.0


@judged("chart_code")
@register("chart_code")
@dataclass(frozen=True, kw_only=True)
class ChartCode(Graded):
    """r = mean over the dimensions that either script has of F1(said, gold): kinds of chart, texts, layout, colours, data values.

    Paper: MSRL, arXiv:2508.13587 (textual reward over five dimensions of the chart code).
    Deviates: the scripts are read, not run (a value that only running would give is not seen), and the dimensions weigh the same; how the paper
    weighs them is not known to us. The visual reward needs a second model and is left out.
    Edge: no Python, more than 20,000 characters, or nothing drawn: 0. Extra calls cost as much as missing ones. Range [0, 1].
    Gold: a matplotlib script. Read: the last fenced block of the answer, else all of it.
    """

    refusals = False
    joinable = False
    correct_at: float = 0.9

    def target(self, gold: Any, scene: Scene) -> dict[str, Counter[str]]:
        chart = chart_of(code_in(gold)) if isinstance(gold, str) else None
        if chart is None:
            raise ValueError(f"answer: the gold {gold!r:.200} is no script that draws a chart; give matplotlib code")
        return chart

    def grade(self, target: dict[str, Counter[str]], answer: Answer, scene: Scene) -> Grade:
        said = chart_of(code_in(answer.text))
        if said is None:
            return self.refuse("no script that draws a chart")
        scores = {name: bag_f1(said[name], target[name]) for name in DIMENSIONS if said[name] or target[name]}
        score = sum(scores.values()) / len(scores)
        return Grade(score, score >= self.correct_at, ", ".join(f"{name} {value:.2f}" for name, value in scores.items()))


def code_in(text: str) -> str:
    """The last fenced block of a text, else all of it."""
    blocks = _FENCE.findall(text[: 2 * MAX_CODE])
    return blocks[-1] if blocks else text
