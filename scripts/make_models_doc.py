"""Writes docs/models.md, the support matrix of model families, from the cases of the contract tests: `python
scripts/make_models_doc.py [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "policy"))

import contract_kit  # noqa: E402 (the path comes first)


def main(check: bool) -> None:
    """Write the page, or say that it is out of date."""
    path = ROOT / "docs" / "models.md"
    if not check:
        path.write_text(contract_kit.page(), encoding="utf-8")
    elif path.read_text(encoding="utf-8") != contract_kit.page():
        sys.exit("docs/models.md is out of date: python scripts/make_models_doc.py")


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
