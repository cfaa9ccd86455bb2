"""Imports every module of the installed packages: `python scripts/import_all.py [PACKAGE ...]`.

A module may be missing what a named PACKAGE brings (`vllm`, which training does not need), nothing else.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator

PACKAGES = ("vlrl", "vlrl_rewards", "vlrl_data")


def modules() -> Iterator[str]:
    """The names of all modules, without those that run when they are imported."""
    for package in PACKAGES:
        folder = importlib.import_module(package).__path__
        for found in pkgutil.walk_packages(folder, f"{package}."):
            if not found.name.endswith(".__main__"):
                yield found.name


def main(optional: list[str]) -> int:
    """Print what lacks a package; 1 where that is not one of `optional`."""
    imported, lacking = 0, []
    for name in modules():
        try:
            importlib.import_module(name)
            imported += 1
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in optional:
                lacking.append(f"{name}: {error}")
    print("\n".join([*lacking, f"{imported} modules imported"]))
    return int(bool(lacking))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
