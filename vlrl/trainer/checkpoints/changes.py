"""What a resumed run may change: the config and the rows now, against those of the checkpoint.

A change that only says how long, where or how fast the run goes on is told; one that would make it another
run (the learning rate, a reward's weight, the seed, other rows) is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from vlrl.config import Config
from vlrl.config.config import MAP_SLOTS, SLOTS
from vlrl.config.merging import ABSENT, at, leaves
from vlrl.config.settings import Optimizer, Settings, Watch
from vlrl.plugins.kinds import stage_named
from vlrl.plugins.registry import ConfigError, find
from vlrl.types import Media, Row

MAY_CHANGE = re.compile(
    r"(steps|output|threads|about|watch|eval|engine|metrics|micro_batch_tokens|error_limit|row_error_limit"
    r"|max_refill_rounds|prompts_per_step|num_minibatches|plugins|data\.heldout"
    r"|data\.train\.[^.]+\.(path|media_root|cache|max_bad)|callbacks\.eval)(\.|$)"
)
SHOWN = 4  # changes in one message
DIGESTED = 20_000  # rows of a source; of larger ones as many, spread evenly
CONFIG = "trainer/config.yaml"


def config_changes(folder: Path, config: Config, phase: str) -> list[str]:
    """What is other in `config` than in a checkpoint of `phase`, a line each. Raises ConfigError for what
    cannot change. Phases that have not begun may change."""
    try:
        saved = Config(yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8")) or {})
    except (OSError, yaml.YAMLError, UnicodeDecodeError):  # of a version that wrote none
        return []
    now = Config(yaml.safe_load(config.dump()))
    if phase not in now.phases or phase not in saved.phases:
        return []
    changed = _differences(saved.phase(phase), now.phase(phase))
    where = f"phases.{phase}." if len(now.phases) > 1 else ""
    refused = [text for path, text in changed if not MAY_CHANGE.match(path)]
    if refused:
        more = f" and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
        own = folder.parents[1] / "config.yaml"
        raise ConfigError(
            f"resume: a run cannot go on with another {'; '.join(refused[:SHOWN])}{more} (was -> is); go on "
            f"with its own config (vlrl train {own} --resume), or start another run from this checkpoint: "
            f"policy.model={folder} output=..."
        )
    later = [name for name in now.phases[now.phases.index(phase) + 1 :] if name in saved.phases]
    told = [f"{where}{text}" for _, text in changed if not text.startswith(("output", "about"))]
    for name in later:
        told += [f"phases.{name}.{text}" for _, text in _differences(saved.phase(name), now.phase(name))]
    return [f"resume: changed: {text}" for text in dict.fromkeys(told) if ".output " not in text]


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(path, "path: was -> is") of every leaf that differs, defaults filled in."""
    found = []
    saved, now = _long_form(saved), _long_form(now)
    for path in dict.fromkeys([*leaves(saved), *leaves(now)]):
        before, after = at(saved, path), at(now, path)
        before = _default(saved, path) if before is ABSENT else before
        after = _default(now, path) if after is ABSENT else after
        if before != after and not path.startswith("about") and not _is_map_above(saved, now, path):
            found.append((path, f"{path}: {_shown(before)} -> {_shown(after)}"))
    return found


def _is_map_above(saved: Mapping[str, Any], now: Mapping[str, Any], path: str) -> bool:
    """An empty map on one side whose entries stand for themselves on the other."""
    values = at(saved, path), at(now, path)
    return all(value is ABSENT or value == {} or (isinstance(value, Mapping)) for value in values)


def _long_form(tree: Mapping[str, Any]) -> dict[str, Any]:
    """`engine: hf` as `engine: {name: hf}`."""

    def plugin(spec: Any) -> Any:
        return {"name": spec} if isinstance(spec, str) else spec

    out = dict(tree)
    for slot in SLOTS:
        if slot in MAP_SLOTS and isinstance(out.get(slot), Mapping):
            out[slot] = {name: plugin(spec) for name, spec in out[slot].items()}
        elif slot in out and slot not in MAP_SLOTS:
            out[slot] = plugin(out[slot])
    return out


def _default(tree: Mapping[str, Any], path: str) -> Any:
    """The value that a setting or a field of a plug-in has where the tree does not name it."""
    parent, _, name = path.rpartition(".")
    slot = path.partition(".")[0]
    kind = SLOTS.get(slot, "source" if slot == "data" else "")
    classes: dict[str, Any] = {"": Settings, "optimizer": Optimizer, "watch": Watch}
    cls = classes.get(parent)
    spec = at(tree, parent) if parent else None
    if cls is None and kind and isinstance(spec, Mapping) and isinstance(spec.get("name"), str):
        cls = find(stage_named(kind), spec["name"])
    field = {field.name: field for field in dataclasses.fields(cls)}.get(name) if cls is not None else None
    if field is None or field.default is dataclasses.MISSING:
        return ABSENT
    return list(field.default) if isinstance(field.default, tuple) else field.default


def _shown(value: Any) -> str:
    text = "-" if value is ABSENT else json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."


# --- rows ---------------------------------------------------------------------------------------------------


def rows_digest(sources: Mapping[str, Sequence[Row]]) -> dict[str, list[Any]]:
    """Source -> [number of rows, SHA-256 of what they say]. Of a picture's file its name and size count."""
    out: dict[str, list[Any]] = {}
    for slot, rows in sources.items():
        digest = hashlib.sha256()
        for place in range(0, len(rows), max(1, len(rows) // DIGESTED)):
            digest.update(_told(rows[place]).encode("utf-8", "surrogatepass"))
        out[slot] = [len(rows), digest.hexdigest()]
    return out


def check_rows_same(saved: Mapping[str, Sequence[Any]], now: Mapping[str, Sequence[Any]]) -> None:
    """Raise ConfigError where a source has other rows than those of a checkpoint."""
    for slot, (count, digest) in saved.items():
        if slot in now and list(now[slot]) != [count, digest]:
            size = f"{count} rows then, {now[slot][0]} now" if count != now[slot][0] else f"{count} rows"
            raise ConfigError(
                f"resume: data.train.{slot} has other rows than when the checkpoint was written ({size}); "
                "give the same rows back, or start another run from the checkpoint: policy.model=... "
                "output=..."
            )


def _told(row: Row) -> str:
    said = [
        row.id, row.question, row.answer, row.choices, row.task, row.target, row.system, row.messages,
        row.rewards, row.meta, [_file(medium) for medium in row.media],
    ]  # fmt: skip
    return json.dumps(said, sort_keys=True, default=_kind)


def _kind(value: Any) -> Any:
    """What is no JSON: sets and mappings by their items, all else by its class, since a repr may hold an
    address."""
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    return type(value).__name__


def _file(medium: Media) -> Any:
    source = getattr(medium, "source", None)
    if isinstance(source, bytes):
        return len(source)
    if isinstance(source, str):
        path = Path(source)
        return [path.name, path.stat().st_size if path.is_file() else -1]
    return type(medium).__name__
