"""The `vlrl eval` commands, and suites that are given by the path of their YAML."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from vlrl.engine.fake import Fake
from vlrl.eval.card import make_card, read_card
from vlrl.eval.generate import (
    GenerationSettings,
    describe_cost,
    estimate_cost,
    generate_responses,
    pending_samples,
)
from vlrl.eval.journal import Journal
from vlrl.eval.model import threads_of
from vlrl.eval.page import write_page
from vlrl.eval.runner import EvalOptions, prepare_folder, read_suites, reopen, rescore, write_results
from vlrl.eval.suite import load_suite, suite_file
from vlrl.plugins.registry import ConfigError


def invoke(*words):
    from vlrl.eval.cli import app

    return CliRunner().invoke(app, list(words))


def test_the_command_line_scores_a_file(tmp_path):
    file = tmp_path / "r.jsonl"
    file.write_text('{"id": "1", "response": "2"}\n{"id": "2", "response": "(B)"}\n')
    out = invoke(
        "score",
        str(file),
        "--suite",
        "mathvista",
        "--data",
        "fixture",
        "--profile",
        "official,vlrl",
        "--json",
    )
    assert out.exit_code == 0, out.output
    results = {part["profile"]: part for part in json.loads(out.stdout)["results"]}
    assert results["official"]["scores"] == {"1": 1.0, "2": 1.0, "3": 0.0, "4": 0.0, "5": 0.0, "6": 0.0}
    assert (
        results["official"]["floors"]["blank"] == pytest.approx(1 / 6)
        and results["vlrl"]["floors"]["blank"] == 0
    )
    table = invoke("score", str(file), "--suite", "mathvista", "--data", "fixture", "-p", "official").output
    assert "33.33%" in table and "blank 16.7%" in table


def test_the_command_line_lists_and_refuses(tmp_path):
    listed = json.loads(invoke("suites", "--json").stdout)
    assert listed["vsi_bench"] == {
        "hub": "nyu-visionx/VSI-Bench",
        "split": "test",
        "profiles": ["official", "lmms_eval", "vlmevalkit", "vlrl"],
    }
    assert isinstance(invoke("--suite", "mathvista").exception, ConfigError)
    for words, message in (
        (("--suite", "mathvista", "--model", "x", "-k", "4"), "at temperature 0 draws the same"),
        (("--model", "x"), "name at least one"),
        (
            ("-s", "mathvista", "-m", "no_such_model", "--data", "fixture", "-o", str(tmp_path / "o")),
            "no config, no model folder",
        ),
        (("-s", "mathvista", "-m", "x", "-E", "oops"), "expected name=value"),
        (("-s", "mathvista", "-m", "x", "--protocol", "thinkng"), "Did you mean 'thinking'"),
    ):
        error = invoke(*words).exception
        assert isinstance(error, ConfigError) and message in str(error), (words, error)


def test_a_suite_tells_its_columns():
    told = invoke("suites", "mathvista").output
    assert "prompt: {{ row.query }}" in told and "  decoded_image: dict" in told and "  answer: str" in told
    facts = json.loads(invoke("suites", "vsi_bench", "--json").output)
    assert facts["suite"] == "vsi_bench" and "question" in facts["columns"]


def test_overwrite_deletes_what_a_run_wrote_and_nothing_else(tmp_path):
    for name in ("fixtures/mathvista/rows.jsonl", "thesis.tex", "journal/1.jsonl", "summary.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "card.json").write_text("{}")
    prepare_folder(tmp_path, {"new": 1}, overwrite=True)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["card.json", "fixtures", "thesis.tex"]
    assert json.loads((tmp_path / "card.json").read_text()) == {"new": 1}


def test_evaluation_takes_the_threads_of_the_run(tmp_path):
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000002"
    checkpoint.mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("threads: 3\n")
    assert threads_of(str(tmp_path / "run")) == threads_of(str(checkpoint)) == 3
    assert threads_of(str(tmp_path)) == threads_of("tiny_text") == 0


def test_a_dry_run_states_the_costs_and_starts_nothing(fixture_data):
    data = fixture_data("vsi_bench")
    settings = GenerationSettings(samples=2, temperature=1.0)
    served = SimpleNamespace(policy=None, engine=Fake(function=lambda request, index: "B"))
    found = estimate_cost(
        [data], pending_samples([data], settings, {}), settings, served, prices=(1.0, 10.0), probe=2
    )
    assert (
        found["requests"] == 20
        and found["response_tokens_at_most"] == 20 * 16
        and found["prompt_tokens"] > 20_000
    )
    assert found["price_at_most"] == pytest.approx((found["prompt_tokens"] + 3200) / 1e6, abs=1e-3)
    assert (
        found["probe"]["requests"] == 2
        and "20 requests" in describe_cost(found)
        and "to pay" in describe_cost(found)
    )


@pytest.mark.parametrize("dry", [False, True])
def test_rows_without_a_column_are_refused_before_the_model_is_loaded(tmp_path, monkeypatch, dry):
    """Own rows in MathVista's format without `decoded_image`, or with pictures that are not there."""
    loaded = []
    monkeypatch.setattr("vlrl.eval.runner.open_model", lambda *words: loaded.append(words))
    row = {
        "pid": "7",
        "query": "Which hour?",
        "choices": ["3", "6"],
        "answer": "3",
        "question_type": "multi_choice",
        "answer_type": "text",
        "metadata": {},
    }
    rows = tmp_path / "testmini.jsonl"
    words = [
        "--suite",
        "mathvista",
        "--model",
        "tiny_qwen2_5_vl",
        "--data",
        str(rows),
        "--output",
        str(tmp_path / "run"),
        *(["--dry-run"] if dry else []),
    ]
    for lacks in ("decoded_image", "choices", "query", "answer"):
        whole = row | {"decoded_image": "0.png"}
        rows.write_text(json.dumps({name: value for name, value in whole.items() if name != lacks}) + "\n")
        (tmp_path / "0.png").write_bytes(b"")
        error = invoke(*words).exception
        assert isinstance(error, ConfigError), (lacks, error)
        assert (
            "suite 'mathvista', row 1: " in str(error)
            and f"'{lacks}'" in str(error)
            and "mathvista.yaml" in str(error)
        ), error
        assert "the row has " in str(error) and "_folder" not in str(error)
    rows.write_text(
        "".join(json.dumps(row | {"pid": str(n), "decoded_image": f"gone/{n}.png"}) + "\n" for n in range(5))
    )
    error = invoke(*words).exception
    assert (
        isinstance(error, ConfigError)
        and "the media of the first 3 rows cannot be read; row 1: " in str(error)
        and "--media" in str(error)
    )
    assert not loaded and not (tmp_path / "run").exists()
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "1.png").write_bytes(
        b""
    )  # one of the first rows is whole: the others fail alone, during the run
    assert not isinstance(invoke(*words).exception, ConfigError) and loaded


MINE = """
data: {hub: me/mine, split: test, id: row.key}
prompt: "{{ row.question }}"
max_tokens: 8
profiles:
  official: {scorer: {name: exact_text}}
"""


@pytest.fixture
def own_suite(tmp_path):
    """The path of a suite's YAML and of its records."""
    suite, records = tmp_path / "suites" / "mine.yaml", tmp_path / "rows.jsonl"
    suite.parent.mkdir()
    suite.write_text(MINE)
    records.write_text(
        "\n".join(
            json.dumps({"key": f"r{i}", "question": f"What is {i}?", "answer": str(i)}) for i in range(3)
        )
    )
    return suite, records


def test_a_suite_given_by_its_path_is_run_reopened_scored_and_shown(tmp_path, own_suite):
    suite, records = own_suite
    options = EvalOptions(suites=(str(suite),), model="none", engine="fake", data=str(records))
    suites = read_suites(options)
    folder = tmp_path / "run"
    prepare_folder(
        folder, make_card(suites, options.to_json(), {"model": "none", "engine": {"name": "fake"}}), False
    )
    journal, settings = Journal(folder), options.generation(suites)
    engine = Fake(function=lambda request, index: "1")
    assert generate_responses(engine, pending_samples(suites, settings, {}), settings, journal) == 0
    (result,) = write_results(folder, options, suites, settings)["results"]
    assert (result["suite"], result["overall"]) == ("mine", pytest.approx(1 / 3))
    card = read_card(folder)
    assert (
        card["options"]["suites"] == [str(suite)]
        and list(card["suites"]) == ["mine"]
        and len(card["suites"]["mine"]["yaml"]) == 16
    )
    _, (again,), _ = reopen(folder)
    assert again.suite.name == "mine" and again.ids == ["r0", "r1", "r2"]
    (scored,) = rescore(folder, ["official"], [str(suite)])
    assert scored["scores"] == {"r0": 0.0, "r1": 1.0, "r2": 0.0}
    assert write_page([folder], tmp_path / "page.html")["items"] == {
        "gained": 0,
        "lost": 0,
        "correct": 1,
        "wrong": 2,
    }


def test_a_card_notices_a_changed_suite_file(tmp_path, own_suite):
    suite, records = own_suite
    options = EvalOptions(suites=(str(suite),), model="none", data=str(records))
    card = make_card(read_suites(options), options.to_json(), {})
    prepare_folder(tmp_path / "run", card, False)
    suite.write_text(MINE + "notes_of_mine: 1\n")
    with pytest.raises(ConfigError, match="unknown field"):
        load_suite(suite)
    suite.write_text(MINE + "about: {size: 3}\n")
    changed = make_card(read_suites(options), options.to_json(), {})
    with pytest.raises(ConfigError, match=r"holds a run that differs \(mine\.yaml"):
        prepare_folder(tmp_path / "run", changed, False)


def test_suites_of_one_name_are_refused(tmp_path):
    copy = tmp_path / "vsi_bench.yaml"
    copy.write_text(suite_file("vsi_bench").read_text())
    for names in (("vsi_bench", str(copy)), ("vsi_bench", "vsi_bench")):
        with pytest.raises(ConfigError, match="two suites are named 'vsi_bench'"):
            read_suites(EvalOptions(suites=names, model="none", data="fixture"))


def test_the_command_line_scores_a_file_by_the_path_of_its_suite(tmp_path, own_suite):
    suite, records = own_suite
    responses = tmp_path / "r.jsonl"
    responses.write_text('{"id": "r2", "response": "2"}\n')
    out = invoke("score", str(responses), "--suite", str(suite), "--data", str(records), "--json")
    assert out.exit_code == 0, out.output
    assert json.loads(out.stdout)["results"][0]["scores"] == {"r0": 0.0, "r1": 0.0, "r2": 1.0}
