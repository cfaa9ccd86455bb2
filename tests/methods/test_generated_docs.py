"""docs/methods.md lists every paper of the catalogue; docs/papers.md every preset of the objective family."""

from __future__ import annotations

import csv
import importlib.util
import re
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
        assert any(word in lines[row["id"]] for word in ("works (", "works: ", "not built: ", "not yet")), (
            row["id"]
        )


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


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_support_matrix_is_that_of_the_contract_tests():
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert page == script("make_models_doc").contract_kit.page(), "run python scripts/make_models_doc.py"


def test_the_page_of_papers_is_up_to_date():
    module = script("make_papers_doc")
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert page == module.render(), "run python scripts/make_papers_doc.py"


def test_every_record_of_a_paper_is_named_beside_its_preset():
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    for folder in (path.parent.name for path in (ROOT / "tests" / "papers").glob("*/case.yaml")):
        assert f"`tests/papers/{folder}`" in page, folder


def test_objective_papers_are_all_presets_with_an_entry():
    entries = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    ids = [row["id"] for row in catalogue() if row["family"] == "objective"]
    assert len(ids) == 37
    for name in ids:
        assert (ROOT / "configs" / "methods" / f"{name}.yaml").is_file() and f"`{name}`" in entries, name


# papers of the catalogue that have no place yet; an entry leaves the list with its preset or its command
NOT_BUILT = [
    "autorule",
    "behavior_alignment_reward",
    "cooper",
    "critique_rl",
    "crm",
    "debate_based_justifiability_reward",
    "eaglet",
    "knowrl",
    "libra_rm",
    "lipschitz_off_policy_gail",
    "master_rm",
    "nl_fl_hybridreasoning",
    "oni",
    "openrlhf",
    "orcust",
    "perception_r1",
    "pref_grpo",
    "regret_preference_model",
    "rewatch_r1",
    "rl_for_llm_based_asr",
    "rl_tango",
    "rlbff",
    "rlfr",
    "rlvmr",
    "rubicon",
    "rubrichub",
    "saffron_1",
    "sophiavl_r1",
    "soundmind",
    "think_rm",
    "thinkprm",
    "urpo",
    "vilbench",
    "wethink",
    "x1",
]
KINDS = {"method", "recipe", "probe", "suite", "launcher"}


def test_every_paper_is_listed_with_place_kind_task_proof_and_fidelity():
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    table = page.partition("## Every paper of the catalogue")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    scope = {row["id"] for row in catalogue() if not row["reason"]}
    listed = [row[0] for row in rows]
    assert len(scope) == 331 and len(listed) == len(set(listed))
    assert scope - set(listed) == set(NOT_BUILT), "NOT_BUILT is exact"
    assert set(listed) <= scope
    for name, place, kind, task, proof, fidelity in rows:
        assert place and task.strip("`") and kind in KINDS, name
        assert fidelity in ("code", "paper", "approximate"), name
        assert kind in ("recipe", "probe") or proof != "values", f"{name}: a {kind} has a proof"
        for path in re.findall(r"`([^`]+)`", proof):
            assert (ROOT / path).exists(), (name, path)


def test_places_are_those_of_rows_without_a_preset():
    with (ROOT / "docs" / "places.csv").open(newline="", encoding="utf-8") as file:
        places = [row["id"] for row in csv.DictReader(file)]
    assert sorted(places) == sorted(row["id"] for row in catalogue() if row["feature"])
