"""The environment of a run: one line of `sessions.jsonl` per start or resume. Together with config.yaml it is
enough to reproduce the run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlrl.services.redaction import blank_words
from vlrl.version import __version__

PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "peft", "vllm", "datasets", "numpy", "pillow")


def describe_session(words: Sequence[str] = ()) -> dict[str, Any]:
    """Versions, devices, source revision, the command (`words`, by default this process's) with secrets
    blanked, and the time."""
    return {
        "time": round(time.time(), 3),
        "command": blank_words(words or sys.argv),
        "vlrl": __version__,
        "revision": revision(Path(__file__).parent),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "devices": devices(),
        "cores": os.cpu_count(),
    }


def revision(folder: Path) -> str | None:
    """The git commit of the sources, with a + if files differ from it; None outside a checkout."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "--short=12", "HEAD")
    if (
        not commit or git("ls-files", "--error-unmatch", "session.py") is None
    ):  # installed below somebody else's checkout
        return None
    return commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def devices() -> list[str]:
    """Names of the accelerators that torch sees, or the processor."""
    torch = sys.modules.get("torch")  # asked only if it is in use anyway
    if torch is not None and torch.cuda.is_available():
        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [platform.processor() or platform.machine()]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
