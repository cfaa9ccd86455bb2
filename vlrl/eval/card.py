"""The reproduction card of a run (`card.json`): all that its figures depend on, in one file from which it can
be replayed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from vlrl.eval.records import SuiteData
from vlrl.plugins.registry import ConfigError, home_of
from vlrl.plugins.stages import Reward

PACKAGES = (
    "vlrl",
    "torch",
    "transformers",
    "vllm",
    "numpy",
    "pycocotools",
    "rapidfuzz",
    "math-verify",
    "datasets",
)


def versions() -> dict[str, str]:
    """The installed versions of the packages that figures depend on."""
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def digest(*parts: str | bytes) -> str:
    """The first 16 hex digits of a SHA-256 over the parts."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part.encode() if isinstance(part, str) else part)
        state.update(b"\x00")
    return state.hexdigest()[:16]


def verifier_hash() -> str:
    """A digest of the rewards package's source files. Two runs with equal digests use the same verifier, in
    training or in evaluation."""
    home = Path(str(home_of(Reward).__file__)).parent
    return digest(*(path.read_bytes() for path in sorted(home.rglob("*.py"))))


def data_hash(data: SuiteData) -> str:
    """A digest of the ids, prompts and gold answers."""
    suite = data.suite
    return digest(
        *(
            f"{name}\x01{suite.text(record)}\x01{suite.gold(record)!r}"
            for name, record in zip(data.ids, data.records, strict=True)
        )
    )


def make_card(suites: Sequence[SuiteData], options: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """The card of a run: `options` are those of the command, `model` the model and the engine. Suites are
    listed by name."""
    return {
        "format": 1,
        "options": options,
        "model": model,
        "suites": {
            data.suite.name: {
                "yaml": digest(data.suite.file.read_bytes()) if data.suite.file else "",
                "data": data_hash(data),
                "rows": len(data),
                "origin": data.origin,
                "hub": data.suite.data.hub,
                "profiles": {name: profile.snapshot for name, profile in data.suite.built.items()},
            }
            for data in suites
        },
        "verifier": verifier_hash(),
        "versions": versions(),
    }


def read_card(path: Path) -> dict[str, Any]:
    """A card, from its file or from the folder of its run. Raises ConfigError."""
    file = path / "card.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"{path}: no card.json; give the folder of an evaluation run or its card")
    card = json.loads(file.read_text(encoding="utf-8"))
    if card.get("format") != 1:
        raise ConfigError(f"{file}: a card of format {card.get('format')!r}; this version reads format 1")
    return card


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The differences of two cards, one line each: options, model, versions, each suite's YAML, data, rows
    and origin, verifier."""
    lines = []
    for part in ("options", "model", "versions"):
        for key in sorted({*old[part], *new[part]}):
            if old[part].get(key) != new[part].get(key):
                lines.append(f"{part}.{key}: {old[part].get(key)!r} -> {new[part].get(key)!r}")
    for name in sorted({*old["suites"], *new["suites"]}):
        a, b = old["suites"].get(name, {}), new["suites"].get(name, {})
        lines += [
            f"{name}.{key}: {a.get(key)!r} -> {b.get(key)!r}"
            for key in ("yaml", "data", "rows", "origin")
            if a.get(key) != b.get(key)
        ]
    if old["verifier"] != new["verifier"]:
        lines.append(f"verifier: {old['verifier']} -> {new['verifier']}")
    return lines
