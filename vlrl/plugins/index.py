"""Index of the shipped plug-ins, read from the source files: names, kinds and descriptions without importing
a plug-in (or torch).

A plug-in is a top-level class with the decorator `@register("name")` that derives, directly or through other
classes, from a stage: a class with a constant `kind`. Class headers and imports are found by regular
expressions, because parsing every file takes most of a second; a file is parsed when the description or the
fields of its plug-ins are read.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

_CLASS = re.compile(
    r'^(?:@register\("(?P<name>[^"]+)"\)\n(?:@[^\n]*\n)*)?class (?P<cls>\w+)(?:\((?P<bases>[^)]*)\))?:',
    re.MULTILINE,
)
_IMPORT = re.compile(
    r"^from (?P<module>vlrl[\w.]*) import (?:\((?P<many>[^)]*)\)|(?P<one>[^\n]*))", re.MULTILINE
)
_KIND = re.compile(r'^    kind: ClassVar\[str\] = "(\w+)"', re.MULTILINE)


@dataclass(frozen=True)
class Field:
    """A config field of a plug-in: the source text of its type and of its default (None: required)."""

    name: str
    type: str
    default: str | None


@dataclass(frozen=True)
class PluginEntry:
    """A registered class: its name, its kind and its place; `doc` and `fields` are read on first use."""

    name: str
    kind: str
    module: str
    cls: str
    path: Path
    line: int

    @cached_property
    def doc(self) -> str:
        """The class docstring."""
        source = _source(self.module)
        assert source is not None
        return ast.get_docstring(source.nodes[self.cls]) or ""

    @cached_property
    def module_doc(self) -> str:
        """The docstring of its file, which describes the paper as a whole."""
        source = _source(self.module)
        assert source is not None
        return ast.get_docstring(source.tree) or ""

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The fields that a config can set, those of base classes first."""
        return tuple(_fields(self.module, self.cls))

    @property
    def origin(self) -> str:
        """`file:line`."""
        return f"{self.path}:{self.line}"


@cache
def entries(packages: str) -> dict[tuple[str, str], PluginEntry]:
    """(kind, name) -> entry, for every plug-in of one or more packages ("a,b"). Raises ValueError where two
    classes of one kind have the same name."""
    found: dict[tuple[str, str], PluginEntry] = {}
    for module in modules_of(packages):
        source = _source(module)
        for header in source.classes.values() if source is not None else ():
            kind = (
                next((base.kind for _, base in _lineage(module, header.cls) if base.kind), "")
                if header.name
                else ""
            )
            if not kind or source is None:
                continue
            entry = PluginEntry(header.name, kind, module, header.cls, source.path, header.line)
            if (kind, header.name) in found:
                raise ValueError(
                    f"{kind} {header.name!r} is registered twice: by {found[kind, header.name].origin} and "
                    f"by {entry.origin}"
                )
            found[kind, header.name] = entry
    return found


_TOP_IMPORT = re.compile(
    r"^(?:from (?P<base>[\w.]+) import (?:\((?P<many>[^)]*)\)|(?P<one>[^\n]*))|import (?P<plain>[^\n]*))",
    re.MULTILINE,
)


@cache
def imported_packages(module: str) -> frozenset[str]:
    """Top-level packages outside the project that importing a module of the project imports, found in the
    source files.

    Follows the project's own imports at the top of a file; those inside functions and under conditions do not
    count.
    """
    found: set[str] = set()
    todo, seen = [module], set()
    while todo:
        name = todo.pop()
        parents = [name.rsplit(".", depth)[0] for depth in range(name.count(".") + 1)]
        for part in parents:
            if part in seen:
                continue
            seen.add(part)
            source = _source(part)
            for target in _targets(source.text) if source is not None else ():
                if not target.startswith("vlrl"):
                    found.add(target.partition(".")[0])
                elif _source(target) is not None:
                    todo.append(target)
    return frozenset(found)


def _targets(text: str) -> Iterator[str]:
    """The modules that the import statements in the first column name; of `from package import name` also
    `package.name`."""
    for match in _TOP_IMPORT.finditer(text):
        listed = re.sub(r"#[^\n]*", "", match["many"] or match["one"] or match["plain"]).split(",")
        names = [part.strip().partition(" as ")[0] for part in listed if part.strip()]
        if match["base"]:
            yield match["base"]
            names = [f"{match['base']}.{name}" for name in names] if match["base"].startswith("vlrl") else []
        yield from names


def class_constant(entry: PluginEntry, name: str, default: object) -> object:
    """The constant that the class of an entry, or the nearest of its bases, assigns to `name`; `default`
    where none does."""
    for module, header in _lineage(entry.module, entry.cls):
        source = _source(module)
        assert source is not None
        for statement in source.nodes[header.cls].body:
            targets = (
                [statement.target]
                if isinstance(statement, ast.AnnAssign)
                else statement.targets
                if isinstance(statement, ast.Assign)
                else []
            )
            value = statement.value if isinstance(statement, (ast.AnnAssign, ast.Assign)) else None
            if isinstance(value, ast.Constant) and any(
                isinstance(target, ast.Name) and target.id == name for target in targets
            ):
                return value.value
    return default


# --- source files -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Header:
    """A class statement: registered name ("" for none), class name, names of the bases, `kind` of a stage (""
    for others), line."""

    name: str
    cls: str
    bases: tuple[str, ...]
    kind: str
    line: int


@dataclass(frozen=True)
class _Source:
    path: Path
    text: str

    @cached_property
    def classes(self) -> dict[str, _Header]:
        found = list(_CLASS.finditer(self.text))
        ends = [*(match.start() for match in found[1:]), len(self.text)][: len(found)]
        out = {}
        for match, end in zip(found, ends, strict=True):
            bases = tuple(
                re.sub(r"\[.*", "", part).strip()
                for part in (match["bases"] or "").split(",")
                if "=" not in part
            )
            kind = _KIND.search(self.text, match.end(), end)
            line = self.text.count("\n", 0, match.start()) + 1
            out[match["cls"]] = _Header(
                match["name"] or "", match["cls"], tuple(filter(None, bases)), kind[1] if kind else "", line
            )
        return out

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """Local name -> (module, name in it), for `from vlrl... import name`."""
        out = {}
        for match in _IMPORT.finditer(self.text):
            for part in (match["many"] or match["one"]).split(","):
                name, _, alias = re.sub(r"#.*", "", part).strip().partition(" as ")
                out[alias.strip() or name] = (match["module"], name)
        return out

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}


def _folder(package: str) -> Path:
    """The folder of a package, found without importing it: the import system knows where top-level packages
    are."""
    top, _, rest = package.partition(".")
    spec = importlib.util.find_spec(top)
    assert spec and spec.submodule_search_locations, package
    return Path(next(iter(spec.submodule_search_locations))).joinpath(*filter(None, rest.split(".")))


@cache
def modules_of(packages: str) -> list[str]:
    """All modules of one or more packages ("a,b"), sorted; none is imported."""
    names = []
    for package in packages.split(","):
        folder = _folder(package)
        paths = sorted(folder.rglob("*.py"))
        names += [".".join((package, *path.relative_to(folder).with_suffix("").parts)) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


@cache
def _source(module: str) -> _Source | None:
    base = _folder(module)
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return _Source(path, path.read_text(encoding="utf-8"))
    return None


# --- classes ------------------------------------------------------------------------------------------------


def _lineage(
    module: str, cls: str, seen: frozenset[tuple[str, str]] = frozenset()
) -> Iterator[tuple[str, _Header]]:
    """(module, header) of a class and of its bases, depth first, as far as they are classes of this
    project."""
    source = _source(module) if module.split(".")[0].startswith("vlrl") else None
    if source is None or (module, cls) in seen:
        return
    if cls not in source.classes:
        if cls in source.imported:
            yield from _lineage(*source.imported[cls], seen | {(module, cls)})
        return
    header = source.classes[cls]
    yield module, header
    for base in header.bases:
        qualifier, _, member = base.rpartition(".")
        if not qualifier:
            yield from _lineage(module, member, seen | {(module, cls)})
        elif qualifier in source.imported:
            yield from _lineage(".".join(source.imported[qualifier]), member, seen | {(module, cls)})


def _fields(module: str, cls: str) -> Iterator[Field]:
    """The dataclass fields of a class and its bases that a config can set; a field of a subclass replaces
    that of its base."""
    found: dict[str, Field] = {}
    for parent, header in reversed(list(_lineage(module, cls))):
        source = _source(parent)
        assert source is not None
        node = source.nodes[header.cls]
        for statement in node.body if _is_dataclass(node) else ():
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            annotation, default = ast.unparse(statement.annotation), statement.value
            if annotation.startswith("ClassVar") or _not_in_init(default):
                continue
            shown = None if default is None else ast.unparse(_default(default))
            found[statement.target.id] = Field(statement.target.id, annotation, shown)
    yield from found.values()


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list)


def _keywords(default: ast.expr | None) -> dict[str, ast.expr]:
    is_field = isinstance(default, ast.Call) and ast.unparse(default.func) in ("field", "dataclasses.field")
    return (
        {keyword.arg: keyword.value for keyword in default.keywords if keyword.arg}
        if is_field and isinstance(default, ast.Call)
        else {}
    )


def _not_in_init(default: ast.expr | None) -> bool:
    init = _keywords(default).get("init")
    return isinstance(init, ast.Constant) and init.value is False


def _default(default: ast.expr) -> ast.expr:
    keywords = _keywords(default)
    if "default" in keywords:
        return keywords["default"]
    factory = keywords.get("default_factory")
    if factory is None:
        return default
    return factory.body if isinstance(factory, ast.Lambda) else ast.Call(factory, [], [])
