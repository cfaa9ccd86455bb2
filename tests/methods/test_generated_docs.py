"""docs/methods.md lists every paper of the catalogue; docs/papers.md every preset of the objective family."""

from __future__ import annotations

import csv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def catalogue():
    with (ROOT / "docs" / "catalogue.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_paper_has_a_row_and_a_status():
    rows = catalogue()
    papers = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("## Plug-ins")[0]
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in papers.splitlines()}
    assert len(rows) == 376 == len({row["id"] for row in rows})
    for row in rows:
        assert any(word in lines[row["id"]] for word in ("works (", "not built: ", "not yet")), row["id"]


def test_out_of_scope_has_a_reason():
    assert all(bool(row["reason"]) == (row["family"] == "out-of-scope") for row in catalogue())


def test_objective_papers_are_all_presets_with_an_entry():
    entries = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    ids = [row["id"] for row in catalogue() if row["family"] == "objective"]
    assert len(ids) == 37
    for name in ids:
        assert (ROOT / "configs" / "methods" / f"{name}.yaml").is_file() and f"`{name}`" in entries, name
