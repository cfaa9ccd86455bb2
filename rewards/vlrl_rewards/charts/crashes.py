"""Why a plotting script would stop with an error, seen from its syntax tree. No code is run."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence

_BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}
_PYPLOT = frozenset((
    "acorr", "annotate", "arrow", "autoscale", "axes", "axhline", "axhspan", "axis", "axline", "axvline",
    "axvspan", "bar", "bar_label", "barbs",
    "barh", "box", "boxplot", "broken_barh", "cla", "clabel", "clf", "clim", "close", "cm", "colorbar",
    "contour", "contourf", "csd", "delaxes",
    "draw", "errorbar", "eventplot", "figimage", "figlegend", "figtext", "figure", "fill", "fill_between",
    "fill_betweenx", "gca", "gcf", "get_cmap",
    "grid", "hexbin", "hist", "hist2d", "hlines", "imread", "imsave", "imshow", "legend", "locator_params",
    "loglog", "margins", "matshow",
    "minorticks_off", "minorticks_on", "pause", "pcolor", "pcolormesh", "pie", "plot", "plot_date", "polar",
    "quiver", "quiverkey", "rc", "rcParams",
    "savefig", "sca", "scatter", "semilogx", "semilogy", "set_cmap", "setp", "show", "specgram", "spy",
    "stackplot", "stairs", "stem", "step",
    "streamplot", "style", "subplot", "subplot2grid", "subplot_mosaic", "subplots", "subplots_adjust",
    "suptitle", "switch_backend", "table", "text",
    "tick_params", "ticklabel_format", "tight_layout", "title", "tricontour", "tricontourf", "tripcolor",
    "triplot", "twinx", "twiny", "violinplot",
    "vlines", "xcorr", "xkcd", "xlabel", "xlim", "xscale", "xticks", "ylabel", "ylim", "yscale", "yticks",
    "Circle", "Polygon", "Rectangle", "Line2D",
    "Normalize", "FuncFormatter", "MaxNLocator", "MultipleLocator", "Axes", "Figure",
))  # fmt: skip
_PAIRED = frozenset(
    {"bar", "barh", "plot", "scatter", "step", "stem", "errorbar", "fill_between"}
)  # their first two arguments have equal lengths


def crash_reason(tree: ast.Module) -> str:
    """Why a script would stop with an error; "" where no reason is seen.

    Reasons: a name that is read before it is bound; a pyplot function that does not exist; lists of different
    lengths as x and y of a plot; a `raise` or `assert False` that is always reached. Branches, loops that may
    not run, functions and `try` bodies only bind names, so that no script that runs is refused; errors of
    values are not seen.
    """
    scope = _Scope()
    try:
        scope.read(tree.body)
    except _Crash as crash:
        return str(crash)
    return ""


class _Crash(Exception):
    """A reason why a script stops."""


class _Scope:
    """The names of a module that are bound so far; `pyplot` are those of matplotlib.pyplot, `open` says that
    a star import binds any name."""

    def __init__(self) -> None:
        self.known: set[str] = set(_BUILTINS)
        self.pyplot: set[str] = set()
        self.values: dict[str, ast.AST] = {}
        self.open = False

    def read(self, body: Sequence[ast.stmt]) -> None:
        """Check and bind the statements of a body in order."""
        for statement in body:
            if isinstance(statement, (ast.Raise, ast.Assert)) and (
                isinstance(statement, ast.Raise) or _is_false(statement.test)
            ):
                raise _Crash(f"line {statement.lineno}: {type(statement).__name__.lower()}")
            if isinstance(statement, (ast.With, ast.For)):
                for part in (
                    (item.context_expr for item in statement.items)
                    if isinstance(statement, ast.With)
                    else (statement.iter,)
                ):
                    self.check(part)
                self.bind(statement)
                if isinstance(statement, ast.With):
                    self.read(statement.body)
            elif isinstance(statement, (ast.If, ast.While)):
                self.check(statement.test)
                self.bind(statement)
            elif isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.Try)):
                self.bind(statement)
            else:
                self.check(statement)
                self.bind(statement)

    def bind(self, node: ast.AST) -> None:
        """Every name that a statement, or anything in it, binds."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
                self.known.add(inner.id)
            elif isinstance(inner, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
                self.known.add(inner.name)
            elif isinstance(inner, (ast.Import, ast.ImportFrom)):
                self.imported(inner)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self.values[node.targets[0].id] = node.value

    def imported(self, node: ast.Import | ast.ImportFrom) -> None:
        """The names that an import binds."""
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self.open = self.open or alias.name == "*"
            self.known.add(name)
            whole = alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
            if whole == "matplotlib.pyplot" and (alias.asname or isinstance(node, ast.ImportFrom)):
                self.pyplot.add(name)

    def check(self, node: ast.AST) -> None:
        """Raise _Crash for what a statement or an expression reads and calls."""
        own = {
            argument.arg
            for inner in ast.walk(node)
            if isinstance(inner, ast.Lambda)
            for argument in _arguments(inner.args)
        }
        own |= {
            inner.id
            for inner in ast.walk(node)
            if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load) and _is_inner(node, inner)
        }
        for inner in ast.walk(node):
            if (
                isinstance(inner, ast.Name)
                and isinstance(inner.ctx, ast.Load)
                and not self.open
                and inner.id not in self.known | own
            ):
                raise _Crash(f"line {inner.lineno}: the name {inner.id!r} is not defined")
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                self.check_call(inner, inner.func)

    def check_call(self, call: ast.Call, function: ast.Attribute) -> None:
        """Raise _Crash for a pyplot function that does not exist, and for x and y of different lengths."""
        if (
            isinstance(function.value, ast.Name)
            and function.value.id in self.pyplot
            and function.attr not in _PYPLOT
        ):
            raise _Crash(f"line {call.lineno}: matplotlib.pyplot has no function {function.attr!r}")
        if function.attr in _PAIRED and len(call.args) >= 2:
            sizes = [self.size(argument) for argument in call.args[:2]]
            if None not in sizes and sizes[0] != sizes[1]:
                raise _Crash(f"line {call.lineno}: {function.attr} of {sizes[0]} and {sizes[1]} values")

    def size(self, node: ast.AST) -> int | None:
        """The length of a list or tuple that is written out, also under a name; None for anything else."""
        node = self.values.get(node.id, node) if isinstance(node, ast.Name) else node
        written = isinstance(node, (ast.List, ast.Tuple)) and not any(
            isinstance(item, ast.Starred) for item in node.elts
        )
        return len(node.elts) if written and isinstance(node, (ast.List, ast.Tuple)) else None


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    """All arguments of a function."""
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from filter(None, (arguments.vararg, arguments.kwarg))


def _is_inner(root: ast.AST, name: ast.Name) -> bool:
    """Whether a bound name belongs to a comprehension or to `:=` inside `root`, not to an assignment's
    target."""
    targets = [node.target for node in ast.walk(root) if isinstance(node, (ast.comprehension, ast.NamedExpr))]
    return any(inner is name for target in targets for inner in ast.walk(target))


def _is_false(test: ast.expr) -> bool:
    """Whether a test is a constant that is false."""
    return isinstance(test, ast.Constant) and not test.value
