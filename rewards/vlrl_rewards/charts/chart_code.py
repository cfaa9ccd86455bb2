"""Chart-to-code reward: what a plotting script draws, read from its syntax tree. No code is run."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from PIL import ImageColor

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.charts.crashes import crash_reason
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.recognition.classification import normal_label

MAX_CODE = 20_000
MAX_NODES = 20_000
MAX_VALUES = (
    5_000  # texts and numbers that are read from one script, also through names that stand for long lists
)
DIMENSIONS = ("type", "text", "layout", "colour", "data")
_FENCE = re.compile(r"```(?:[a-zA-Z]{1,12})?[ \t]*\n(.*?)```", re.DOTALL)
_PLAIN_TYPES = (
    "scatter", "bar", "barh", "hist", "pie", "boxplot", "violinplot", "imshow", "heatmap", "contour",
    "contourf", "fill_between", "errorbar",
    "stackplot", "stem", "step", "polar", "hexbin", "quiver",
)  # fmt: skip
_LINES = dict.fromkeys(("plot", "semilogx", "semilogy", "loglog", "lineplot"), "line")
_TYPES = {**{name: name for name in _PLAIN_TYPES}, **_LINES, "scatterplot": "scatter", "barplot": "bar"}
_TEXTS = frozenset(
    (
        "title",
        "set_title",
        "suptitle",
        "xlabel",
        "set_xlabel",
        "ylabel",
        "set_ylabel",
        "zlabel",
        "set_zlabel",
        "legend",
        "text",
        "annotate",
    )
) | frozenset(("xticks", "yticks", "set_xticklabels", "set_yticklabels"))
_WORD = re.compile(r"[^\W_]{2}")
_TEXT_KEYS = frozenset({"label", "labels", "title", "xlabel", "ylabel", "text", "tick_label"})
_COLOUR_KEYS = frozenset({"color", "colors", "c", "facecolor", "edgecolor", "facecolors", "edgecolors"})
_SHORT = {
    "r": "red",
    "g": "green",
    "b": "blue",
    "k": "black",
    "w": "white",
    "y": "yellow",
    "c": "cyan",
    "m": "magenta",
}


def parsed(code: str) -> ast.Module | None:
    """The syntax tree of a script; None if it does not parse, or has more than 20,000 characters or nodes."""
    if len(code) > MAX_CODE:
        return None
    try:
        tree = ast.parse(code)
        return tree if sum(1 for _ in ast.walk(tree)) <= MAX_NODES else None
    except (
        SyntaxError,
        ValueError,
        RecursionError,
        MemoryError,
    ):  # all errors of the parser on text that is not Python
        return None


def colour_name(text: str) -> str:
    """A colour as "#rrggbb" if it is a known name, else as it is written."""
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


def constants(node: ast.AST, known: Mapping[str, ast.AST], depth: int = 0) -> Iterator[Any]:
    """The texts and numbers in an expression; a name that was assigned a value is replaced by the value."""
    if isinstance(node, ast.Constant):
        yield node.value
        return
    if (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
    ):
        value = node.operand.value
        yield -value if isinstance(value, (int, float)) else value
        return
    parts = _PARTS.get(type(node), lambda _: [])(node)
    if isinstance(node, ast.Name) and node.id in known and depth < 3:
        parts, depth = [known[node.id]], depth + 1
    for part in parts:
        yield from constants(part, known, depth)


def chart_of(code: str) -> dict[str, Counter[str]] | None:
    """What a script draws, by dimension: chart types, texts, layout of subplots, colours, numbers. None if it
    is not a script or draws no chart."""
    tree = parsed(code)
    if tree is None:
        return None
    known = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found: dict[str, Counter[str]] = {name: Counter() for name in DIMENSIONS}
    remaining = MAX_VALUES

    def values_of(*nodes: ast.AST) -> list[Any]:
        nonlocal remaining
        values = list(islice((value for node in nodes for value in constants(node, known)), remaining))
        remaining -= len(values)
        return values

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and remaining:
            _read_call(node, node.func.attr, values_of, found)
    return found if found["type"] else None


def _read_call(
    node: ast.Call, name: str, values_of: Callable[..., list[Any]], found: dict[str, Counter[str]]
) -> None:
    """Add what one call draws to `found`."""
    values = values_of(*node.args)
    if name in _TYPES:
        found["type"][_TYPES[name]] += 1
        found["data"].update(
            _written(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)
        )
        categories = (
            normal_label(v) for v in values if isinstance(v, str) and _WORD.search(v)
        )  # a format string such as "k--" has no word
        found["text"].update(filter(None, categories))
    elif name in _TEXTS:
        found["text"].update(filter(None, (normal_label(v) for v in values if isinstance(v, str))))
    elif name in ("subplots", "subplot", "add_subplot"):
        named = {
            k.arg: next(iter(values_of(k.value)), 1) for k in node.keywords if k.arg in ("nrows", "ncols")
        }
        sides = values[:3] if values else [named.get("nrows", 1), named.get("ncols", 1)]
        found["layout"][" ".join(map(str, (name, *sides)))] += 1
    for keyword in node.keywords:
        if keyword.arg in _COLOUR_KEYS | _TEXT_KEYS:
            texts = [v for v in values_of(keyword.value) if isinstance(v, str)]
            plain, place = (colour_name, "colour") if keyword.arg in _COLOUR_KEYS else (normal_label, "text")
            found[place].update(filter(None, map(plain, texts)))


def _written(number: float) -> str:
    """One text for equal numbers, with all their digits: 3 and 3.0 are "3.0"."""
    try:
        return repr(float(number))
    except OverflowError:
        return str(number)


def bag_f1(said: Counter[str], meant: Counter[str]) -> float:
    """F1 of two multisets, 2 |P & G| / (|P| + |G|), in [0, 1]."""
    total = sum(said.values()) + sum(meant.values())
    return 2 * sum((said & meant).values()) / total if total else 0.0


@verifier("chart_code")
@register("chart_code")
@dataclass(frozen=True, kw_only=True)
class ChartCode(Graded):
    """Chart-to-code reward (textual part): F1 of what the predicted and the gold script draw, averaged over
    five dimensions.

        r = mean of F1(predicted, gold) over chart types, texts, layout, colours and data values; a dimension
        that neither script has is left out

    Paper: MSRL, arXiv:2508.13587 (textual reward over five dimensions of the chart code). No released
    training code: DocTron-hub/MSRL, commit 203465d, has the model's usage alone. Deviates:
    rewards/DEVIATIONS.md. Gold: a matplotlib script. Answer: the last fenced block, else the whole text.
    Edge: no Python, more than 20,000 characters or syntax nodes, or no chart: 0; only the first 5,000 texts
    and numbers of a script are read. Extra calls cost as much as missing ones. Range [0, 1].
    """

    refusals = False
    joinable = False
    correct_at: float = 0.9

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        chart = chart_of(code_in(gold)) if isinstance(gold, str) else None
        if chart is None:
            raise GoldError(
                f"answer: the gold {gold!r:.200} is not a script that draws a chart; give matplotlib code"
            )
        target = chart
        answer = self.committed(response)
        code = code_in(answer.text)
        said, tree = chart_of(code), parsed(code)
        if said is None or tree is None:
            raise Unread("no script that draws a chart", answer)
        if reason := crash_reason(tree):
            return self.wrong(answer, f"the script stops: {reason}")
        scores = {name: bag_f1(said[name], target[name]) for name in DIMENSIONS if said[name] or target[name]}
        score = sum(scores.values()) / len(scores)
        return self.scored(
            answer,
            score,
            score >= self.correct_at,
            ", ".join(f"{name} {value:.2f}" for name, value in scores.items()),
        )


def code_in(text: str) -> str:
    """The last fenced block in the first 40,000 characters of a text, else the whole text."""
    blocks = _FENCE.findall(text[: 2 * MAX_CODE])
    return blocks[-1] if blocks else text
