"""The reproduction card of a run: everything that its figures depend on, in one file that replays it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from vlrl.eval.rows import Rows
from vlrl.eval.suite import suite_file
from vlrl.registry import ConfigError, home_of
from vlrl.stages import Reward

PACKAGES = ("vlrl", "torch", "transformers", "vllm", "numpy", "pycocotools", "rapidfuzz", "math-verify", "datasets")


def versions() -> dict[str, str]:
    """Installed versions of what decides the figures."""
    out = {}
    for name in PACKAGES:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return out


def digest(*parts: str | bytes) -> str:
    """16 hex digits."""
    mark = hashlib.sha256()
    for part in parts:
        mark.update(part.encode() if isinstance(part, str) else part)
        mark.update(b"\x00")
    return mark.hexdigest()[:16]


def verifier_hash() -> str:
    """A digest of the source files of the package that rewards come from: equal hashes mean that training and evaluation verify alike."""
    home = Path(str(home_of(Reward).__file__)).parent
    return digest(*(path.read_bytes() for path in sorted(home.rglob("*.py"))))


def data_hash(rows: Rows) -> str:
    """A digest of the ids, prompts and gold answers."""
    suite = rows.suite
    return digest(*(f"{name}\x01{suite.text(row)}\x01{suite.gold(row)!r}" for name, row in zip(rows.ids, rows.fields, strict=True)))


def make_card(all_rows: Sequence[Rows], options: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """The card: `options` are those of the command, `model` what was served."""
    return {
        "format": 1,
        "options": options,
        "model": model,
        "suites": {
            rows.suite.name: {
                "yaml": digest(suite_file(rows.suite.name).read_bytes()),
                "data": data_hash(rows),
                "rows": len(rows),
                "origin": rows.origin,
                "hub": rows.suite.data.hub,
                "profiles": {name: profile.snapshot for name, profile in rows.suite.built.items()},
            }
            for rows in all_rows
        },
        "verifier": verifier_hash(),
        "versions": versions(),
    }


def read_card(path: Path) -> dict[str, Any]:
    """A card, from its file or the run that holds it. Raises ConfigError."""
    file = path / "card.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"{path}: no card.json; give the folder of an evaluation run or its card")
    card = json.loads(file.read_text(encoding="utf-8"))
    if card.get("format") != 1:
        raise ConfigError(f"{file}: a card of format {card.get('format')!r}, this version reads 1")
    return card


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between two cards, one line each: options, model, suites' YAML, data, verifier, versions."""
    lines = []
    for part in ("options", "model", "versions"):
        for key in sorted({*old[part], *new[part]}):
            if old[part].get(key) != new[part].get(key):
                lines.append(f"{part}.{key}: {old[part].get(key)!r} -> {new[part].get(key)!r}")
    for name in sorted({*old["suites"], *new["suites"]}):
        a, b = old["suites"].get(name, {}), new["suites"].get(name, {})
        lines += [f"{name}.{key}: {a.get(key)!r} -> {b.get(key)!r}" for key in ("yaml", "data", "rows", "origin") if a.get(key) != b.get(key)]
    if old["verifier"] != new["verifier"]:
        lines.append(f"verifier: {old['verifier']} -> {new['verifier']}")
    return lines
