"""The files of checkpoints: which there are, and whether each is intact. It imports no torch, so that
commands can look before they load a model.

`trainer/manifest.json` is {"files": {name: [size, SHA-256]}, "sha256": of these};
`vlrl.trainer.checkpoints.checkpoint` writes it last.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vlrl.plugins.registry import ConfigError
from vlrl.services.files import sha256

FOLDER = "checkpoints"
FORMAT = 2  # from this one on a checkpoint has a manifest
STATE, MANIFEST = "trainer/state.json", "trainer/manifest.json"
HASHED_AT_ONCE = 4  # files


def folders(output: Path) -> list[Path]:
    """All checkpoints that got their final name, oldest first, damaged ones too."""
    found = [
        path
        for path in (output / FOLDER).glob("step-*")
        if re.fullmatch(r"step-\d+", path.name) and path.is_dir()
    ]
    return sorted(found, key=lambda path: int(path.name[5:]))


def saved(output: Path) -> list[Path]:
    """Checkpoints whose files are all there, with their sizes, oldest first. The contents are not read (see
    `faults`)."""
    return [path for path in folders(output) if not faults(path, contents=False)]


def faults(folder: Path, contents: bool | Collection[str] = True) -> list[str]:
    """What is wrong with a checkpoint's files, each named: missing, truncated, damaged. [] for an intact one.

    `contents`: compare the SHA-256 of every file, or of those named, else presence and size alone. A
    checkpoint of a version without manifests is checked for the presence of its files.
    """
    listed = _listed(folder)
    if isinstance(listed, str):
        return [listed]

    def fault(item: tuple[str, Any]) -> str:
        name, (size, digest) = item
        path, read = folder / name, contents if isinstance(contents, bool) else name in contents
        try:
            if not path.is_file():
                return f"{name} is missing{_role(name)}"
            found = path.stat().st_size
            if size is not None and found != size:
                return f"{name} has {found} bytes of {size}{_role(name)}"
            return (
                f"{name} is damaged: its checksum differs{_role(name)}"
                if read and digest and sha256(path) != digest
                else ""
            )
        except OSError as error:
            return f"{name} cannot be read ({error.strerror}){_role(name)}"

    with ThreadPoolExecutor(HASHED_AT_ONCE) as pool:
        return [said for said in pool.map(fault, listed.items()) if said]


def _listed(folder: Path) -> dict[str, tuple[int | None, str]] | str:
    """name -> (size, SHA-256) of a checkpoint's files; or what is wrong with the list itself."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if state.get("format", 1) < FORMAT:
            return {
                name: (None, "")
                for name in (
                    STATE,
                    "trainer/optimizer.pt",
                    "trainer/plugins.pt",
                    "config.json",
                    "tokenizer_config.json",
                )
            }
    except (OSError, ValueError, AttributeError, TypeError):
        pass  # named below, by the manifest
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        if manifest["sha256"] != digest_of(files):
            raise ValueError(MANIFEST)
        return {str(name): (int(size), str(digest)) for name, (size, digest) in files.items()}
    except FileNotFoundError:
        return f"{MANIFEST}, the list of its files, is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST}, the list of its files, is damaged"


def digest_of(files: Mapping[str, Any]) -> str:
    """The SHA-256 of a manifest's entries."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _role(name: str) -> str:
    words = {
        "token": "tokenizer",
        "vocab": "tokenizer",
        "merges": "tokenizer",
        "processor": "processor",
        "chat_template": "chat template",
    }
    words |= {
        "safetensors": "weights",
        "optimizer": "optimizer",
        "plugins": "state of the plug-ins",
        "random": "random state",
    }
    found = next((role for word, role in words.items() if word in name), "")
    return f" ({found})" if found else ""


def newest_intact(output: Path) -> tuple[Path | None, list[str]]:
    """(the newest checkpoint whose files are intact, what was wrong with newer ones); None where there is no
    checkpoint at all.

    Raises ConfigError where there are checkpoints, and all of them are damaged.
    """
    notes = [
        f"resume: {str(path)!r} was not finished (its process ended while writing it)"
        for path in (output / FOLDER).glob(".step-*.part")
    ]
    for folder in reversed(folders(output)):
        wrong = faults(folder)
        if not wrong:
            return folder, [f"{note}; going on from {folder.name}" for note in notes]
        shown = "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        notes.append(f"resume: checkpoint {str(folder)!r} is damaged and not used: {shown}")
    if folders(output):
        raise ConfigError(
            f"{'; '.join(notes)}; no checkpoint is left. Start over with --overwrite, or restore one from "
            "a backup"
        )
    return None, notes
