"""Names of the metrics that the package can log, read from its text: what `metrics()` returns, what a loss
returns beside its values, what is counted in a step. A part that is computed is `*`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from vlrl.logging.glossary import described, glossary

__all__ = ["Logged", "described", "glossary", "logged"]
ROOT = Path(__file__).parents[2]


class Logged(NamedTuple):
    """A metric in the text: its name, the class that logs it, the first line of the class's docstring."""

    name: str
    owner: str
    summary: str
    file: str


@cache
def logged() -> tuple[Logged, ...]:
    """Every metric in the text of plug-ins and trainer, sorted."""
    found = set()
    for folder in ("vlrl/methods", "vlrl/functional", "vlrl/trainer", "vlrl/engine", "vlrl/plugins"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found.update(_of_file(path))
    return tuple(sorted(found))


def _of_file(path: Path) -> Iterator[Logged]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(node): owner for owner in tree.body if isinstance(owner, ast.ClassDef) for node in ast.walk(owner)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        owner = inside.get(id(node))
        if isinstance(node, ast.FunctionDef) and node.name == "metrics":
            names = [name for inner in ast.walk(node) for name in (*_keys(inner), *_totals(inner, node))]
        elif isinstance(node, ast.FunctionDef) and node.name == "__call__" and owner and _logs_by_slot(owner):
            names = [f"*/{name}" for inner in ast.walk(node) for name in (*_keys(inner), *_stored(inner))]
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(".logged"):
            names = _keys(node.value)
        elif isinstance(node, ast.Call):
            said = ast.unparse(node.func).rpartition(".")[2]
            place = {"UnreducedLoss": 1, "count": 0}.get(said)
            if place is not None and len(node.args) > place:
                episodes = "pool" in ast.unparse(node.func) or (
                    owner is not None and owner.name == "StepEpisodes"
                )
                head = "environment/" if said == "count" and episodes else ""
                names = [head + name for name in _keys(node.args[place])]
        for name in names:
            doc = " ".join((ast.get_docstring(owner) or "").partition("\n\n")[0].split()) if owner else ""
            yield Logged(name, owner.name if owner else path.stem, doc, path.relative_to(ROOT).as_posix())


def _logs_by_slot(owner: ast.ClassDef) -> bool:
    """Metrics and callbacks log under the name of their slot."""
    return any(ast.unparse(base).endswith(("Metric", "Callback")) for base in owner.bases)


def _keys(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Dict):
        return [text for key in node.keys if key is not None and (text := _text(key))]
    if isinstance(node, ast.DictComp):
        return [text] if (text := _text(node.key)) else []
    return []


def _stored(node: ast.AST) -> list[str]:
    """`out["name"] = ...`"""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return [text for text in (_text(node.targets[0].slice),) if text]
    return []


def _totals(node: ast.AST, function: ast.FunctionDef) -> list[str]:
    if not (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "totals"
    ):
        return []
    head, *names = [_text(arg) for arg in node.args]
    return [f"{head}/{name}" for name in names] or [f"{head}/*"]


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "*" for part in node.values)
        return "".join(str(part) for part in parts)
    return "*" if isinstance(node, (ast.Name, ast.Starred)) else ""
