"""docs/papers.csv lists every paper of the catalogue and every preset; each has a page."""

from __future__ import annotations

import csv
import importlib.util
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def catalogue():
    with (ROOT / "docs" / "catalogue.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def script(name="make_papers_doc"):
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed():
    """The rows of docs/papers.csv, by id."""
    with (ROOT / "docs" / "papers.csv").open(newline="", encoding="utf-8") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def test_every_paper_has_a_row_and_a_status():
    rows, papers = catalogue(), listed()
    presets = {path.stem for path in (ROOT / "configs" / "methods").glob("*.yaml")}
    assert len(rows) == 376 == len({row["id"] for row in rows})
    assert set(papers) == presets | {row["id"] for row in rows}
    for row in rows:
        status = papers[row["id"]]["status"]
        assert status.startswith(("works", "outside: ", "not yet")), row["id"]
        assert (status == "works") == (row["id"] in presets), row["id"]


def test_what_a_preset_needs_is_read_from_its_plugins():
    papers = listed()
    assert papers["ppo"]["needs"] == "critic" and papers["grpo_kl"]["needs"] == "reference model"
    assert papers["zerosearch"]["needs"].endswith("environment")
    assert papers["luffy"]["needs"] == "demonstrations" and papers["grpo"]["needs"] == ""


def test_what_is_named_in_place_of_a_preset_is_there():
    from vlrl.cli import _COMMANDS, _GROUPS

    named = [word for row in catalogue() for word in re.findall(r"`([^`]+)`", row["feature"])]
    assert len(named) > 5
    for words in (name.split() for name in named):
        if words[0].startswith("configs/"):
            assert (ROOT / f"{words[0]}.yaml").is_file(), words
        elif words[0] == "vlrl":
            assert words[1] in (*_COMMANDS, *_GROUPS), words
            assert "--suite" not in words or (ROOT / "configs" / "eval" / f"{words[-1]}.yaml").is_file(), (
                words
            )


def test_out_of_scope_has_a_reason():
    assert all(bool(row["reason"]) == (row["family"] == "out-of-scope") for row in catalogue())


def test_the_support_matrix_is_that_of_the_contract_tests():
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert page == script("make_models_doc").contract_kit.page(), "run python scripts/make_models_doc.py"


def test_the_page_and_the_list_of_papers_are_up_to_date():
    for path, text in script().made().items():
        assert path.read_text(encoding="utf-8") == text, "run python scripts/make_papers_doc.py"


def test_the_readme_counts_presets_and_suites():
    kinds = Counter(row["kind"] for row in listed().values())
    said = f"lists {kinds['method']} methods, {kinds['recipe']} recipes and {kinds['probe']} probes"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert said in readme
    assert f"There are {len(list((ROOT / 'configs' / 'eval').glob('*.yaml')))} suites." in readme


def test_every_record_of_a_paper_is_named_beside_its_preset():
    page = "\n".join([script().render(), *script().pages().values()])
    for folder in (path.parent.name for path in (ROOT / "tests" / "papers").glob("*/case.yaml")):
        assert f"`tests/papers/{folder}`" in page, folder


def test_objective_papers_are_all_presets_with_a_page():
    ids = [row["id"] for row in catalogue() if row["family"] == "objective"]
    assert len(ids) == 37
    for name in ids:
        assert (ROOT / "configs" / "methods" / f"{name}.yaml").is_file()
        assert f"`vlrl show methods/{name}`" in script().pages()[name], name


# papers of the catalogue that have no place yet; an entry leaves the list with its preset or its command
NOT_BUILT: list[str] = []
KINDS = {"method", "recipe", "probe", "suite", "launcher"}


def test_every_paper_is_listed_with_place_kind_task_proof_and_fidelity():
    scope = {row["id"] for row in catalogue() if not row["reason"]}
    works = {
        name: row for name, row in listed().items() if name in scope and row["status"].startswith("works")
    }
    assert len(scope) == 331 and scope - set(works) == set(NOT_BUILT), "NOT_BUILT is exact"
    for name, row in works.items():
        assert row["task"] and row["kind"] in KINDS, name
        assert row["fidelity"] in ("code", "paper", "approximate"), name
        assert row["kind"] in ("recipe", "probe") or row["proof"] != "values", f"{name} has no proof"
        for path in row["proof"].split() if row["proof"] != "values" else ():
            assert (ROOT / path).exists(), (name, path)


def test_places_are_those_of_rows_without_a_preset():
    with (ROOT / "docs" / "places.csv").open(newline="", encoding="utf-8") as file:
        places = [row["id"] for row in csv.DictReader(file)]
    assert sorted(places) == sorted(row["id"] for row in catalogue() if row["feature"])
