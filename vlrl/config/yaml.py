"""YAML of configs, read strictly: plain maps, lists and scalars, with the line of every value.

Refused with file, line and the fix: tags (`!foo`, `!!python/...`: nothing in a config is executed), merge
keys (`<<`), keys that are given twice or are no scalars, aliases inside their own anchor, NaN, integers
beyond 64 bits, nesting beyond `MAX_DEPTH`, files beyond `MAX_VALUES` values (aliases expanded) or `MAX_SIZE`
characters. `1e-3` is a number; a date is text.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from vlrl.plugins.registry import ConfigError

MAX_DEPTH = 30
MAX_VALUES = 20_000
MAX_SIZE = 2_000_000
_BRACKET = re.compile(r"[\[\]{}]")
_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "map", "seq")}


class Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e-3 as a number and a date as text."""


Loader.yaml_implicit_resolvers = {
    first: [
        (tag, form)
        for tag, form in pairs
        if tag not in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")
    ]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


class _Fast(getattr(yaml, "CSafeLoader", Loader)):  # type: ignore[misc]  # chosen by what is installed
    """`Loader` by libyaml, where PyYAML was built with it."""


_Fast.yaml_implicit_resolvers = Loader.yaml_implicit_resolvers
_MAX_LINE = 1000  # libyaml's composer recurses on the C stack: blocks nest at most twice per column


class _Reader:
    """Turns the nodes of one file, or of one value of the command line, into plain values. `origins`: dotted
    path -> place."""

    def __init__(self, place: str, lines: bool) -> None:
        self.place, self.lines = place, lines
        self.origins: dict[str, str] = {}
        self.count = 0
        self.open: set[int] = set()

    def at(self, node: yaml.Node, where: str = "") -> str:
        """Where a node is, and the path of its value."""
        place = f"{self.place}:{node.start_mark.line + 1}" if self.lines else self.place
        return f"{place}: {where}" if where else place

    def value(self, node: yaml.Node, where: str, depth: int = 0) -> Any:
        """The plain value of a node. Raises ConfigError."""
        self.count += 1
        if self.count > MAX_VALUES:
            raise ConfigError(
                f"{self.place}: more than {MAX_VALUES} values, aliases expanded; split the file, or write "
                "fewer aliases"
            )
        if depth > MAX_DEPTH:
            raise ConfigError(f"{self.at(node)}: nested deeper than {MAX_DEPTH} levels; no setting is")
        if id(node) in self.open:
            raise ConfigError(f"{self.at(node)}: an alias inside its own anchor; write the value out")
        if node.tag not in _PLAIN:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise ConfigError(
                f"{self.at(node, where)}: tag {tag} is not read; write a plain value (a config executes "
                "nothing)"
            )
        self.origins[where] = self.at(node)
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._map(node, where, depth)
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, where, depth + 1) for item in node.value]
            return self._scalar(node, where)
        finally:
            self.open.discard(id(node))

    def _map(self, node: yaml.MappingNode, where: str, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{self.at(key_node)}: a key that is a list or a map; keys are names")
            key = str(key_node.value)
            if key == "<<":
                raise ConfigError(
                    f"{self.at(key_node)}: merge keys (<<) are not read; use `extends: [other_file]`, or "
                    "write the values out"
                )
            if ":" in key and not key_node.style and _is_null(value_node):
                name, _, value = key.partition(":")
                raise ConfigError(
                    f"{self.at(key_node)}: {key!r} is a key without a value; write a space after the colon: "
                    f"{name}: {value}"
                )
            if key in result:
                raise ConfigError(f"{self.at(key_node)}: key {key!r} is given twice")
            result[key] = self.value(value_node, f"{where}.{key}".lstrip("."), depth + 1)
        return result

    def _scalar(self, node: yaml.Node, where: str) -> Any:
        try:
            value = Loader("").construct_object(node, deep=True)
        except (
            yaml.YAMLError,
            ValueError,
            KeyError,
            TypeError,
        ) as error:  # integers of thousands of digits; scalars unlike their tag
            raise ConfigError(
                f"{self.at(node, where)}: {str(node.value)[:40]!r} is not valid: "
                f"{' '.join(str(error).split())[:120]}"
            ) from None
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(f"{self.at(node, where)}: NaN is no setting; give a number")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ConfigError(
                f"{self.at(node, where)}: {str(node.value)[:30]} does not fit 64 bits; give a smaller number"
            )
        return value


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null" and not node.value


def _brackets(text: str) -> int:
    """The most brackets that are open at a time: the parser takes seconds for thousands of them."""
    depth = most = 0
    for match in _BRACKET.finditer(text):
        depth = depth + 1 if match[0] in "[{" else max(depth - 1, 0)
        most = max(most, depth)
    return most


def read(text: str, place: str, lines: bool = True) -> tuple[Any, dict[str, str]]:
    """(the value of a YAML text, {dotted path: place}). `place` names the text in messages; `lines`: with its
    line numbers. The caller may change both. Raises ConfigError."""
    value, origins = _read(text, place, lines)
    return _copy(value), dict(origins)


def _copy(value: Any) -> Any:
    """Maps and lists anew."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _compose(text: str) -> yaml.Node | None:
    """The nodes of a text. What libyaml refuses is read again by PyYAML's own parser, which says why."""
    if max(map(len, text.splitlines()), default=0) < _MAX_LINE:
        with suppress(yaml.YAMLError, UnicodeError):
            return yaml.compose(text, Loader=_Fast)
    return yaml.compose(text, Loader=Loader)


@lru_cache(maxsize=2048)  # the files that many configs extend are read again and again
def _read(text: str, place: str, lines: bool) -> tuple[Any, dict[str, str]]:
    if len(text) > MAX_SIZE:
        raise ConfigError(f"{place}: {len(text)} characters; a config has at most {MAX_SIZE}")
    if _brackets(text) > 4 * MAX_DEPTH:
        raise ConfigError(f"{place}: nested deeper than {MAX_DEPTH} levels; no setting is")
    try:
        node = _compose(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{place}: not valid YAML: {' '.join(str(error).split())[:300]}") from None
    except RecursionError:
        raise ConfigError(f"{place}: nested deeper than {MAX_DEPTH} levels; no setting is") from None
    reader = _Reader(place, lines)
    value = reader.value(node, "") if node is not None else None
    return value, reader.origins


def read_file(path: Path) -> tuple[Any, dict[str, str]]:
    """`read` of a file. Raises ConfigError."""
    try:
        if path.stat().st_size > 4 * MAX_SIZE:
            raise ConfigError(
                f"{path}: {path.stat().st_size} bytes; a config has at most {MAX_SIZE} characters"
            )
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not valid YAML: not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    return read(text, str(path))
