"""Registry of plug-ins. `register` gives a class its name; `build` constructs a plug-in from a config
mapping, strictly.

A stage names the package of its plug-ins (`home`). A module of it is imported when one of its plug-ins is
first asked for: what a module registers is read from its text, the rest from its classes.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib
import importlib.util
import math
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vlrl.services.redaction import expand

T = TypeVar("T")

_TABLE: dict[Any, dict[str, Any]] = {}
_DECORATED = re.compile(r'^@\w+\("([^"]+)"', re.MULTILINE)  # @register("iou"), @verifier("math")
NEAREST = 5  # names that an error message lists


class ConfigError(ValueError):
    """A mistake in a config, in one line: field, value, alternatives, fix. A text beyond 600 characters loses
    its middle, which quotes a value."""

    def __init__(self, text: object = "") -> None:
        said = str(text)
        super().__init__(said if len(said) <= 600 else f"{said[:330]} ... {said[-260:]}")


def stage_of(cls: type) -> Any:
    """The abstract stage of a plug-in class: the base that derives from `Stage` itself."""
    for base in cls.__mro__:
        if any(parent.__name__ == "Stage" for parent in base.__bases__):
            return base
    raise TypeError(f"{cls.__name__} is not a plug-in: derive it from a class of vlrl.plugins.stages")


def register(name: str) -> Callable[[type[T]], type[T]]:
    """Class decorator: `@register("iou")` on a frozen dataclass derived from a stage."""

    def add(cls: type[T]) -> type[T]:
        table = _TABLE.setdefault(stage_of(cls), {})
        if name in table and not _same_class(table[name], cls):
            raise ValueError(
                f"{stage_of(cls).kind} {name!r} is registered twice: by {origin(table[name])} and by "
                f"{origin(cls)}; give yours another name"
            )
        table[name] = cls
        cls.name = name  # type: ignore[attr-defined]  # `stage_of` has made sure that it is a Stage
        return cls

    return add


def _same_class(a: type, b: type) -> bool:
    """Whether two classes are one definition, perhaps imported twice: as a module, and as a plug-in file."""
    if a.__qualname__ != b.__qualname__:
        return False
    files = [getattr(sys.modules.get(cls.__module__), "__file__", None) for cls in (a, b)]
    return a.__module__ == b.__module__ or (
        None not in files and Path(str(files[0])).resolve() == Path(str(files[1])).resolve()
    )


def home_of(stage: Any, module: str = "") -> types.ModuleType:
    """The first package that holds a stage's plug-ins, or a module of that package."""
    return importlib.import_module(".".join(filter(None, (stage.home.split(",")[0], module))))


@cache
def modules_of(home: str) -> dict[str, list[str]]:
    """Name -> the modules of some packages (`home` of a stage) whose text has a decorator with that name
    (`@register("iou")`); none of them is imported."""
    found: dict[str, list[str]] = {}
    for package in home.split(","):
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations, package
        for folder in map(Path, spec.submodule_search_locations):
            for path in sorted(folder.rglob("*.py")):
                parts = [package, *path.relative_to(folder).with_suffix("").parts]
                for name in _DECORATED.findall(path.read_text(encoding="utf-8")):
                    found.setdefault(name, []).append(".".join(parts).removesuffix(".__init__"))
    return found


def discover(stage: Any) -> None:
    """Import every module that registers something in the packages of a stage's plug-ins."""
    for module in sorted({module for modules in modules_of(stage.home).values() for module in modules}):
        importlib.import_module(module)


def shipped(stage: Any) -> dict[str, type]:
    """The plug-ins of a stage that ship with the project, by name."""
    discover(stage)
    modules = {module for modules in modules_of(stage.home).values() for module in modules}
    return {name: cls for name, cls in sorted(_TABLE.get(stage, {}).items()) if cls.__module__ in modules}


def load_plugin_file(path: str | Path) -> None:
    """Import a user's file, so that what it registers can be named. A file that is already imported, also as
    a module, is not imported again.

    Raises ConfigError if there is no such file, or if it raises an exception, with its line.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ConfigError(
            f"plugins: no file {str(path)!r}; give the path of a Python file that registers plug-ins"
        )
    module_name = f"vlrl_plugin_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if module_name in sys.modules or any(_is_from(module, file) for module in list(sys.modules.values())):
        return
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec and spec.loader, file
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[module_name]  # so that the next attempt fails, too
        if isinstance(error, ConfigError) or not isinstance(error, (Exception, SystemExit)):
            raise
        said = f"{_line_of(error, file)}: {type(error).__name__}: {error}"
        raise ConfigError(f"plugins: {said}; mend the file, or leave it out of `plugins`") from error


def _line_of(error: BaseException, file: Path) -> str:
    """file:line where a user's file raised an exception."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    return f"{file}:{lines[-1]}" if lines else str(file)


def _is_from(module: Any, file: Path) -> bool:
    path = getattr(module, "__file__", None)
    return isinstance(path, str) and path.endswith(file.name) and Path(path).resolve() == file


def names(stage: Any) -> list[str]:
    """The names of a stage's plug-ins, shipped or registered by a user's file, sorted."""
    discover(stage)
    return sorted(_TABLE.get(stage, {}))


def find(stage: Any, name: str) -> type | None:
    """The class registered under `name`; None where there is none."""
    table = _TABLE.setdefault(stage, {})
    if name not in table:
        for module in modules_of(stage.home).get(name, ()):
            importlib.import_module(module)
    return table.get(name)


def get(stage: Any, name: str, where: str = "") -> type:
    """The class registered under `name`. Raises ConfigError with a suggestion."""
    kind = stage.kind
    if not name:
        raise ConfigError(f"{where or kind}: not set; name one (`vlrl list {kind}`)")
    cls = find(stage, name)
    if cls is None:
        hint = suggest(name, names(stage))
        raise ConfigError(f"{where or kind}: no {kind} named {name!r}.{hint} See `vlrl list {kind}`.")
    return cls


def suggest(name: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?", or " Known: a, b, c." with the five nearest names."""
    known = sorted(known)
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    if close:
        return f" Did you mean {close[0]!r}?"
    if not known:
        return " None is registered."
    nearest = (
        known
        if len(known) <= NEAREST
        else sorted(difflib.get_close_matches(str(name), known, n=NEAREST, cutoff=0.0))
    )
    more = f" and {len(known) - NEAREST} more" if len(known) > NEAREST else ""
    return f" Known: {', '.join(nearest)}{more}."


def origin(cls: type) -> str:
    """`file:line` of a plug-in's class; its module's name where the source cannot be found (an interactive
    session, a replaced module)."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    try:
        lines = Path(str(file)).read_text(encoding="utf-8").splitlines() if file else []
    except OSError:
        lines = []
    header = re.compile(rf"\s*class {cls.__name__}\b")
    number = next((number for number, line in enumerate(lines, 1) if header.match(line)), None)
    return f"{file}:{number}" if number else cls.__module__


def build(stage: Any, spec: Any, where: str = "") -> Any:
    """Make a plug-in from `{"name": ..., field: value, ...}` (or from a bare name). Raises ConfigError."""
    where = where or stage.kind
    if isinstance(spec, stage):
        return spec  # built already, in Python
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise ConfigError(
            f"{where}: expected a mapping with a `name`, got {str(spec)[:80]!r}; no other file names one "
            f"here. See `vlrl list {stage.kind}`."
        )
    spec = expanded(spec, where)
    cls = get(stage, spec["name"], where)
    return make(cls, {key: value for key, value in spec.items() if key != "name"}, where)


def expanded(values: Any, where: str) -> Any:
    """`values` with `${NAME}` replaced from the environment. Raises ConfigError that names a variable that is
    not set."""
    try:
        return expand(values)
    except LookupError as error:
        name = error.args[0]
        raise ConfigError(
            f"{where}: the environment variable {name} is not set, but the config refers to it as "
            f"${{{name}}}; "
            f"set it (export {name}=...), or write the value in the config or on the command line"
        ) from None


def _invalid(value: Any, hint: Any, error: Exception) -> str:
    """Why a value is refused, in one line: the value, what is allowed, and for a word where a list belongs
    the list."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:80] + "..."
    said = error.errors()[0]["msg"] if hasattr(error, "errors") else "nested too deeply"
    text = f"{shown} is not valid: {said}"
    choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
    words = [repr(word) for part in choices if get_origin(part) is Literal for word in get_args(part)]
    if words:
        others = ["a number" if part in (int, float) else str(part) for part in choices if not get_args(part)]
        return f"{shown} is not valid: expected {' or '.join([*words, *others])}"
    if get_origin(hint) is not Literal:
        text += f" (type {hint.__name__ if type(hint) is type else hint})"
    return (
        f"{text}; write a list: [{value}]"
        if isinstance(value, str) and value and get_origin(hint) in (tuple, list)
        else text
    )


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return all(map(_is_finite, value)) if isinstance(value, (tuple, list)) else True


@cache
def hints_of(cls: Any) -> dict[str, Any]:
    """The types of a class's attributes, evaluated once."""
    return get_type_hints(cls)


@cache
def _adapter(cls: Any, key: str) -> Any:
    """What checks the values of a field. It is the field's and not its type's: `int | str` and `str | int`
    are equal but take different values."""
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(hints_of(cls)[key], config=ConfigDict(arbitrary_types_allowed=True))


def make(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Construct a dataclass from plain values: unknown or missing keys and wrong types are ConfigErrors;
    numbers are coerced.

    Numbers are finite, except in the fields that the class names in `unbounded` (words of one text), where
    infinity means that there is no bound.
    """
    from pydantic import ValidationError

    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]  # T is a dataclass, which no annotation can say
    for key in values:
        if key not in fields:
            raise ConfigError(
                f"{where}.{key}: unknown field of "
                f"{getattr(cls, 'name', cls.__name__)!r}.{suggest(key, fields)}"
            )
    owner: Any = cls  # a type of a TypeVar is not hashable for mypy
    hints = hints_of(owner)
    kwargs: dict[str, Any] = {}
    for key, value in values.items():
        hint = hints[key]
        try:
            parts = (
                get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
            )  # X, or X | None
            nested: Any = next((part for part in parts if dataclasses.is_dataclass(part)), None)
            if nested and isinstance(value, Mapping):
                kwargs[key] = make(nested, value, f"{where}.{key}")
            elif nested and isinstance(value, (str, int, float, list)):
                expected = ", ".join(f.name for f in dataclasses.fields(nested)[:3])
                raise ConfigError(
                    f"{where}.{key}: expected a mapping of fields ({expected}, ...), got {str(value)[:80]!r}"
                )
            else:
                kwargs[key] = (
                    value if nested and value is not None else _adapter(owner, key).validate_python(value)
                )
        except (ValidationError, RecursionError) as error:
            raise ConfigError(f"{where}.{key}: {_invalid(value, hint, error)}") from None
        if isinstance(value, bool) and (hint in (int, float) or (float in parts and bool not in parts)):
            kind = hint.__name__ if isinstance(hint, type) else hint
            raise ConfigError(
                f"{where}.{key}: {str(value).lower()} is not valid: expected a number (type {kind})"
            )
        if not _is_finite(kwargs[key]) and key not in getattr(cls, "unbounded", "").split():
            raise ConfigError(f"{where}.{key}: {str(value)[:80]} is not valid: expected a finite number")
    missing = [
        k
        for k, f in fields.items()
        if k not in kwargs and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(
            f"{where}: {getattr(cls, 'name', cls.__name__)!r} needs a value for {', '.join(missing)}"
        )
    try:
        return cls(**kwargs)
    except ConfigError:
        raise
    except ValueError as error:  # a dataclass's own __post_init__ checks
        raise ConfigError(f"{where}: {error}") from None


def renames(text: str) -> dict[str, str]:
    """The columns of a command's --fields, `theirs=ours,...`, as a map. Raises ConfigError."""
    pairs = [part.partition("=") for part in text.split(",") if part]
    for theirs, equals, ours in pairs:
        if not theirs or not equals or not ours:
            raise ConfigError(
                f"--fields: {text!r} is not of the form theirs=ours,theirs=ours; for instance "
                "prompt=question,gold=answer"
            )
    return {theirs: ours for theirs, _, ours in pairs}
