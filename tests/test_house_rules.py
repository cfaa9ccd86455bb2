"""The house rules of docs/architecture.md, one test per rule. Each names every place that breaks the rule."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from vlrl.plugins.registry import origin, shipped
from vlrl.plugins.stages import STAGES

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "vlrl": ROOT / "vlrl",
    "vlrl_rewards": ROOT / "rewards" / "vlrl_rewards",
    "vlrl_data": ROOT / "data" / "vlrl_data",
}
# runs a model's code in the sandbox, outside the package: it catches and prints whatever that code does
SUBPROCESS = PACKAGES["vlrl_rewards"] / "code" / "runner.py"
FILES = sorted(
    p
    for folder in (*PACKAGES.values(), ROOT / "scripts", ROOT / "benchmarks")
    for p in folder.rglob("*.py")
    if p != SUBPROCESS
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
METHODS = [path for path in FILES if path.is_relative_to(ROOT / "vlrl" / "methods")]
PLUGINS = [*METHODS, *(path for path in FILES if path.is_relative_to(PACKAGES["vlrl_rewards"]))]


def place(path: Path, node: ast.AST | int | None = None) -> str:
    line = node if isinstance(node, int) else getattr(node, "lineno", None)
    return path.relative_to(ROOT).as_posix() + (f":{line}" if line else "")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


@cache
def nodes_of(path: Path) -> dict[type, list[ast.AST]]:
    """The nodes of a file by kind: a file is walked once for all rules."""
    found: dict[type, list[ast.AST]] = defaultdict(list)
    for node in ast.walk(tree_of(path)):
        found[type(node)].append(node)
    return found


def nodes(paths: list[Path], *kinds: type) -> Iterator[tuple[Path, ast.AST]]:
    for path in paths:
        for kind, found in nodes_of(path).items():
            if issubclass(kind, kinds):
                yield from ((path, node) for node in found)


def length(node: ast.AST) -> int:
    """Lines of a function or class, docstrings apart."""
    inner = [
        n for n in ast.walk(node) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    ]
    docs = [n.body[0] for n in inner if ast.get_docstring(n) is not None]
    return node.end_lineno - node.lineno + 1 - sum(doc.end_lineno - doc.lineno + 1 for doc in docs)


# --- sizes --------------------------------------------------------------------------------------------------


def test_files_functions_and_classes_are_short():
    """A file has at most 500 lines, a function 60, a class 300, docstrings apart. Ruff counts the columns."""
    broken = [f"{place(path)}: {n} lines" for path in FILES if (n := len(text_of(path).splitlines())) > 500]
    packaged = [path for path in FILES if any(path.is_relative_to(root) for root in PACKAGES.values())]
    for path, node in nodes(packaged, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        limit = 300 if isinstance(node, ast.ClassDef) else 60
        if node.end_lineno - node.lineno >= limit and length(node) > limit:
            broken.append(f"{place(path, node)}: {node.name} has {length(node)} lines")
    assert not broken, broken


def test_files_are_not_crumbs():
    """The median file of vlrl/ has 80 to 250 lines: no file is split only to satisfy a number."""
    sizes = [
        n
        for path in FILES
        if path.is_relative_to(ROOT / "vlrl") and (n := len(text_of(path).splitlines())) > 5
    ]
    assert 80 <= statistics.median(sizes) <= 250, statistics.median(sizes)


# room of vlrl/ -> the lines that its files may have together; "modules" are the files beside the rooms. A
# paper is one file of its own, so that papers are not counted. A row is raised with a reason.
ROOM_LINES = {
    "activity": 1300, "beside": 2500, "cli": 2900, "compare": 1200, "config": 2100, "engine": 5100,
    "environments": 4900, "eval": 7300, "functional": 3100, "interop": 1500, "logging": 2600,
    "methods/common": 3500, "methods/core": 6300, "modules": 1100, "pages": 500, "plan": 2000,
    "plugins": 3300, "policy": 7700, "probes": 1700, "services": 2300, "trainer": 6400, "types": 1100,
}  # fmt: skip


def test_rooms_do_not_outgrow_their_plan():
    """A room has at most the lines of its row, and a row is at most 300 above its room."""
    lines: dict[str, int] = defaultdict(int)
    for path in (ROOT / "vlrl").rglob("*.py"):
        *rooms, _ = path.relative_to(ROOT / "vlrl").parts
        room = "/".join(rooms[:2]) if rooms[:1] == ["methods"] and rooms[1:] else "".join(rooms[:1])
        lines[room or "modules"] += len(text_of(path).splitlines())
    del lines["methods/papers"], lines["methods"]
    assert lines.keys() == ROOM_LINES.keys()
    broken = [f"{room}: {n} lines of {ROOM_LINES[room]}" for room, n in lines.items() if n > ROOM_LINES[room]]
    loose = [
        f"{room}: {n} lines, lower {ROOM_LINES[room]}"
        for room, n in lines.items()
        if n < ROOM_LINES[room] - 300
    ]
    assert not broken + loose, broken + loose


# --- imports ------------------------------------------------------------------------------------------------


@cache
def modules() -> dict[str, Path]:
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports_of(path: Path, into_functions: bool = True) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """(module, imported names, line) of every import of a file, those under TYPE_CHECKING included."""

    def visit(node: ast.AST) -> Iterator[tuple[str, tuple[str, ...], int]]:
        if isinstance(node, ast.Import):
            yield from ((alias.name, (), node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{place(path, node)}: relative import"
            yield node.module, tuple(alias.name for alias in node.names), node.lineno
        elif into_functions or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for child in ast.iter_child_nodes(node):
                yield from visit(child)

    yield from visit(tree_of(path))


def test_there_is_no_circle_of_imports():
    """Imports at the top of a file, those under TYPE_CHECKING included, form no circle."""
    graph: dict[str, set[str]] = defaultdict(set)
    for name, path in modules().items():
        for module, names, _ in imports_of(path, into_functions=False):
            inner = {f"{module}.{item}" for item in names if f"{module}.{item}" in modules()}
            graph[name] |= inner or ({module} & modules().keys())
    done: set[str] = set()

    def circle(name: str, path: tuple[str, ...]) -> tuple[str, ...]:
        if name in path:
            return (*path[path.index(name) :], name)
        if name in done:
            return ()
        found = next((c for other in sorted(graph[name]) if (c := circle(other, (*path, name)))), ())
        done.add(name)
        return found

    circles = [" -> ".join(c) for name in sorted(graph) if (c := circle(name, ()))]
    assert not circles, circles


MAX_INNER_IMPORTS = 16  # of vlrl/: classes that derive from torch's, and `Config.load`


def test_few_imports_of_the_project_are_inside_functions():
    """Modules import each other at the top, where the reader looks."""
    found = []
    for path in (path for path in FILES if path.is_relative_to(PACKAGES["vlrl"])):
        top = {line for *_, line in imports_of(path, into_functions=False)}
        found += sorted(
            f"{place(path, line)}: {module}"
            for module, _, line in imports_of(path)
            if line not in top and module.partition(".")[0] in PACKAGES
        )
    assert len(found) <= MAX_INNER_IMPORTS, (len(found), found)


LAZY = "vlrl.services.lazy"  # imports nothing; every room may use it


# The rooms in the direction of imports: a room imports rooms of the rows above it, and none of its own row.
ARROWS = (
    ("version", "services", "pages"),
    ("types",),
    ("plugins", "functional"),
    ("config",),
    ("beside",),
    ("rewards", "data", "environments"),
    ("methods",),
    ("policy",),
    ("engine",),
    ("trainer",),
    ("activity", "logging", "eval", "plan"),
    ("training",),
    ("api", "interop", "compare", "probes"),
    ("cli", "__init__"),
    ("__main__",),
)
RANKS = {room: rank for rank, row in enumerate(ARROWS) for room in row}


def room_of(module: str) -> str:
    """The room of a module: the package below vlrl, or what stands behind `vlrl_`."""
    package, _, rest = module.partition(".")
    return package.removeprefix("vlrl_") if package != "vlrl" else rest.partition(".")[0] or "__init__"


def test_every_room_has_its_place():
    """The table of arrows names each room once, and no other."""
    assert sorted(room for row in ARROWS for room in row) == sorted({room_of(name) for name in modules()})


def test_imports_go_one_way():
    """A room imports rooms of earlier rows alone. The plug-ins of rewards and data are found through the
    registry, and rewards work without torch."""
    broken = []
    for name, path in modules().items():
        room = room_of(name)
        for module, items, line in imports_of(path):
            inner = [f"{module}.{item}" for item in items if f"{module}.{item}" in modules()] or [module]
            for other in (room_of(found) for found in inner if found.partition(".")[0] in PACKAGES):
                if other != room and RANKS[other] >= RANKS[room]:
                    broken.append(f"{place(path, line)}: {room} imports {other}")
                if other in ("rewards", "data") and name.startswith("vlrl."):
                    broken.append(f"{place(path, line)}: {room} imports {module}, not through the registry")
            if room == "rewards" and module.partition(".")[0] == "torch":
                broken.append(f"{place(path, line)}: rewards work without torch")
    assert not broken, broken


# --- plug-ins -----------------------------------------------------------------------------------------------


def test_plugins_are_named_like_their_papers():
    """A plug-in of a paper is called like its file, or FILE.piece (in FILE_environment.py too); every
    plug-in's class is its name in CamelCase; names of methods are unique."""
    broken, seen = [], {}
    found = [cls for stage in STAGES.values() for cls in shipped(stage).values()]
    for cls in (cls for cls in found if cls.__module__.startswith("vlrl.methods.")):
        name, stem = cls.name, cls.__module__.rpartition(".")[2].removesuffix("_environment")
        if "papers" in cls.__module__ and name != stem and not name.startswith(f"{stem}."):
            broken.append(f"{origin(cls)}: {name!r} is neither {stem!r} nor {stem}.something")
        if cls.__name__.lower() != re.sub(r"[._]", "", name):
            broken.append(f"{origin(cls)}: class {cls.__name__} is registered as {name!r}")
        if name in seen:
            broken.append(f"{origin(cls)}: {name!r} is also a {seen[name]}")
        seen[name] = cls.kind
    assert not broken, broken


def test_plugins_keep_their_state_in_a_state_object():
    """No plug-in writes to its frozen config; what it learns is in the State that `init_state` makes."""
    broken = [
        f"{place(path)}: object.__setattr__" for path in FILES if "object.__set" + "attr__" in text_of(path)
    ]
    for path, node in nodes(METHODS, ast.FunctionDef):
        if node.name not in ("state_dict", "load_state_dict"):
            continue
        parents = {
            id(child): cls
            for cls in ast.walk(tree_of(path))
            if isinstance(cls, ast.ClassDef)
            for child in cls.body
        }
        owner = parents.get(id(node))
        bases = [ast.unparse(base) for base in owner.bases] if owner else []
        if not any("State" in base or base == "StepCounts" for base in bases):
            broken.append(f"{place(path, node)}: {node.name} belongs to the State")
    broken += [
        f"{place(path)}: a mutable field with init=False"
        for path in METHODS
        if re.search(r"field\(init=False, default_factory", text_of(path))
    ]
    assert not broken, broken


def test_plugins_do_not_compare_names():
    """Plug-ins find each other by `provides` and `requires`, and leave values in declared annotations."""
    by_name = re.compile(r"\.name\s*(==|!=|in|not in)\s*[(\[\"']|getattr\(\w+, \"name\"")
    free_key = re.compile(r"\.info(\[|\.get\(|\.setdefault\(|\.pop\(|\.update\()")
    broken = []
    for path in [
        *METHODS,
        *(p for p in FILES if "environments" in p.parts),
        *(p for p in FILES if p.is_relative_to(PACKAGES["vlrl_rewards"])),
    ]:
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if (by_name.search(line) and path in METHODS) or free_key.search(line):
                broken.append(f"{place(path, number)}: {line.strip()}")
    assert not broken, broken


def test_plugins_have_no_side_effects():
    """Rewards and methods do not print, open files, evaluate text or read the environment; worker processes
    and command lines do."""
    broken = []
    for path, node in nodes(PLUGINS, ast.Call, ast.Attribute):
        if path.stem in ("cli", "__main__", "worker", "pool", "sandbox", "prefetch"):
            continue
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("print", "open", "eval", "exec")
        ):
            broken.append(f"{place(path, node)}: {node.func.id}()")
        if (
            isinstance(node, ast.Attribute)
            and ast.unparse(node.value) == "os"
            and node.attr in ("environ", "getenv")
        ):
            broken.append(f"{place(path, node)}: reads the environment")
    assert not broken, broken


# --- errors -------------------------------------------------------------------------------------------------


def test_errors_are_not_swallowed():
    """No bare except; a reward or a method never catches Exception."""
    broken = []
    for path, node in nodes(FILES, ast.ExceptHandler):
        if node.type is None:
            broken.append(f"{place(path, node)}: bare except")
        elif path in PLUGINS and re.search(r"\b(Base)?Exception\b", ast.unparse(node.type)):
            broken.append(f"{place(path, node)}: catches {ast.unparse(node.type)}")
    assert not broken, broken


def test_no_ladders_over_names():
    """An if/elif chain has at most four branches; a table or the registry serves longer ones."""
    broken = []
    for path, node in nodes(FILES, ast.If):
        branches, rest = 1, node
        while len(rest.orelse) == 1 and isinstance(rest.orelse[0], ast.If):
            branches, rest = branches + 1, rest.orelse[0]
        if branches > 4:
            broken.append(f"{place(path, node)}: {branches} branches")
    assert not broken, broken


# --- words --------------------------------------------------------------------------------------------------


def test_public_things_are_documented():
    """Modules, public classes and public functions have docstrings."""
    broken = [place(path) for path in FILES if tree_of(path).body and not ast.get_docstring(tree_of(path))]
    for path in FILES:
        for node in tree_of(path).body:
            if (
                isinstance(node, (ast.FunctionDef, ast.ClassDef))
                and not node.name.startswith("_")
                and not ast.get_docstring(node)
            ):
                broken.append(f"{place(path, node)}: {node.name}")
    assert not broken, broken


def test_docstrings_are_short():
    """A docstring has at most 120 words, its examples and the sections for arguments and results apart."""
    broken = []
    for path, node in nodes(FILES, ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef):
        text = ast.get_docstring(node) or ""
        prose = re.split(r"^(?:Args|Attributes|Returns|Raises):$", text, maxsplit=1, flags=re.MULTILINE)[0]
        prose = re.sub(r"^( {4,}|>>>|\.\.\.).*$", "", prose, flags=re.MULTILINE)
        if path.parts[len(ROOT.parts)] not in ("benchmarks", "scripts") and (n := len(prose.split())) > 120:
            broken.append(f"{place(path, node)}: {n} words")
    assert not broken, broken


def test_retired_words_stay_away():
    """Words of an earlier dialect are not used: the field's words are in docs/architecture.md."""
    old = re.compile(
        r"\b(minds_company|ways_on|first_s|LEAST_\w+|"
        r"run\.(sampler|scaffold|decode|strategy|env|shape|gate|credit|surrogate|reduce|tune|probes|tally"
        r"|fields))\b"
    )
    riddles = re.compile(
        r"\b(whence|weighs nothing|weigh nothing|be moved by|in a few numbers|stood still)\b", re.IGNORECASE
    )
    broken = []
    for path in FILES:
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if old.search(line) or riddles.search(line):
                broken.append(f"{place(path, number)}: {line.strip()[:100]}")
    assert not broken, broken


def test_a_class_name_is_one_class():
    """A name of a class stands for one class in the project, private helpers included."""
    found = defaultdict(list)
    packaged = set(modules().values())
    for path, node in nodes([path for path in FILES if path in packaged], ast.ClassDef):
        found[node.name].append(place(path, node))
    broken = {name: places for name, places in found.items() if len(places) > 1}
    assert not broken, broken


def test_module_names_are_words():
    """No module name begins with an underscore."""
    broken = [place(path) for path in FILES if path.name.startswith("_") and not path.name.startswith("__")]
    assert not broken, broken


def test_formatting_is_switched_off_for_tables_only():
    """The mark that switches formatting off stands behind a table alone."""
    broken = []
    for path in [*FILES, *TESTS]:
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if re.search(r"#\s*fmt:\s*(skip|off)", line) and not re.match(r"^\s*[)}\]]+,?\s*#", line):
                broken.append(place(path, number))
    assert not broken, broken


def test_type_ignores_are_few_and_have_reasons():
    """At most 20 `type: ignore`, each with its error code and a reason."""
    marks = []
    for path in FILES:
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if match := re.search(r"#\s*type:\s*ignore(\[[\w, -]+\])?(.*)$", line):
                marks.append((place(path, number), bool(match[1]) and "#" in match[2]))
    assert len(marks) <= 20, (len(marks), marks)
    assert not [where for where, reasoned in marks if not reasoned]


# --- tests --------------------------------------------------------------------------------------------------


def test_tolerances_are_tight():
    """No tolerance above 1e-2."""
    broken = []
    for path, node in nodes(TESTS, ast.keyword):
        if (
            node.arg in ("atol", "rtol", "abs", "rel")
            and isinstance(node.value, ast.Constant)
            and (node.value.value or 0) > 1e-2
        ):
            broken.append(f"{place(path, node.value)}: {node.arg}={node.value.value}")
    assert not broken, broken


def test_tests_assert_something():
    """Every test can fail."""
    can_fail = re.compile(r"\bassert|raises|warns|check_|expect|verify|agree")
    broken = [
        f"{place(path, node)}: {node.name}"
        for path, node in nodes(TESTS, ast.FunctionDef)
        if node.name.startswith("test") and not can_fail.search(ast.unparse(node))
    ]
    assert not broken, broken


def test_test_files_have_names_of_their_own():
    names = [path.name for path in TESTS if path.name.startswith("test_")]
    assert len(names) == len(set(names)), sorted(name for name in set(names) if names.count(name) > 1)


def test_nothing_private_is_committed():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    files = listed.stdout.split() if listed.returncode == 0 else []
    secret = re.compile(r"(?<![\w./])/(work|root|home)/\w|py" r"pi\.org|files\.python" r"hosted")
    broken = []
    for path in (ROOT / name for name in files):
        if path.suffix not in (".py", ".md", ".yaml", ".toml", ".txt", ".json", "") or not path.is_file():
            continue
        if found := secret.search(path.read_text(encoding="utf-8", errors="ignore")):
            broken.append(f"{place(path)}: {found.group()}")
    assert not broken, broken
