"""`vlrl schema`: the JSON schema of configs, for editors that complete keys and mark mistakes."""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
import yaml

from vlrl.cli.list import first_paragraph
from vlrl.config import MAP_SLOTS, OTHER_KEYS, SLOTS
from vlrl.config.settings import Optimizer, Settings, Watch
from vlrl.plugins.kinds import stage_named
from vlrl.plugins.registry import get, names

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_KEYS = Path(__file__).parents[1] / "config" / "keys.yaml"
# ${NAME} stands for a value of any type; 1e3 is a text in YAML, and is read as a number
_FROM_TEXT = {"type": "string", "pattern": r"\$\{|^[-+]?[0-9.]+[eE][-+]?[0-9]+$"}
_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
_SHAPES: dict[str, Any] = {  # keys that belong to no plug-in and are no settings
    "about": {"type": "object"},
    "outcome": {
        "anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}]
    },
    "seed": {"type": "integer", "minimum": 0},
    "threads": {"type": "integer", "minimum": 1},
    "output": {"type": "string"},
    "plugins": {"type": "array", "items": {"type": "string"}},
    "eval": {"type": ["object", "null"]},
}


def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file to write; without it the schema is printed.")
    ] = None,
) -> None:
    """Write the JSON schema of configs. A YAML language server reads it from the first line of a config:
    `# yaml-language-server: $schema=vlrl.schema.json`."""
    text = json.dumps(config_schema(), indent=1)
    if output is None:
        typer.echo(text)
        return
    output.write_text(text + "\n", encoding="utf-8")
    typer.echo(f"wrote {output}; first line of a config:  # yaml-language-server: $schema={output}")


@cache
def key_docs() -> dict[str, dict[str, str]]:
    """Unit and meaning of every key that belongs to no plug-in, and of every slot."""
    return yaml.safe_load(_KEYS.read_text(encoding="utf-8"))


def config_schema() -> dict[str, Any]:
    """The schema of a config file. Names of plug-ins that are not shipped are allowed: a user's file may
    register them."""
    phase = _fields(Settings, "") | {
        "optimizer": _object(_fields(Optimizer, "optimizer."), "optimizer"),
        "watch": _object(_fields(Watch, "watch."), "watch"),
        **{slot: _slot(slot) for slot in SLOTS},
        "data": _object(
            {split: _map("source") for split in ("train", "heldout")} | {"*": {"type": "null"}}, "data"
        ),
        "keeps": {"anyOf": [{"const": "all"}, {"type": "array", "items": {"type": "string"}}]},
    }
    top = {name: part for name, part in phase.items() if name != "keeps"}
    top |= {name: {**_SHAPES[name], **_said(name)} for name in OTHER_KEYS if name in _SHAPES}
    top["extends"] = {"type": "array", "items": {"type": "string"}, **_said("extends")}
    top["phases"] = {
        "type": ["object", "null"],
        "additionalProperties": {"anyOf": [{"$ref": "#/$defs/phase"}, {"type": "null"}]},
        **_said("phases"),
    }
    kinds = {kind: _plugin(kind) for kind in ("source", *SLOTS.values())}
    in_phase = phase | {name: top[name] for name in ("outcome", "eval", "extends")}
    return {
        "$schema": DRAFT,
        "title": "A config of vlrl",
        "type": "object",
        "properties": top,
        "additionalProperties": False,
        "$defs": {
            "phase": {"type": "object", "properties": in_phase, "additionalProperties": False},
            **kinds,
        },
    }


def _said(key: str) -> dict[str, str]:
    doc = key_docs()[key]
    return {"description": doc["means"] + (f" Unit: {doc['unit']}." if doc["unit"] else "")}


def _fields(cls: type, head: str) -> dict[str, Any]:
    return {
        name: {**shape, **_said(head + name)}
        for name, shape in properties(cls).items()
        if name not in ("optimizer", "watch")
    }


def _object(properties: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {
        "type": ["object", "null"],
        "properties": dict(properties),
        "additionalProperties": False,
        **_said(key),
    }


def _slot(slot: str) -> dict[str, Any]:
    kind = SLOTS[slot]
    return {**(_map(kind) if slot in MAP_SLOTS else {"$ref": f"#/$defs/{kind}"}), **_said(slot)}


def _map(kind: str) -> dict[str, Any]:
    return {"type": ["object", "null"], "additionalProperties": {"$ref": f"#/$defs/{kind}"}}


def _plugin(kind: str) -> dict[str, Any]:
    """A plug-in by its name, or a mapping with name and fields. Without `name` it changes fields of the one
    that another file names; null removes it."""
    stage = stage_named(kind)
    known = names(stage)
    rules = []
    for name in known:
        cls: Any = get(stage, name)
        rules.append(
            {
                "if": {"properties": {"name": {"const": name}}, "required": ["name"]},
                "then": {
                    "description": first_paragraph(inspect.getdoc(cls)),
                    "properties": {"name": True, "*": {"type": "null"}, "heldout": True, **properties(cls)},
                    "additionalProperties": False,
                },
            }
        )
    named = {"anyOf": [{"enum": known}, {"type": "string"}]}
    return {
        "anyOf": [
            {"type": "null"},
            named,
            {"type": "object", "properties": {"name": named}, "allOf": rules},
        ],
        "description": first_paragraph(inspect.getdoc(stage)),
    }


def properties(cls: Any) -> dict[str, Any]:
    """The fields of a dataclass, each with its type and default."""
    hints = get_type_hints(cls)
    return {
        field.name: _property(field, hints[field.name]) for field in dataclasses.fields(cls) if field.init
    }


def _property(field: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    shape = json_type(hint)
    if isinstance(field.default, (bool, int, float, str)):
        shape = {**shape, "default": field.default}
    return shape


def json_type(hint: Any) -> dict[str, Any]:
    """The schema of a type: a scalar, a Literal, a union, a sequence, a mapping, a dataclass; {} for others,
    which means anything. Every value may be null, which removes it."""
    found = _alternatives(hint)
    if not all(found):
        return {}
    unique = [part for index, part in enumerate(found) if part not in found[:index]]
    return {"anyOf": [*unique, _FROM_TEXT, {"type": "null"}]}


def _alternatives(hint: Any) -> list[dict[str, Any]]:
    origin, args = get_origin(hint), get_args(hint)
    if hint in _SCALARS:
        return [{"type": _SCALARS[hint]}]
    if origin is Literal:
        return [{"enum": list(args)}]
    if origin is Annotated:
        return _alternatives(args[0])
    if origin in (Union, types.UnionType):
        return [part for arg in args for part in _alternatives(arg)]
    if dataclasses.is_dataclass(hint) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return [{"type": "object"}]
    if origin in (tuple, list):
        return [{"type": "array"}]
    return [{}]
