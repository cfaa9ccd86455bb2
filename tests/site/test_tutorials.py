"""The tutorials run as they stand, in a short form; their pages and notebooks are made of their sources."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from site_kit import ROOT, made

NAMES = [path.stem for path in sorted((ROOT / "tutorials").glob("*.md"))]
KINDS = {"python", "bash", "file", "text"}


def test_there_are_six_and_each_has_cells_prose_and_limits():
    script = made("make_tutorials")
    assert len(NAMES) == 6
    for name in NAMES:
        pieces = list(script.cells(script.source(name)[1]))
        assert {piece.kind for piece in pieces} <= KINDS
        assert sum(piece.kind in script.RUN for piece in pieces) >= 3, name
        assert "## Limits" in pieces[-1].text, name


def test_fences_become_cells_and_a_named_one_a_file():
    script = made("make_tutorials")
    text = "# T\n\n```python\n1 + 1\n```\n\n```yaml\n# a.yaml\nx: 1\n```\n\n```text\nshown\n```\n"
    first, run, file, last = script.cells(text)
    assert first == ("text", "# T\n", "", "") and run[:2] == ("python", "1 + 1")
    assert (file.file, script.code(file)) == ("a.yaml", "%%writefile a.yaml\n# a.yaml\nx: 1")
    assert last.kind == "text" and "shown" in last.text


def test_a_short_form_that_replaces_nothing_is_an_error(tmp_path, monkeypatch):
    script = made("make_tutorials")
    (tmp_path / "t.md").write_text("---\nfast: {absent: x}\n---\n# T\n", encoding="utf-8")
    monkeypatch.setattr(script, "SOURCES", tmp_path)
    with pytest.raises(ValueError, match="absent"):
        script.source("t")


@pytest.mark.parametrize("name", NAMES)
def test_notebook_and_page_are_those_of_the_source(name):
    """Texts and cells are the source's; outputs are those of the notebook's own run."""
    nbformat = pytest.importorskip("nbformat")
    script = made("make_tutorials")
    stored = nbformat.read(script.PAGES / f"{name}.ipynb", as_version=4)
    fresh = script.notebook(name)
    assert [cell.source for cell in stored.cells] == [cell.source for cell in fresh.cells], (
        f"run python scripts/make_tutorials.py {name}"
    )
    page, images = script.page(name, stored)
    assert (script.PAGES / f"{name}.md").read_text(encoding="utf-8") == page
    assert all((script.PAGES / image).read_bytes() == data for image, data in images.items())
    outputs = [output for cell in stored.cells for output in cell.get("outputs", ())]
    assert len(outputs) >= 3 and not any(output.output_type == "error" for output in outputs)
    said = "".join(output.get("text", "") for output in outputs)
    assert not re.search(r"Traceback|/tmp/|/home/|/root/", said), name


def test_every_tutorial_runs_in_its_short_form():
    """One process for all of them; what a command needs is imported once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), str(ROOT / "rewards"), str(ROOT / "data"), environment.get("PYTHONPATH", "")]
    )
    command = [sys.executable, str(ROOT / "scripts" / "make_tutorials.py"), "--fast"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert [line for line in done.stdout.splitlines() if line.endswith(": ran")] == [
        f"{n}: ran" for n in NAMES
    ]
