"""Summaries: floors, audits, k samples, protocols, response files, rescoring."""

from __future__ import annotations

import json

import pytest

from vlrl.eval.floors import consistency, disagreement, floors, random_floor
from vlrl.eval.grade import Sample, answer_after_thinking, grade
from vlrl.eval.records import SuiteData, read_jsonl, read_records
from vlrl.eval.runner import rescore
from vlrl.eval.suite import load_suite
from vlrl.eval.summary import calibration, k_samples, responses_from_file, summarise
from vlrl.plugins.registry import ConfigError


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>A</think>B", "B"), ("<think>A</think> so <answer>C</answer>", "C"),
        ("<answer>A</answer><answer>B</answer>", "B"),
        ("<think>never ends B", ""), ("just B", "just B"), ("<think><answer>A</answer></think>", ""), ("",
            ""),
    ],
)  # fmt: skip
def test_what_a_thinker_commits_to(text, answer):
    assert answer_after_thinking(text) == answer


def test_the_thinking_protocol_scores_what_is_committed(fixture_data):
    data = fixture_data("vsi_bench")
    responses = {
        name: [Sample(f"<think>hm, 7 or A</think><answer>{record['ground_truth']}</answer>")]
        for name, record in zip(data.ids, data.records)
    }
    assert grade(data, responses, protocol="thinking").figures["overall"] == 1
    assert grade(data, responses, protocol="direct").figures["overall"] == 0


def test_missing_rows_are_wrong_and_shown(fixture_data):
    data = fixture_data("mathvista")
    graded = grade(data, {"1": [Sample("2")], "zzz": [Sample("x")]})
    assert graded.figures["overall"] == pytest.approx(1 / 6)
    assert (graded.audit["failed"], graded.audit["unknown"], graded.audit["failures"]) == (
        5 / 6,
        1,
        {"missing": 5},
    )
    with pytest.raises(ConfigError, match="none of the 1 responses"):
        grade(data, {"zzz": [Sample("x")]})


def test_a_row_with_a_broken_gold_is_wrong_and_shown(fixture_data):
    whole = fixture_data("vsi_bench")
    data = SuiteData(
        whole.suite,
        [{**record, "ground_truth": "n/a"} if record["id"] == 0 else record for record in whole.records],
        "folder",
        whole.folder,
    )
    graded = grade(data, {name: [Sample("4")] for name in data.ids})
    assert (
        graded.audit["unscored"] == 1 and "not scored" in graded.scored[0][0].reason and graded.scores[0] == 0
    )
    summary = summarise(graded)
    assert summary["gold_self_test"]["unreachable"] == ["0"] and any(
        "could not be scored" in text for text in summary["warnings"]
    )


def test_audit_rates(fixture_data):
    data = fixture_data("vsi_bench")
    texts = ["I'm sorry, I can't help with that", "B", "4 chairs", ""] + ["A"] * 6
    graded = grade(
        data,
        {
            name: [Sample(text, (), "length" if text == "B" else "stop")]
            for name, text in zip(data.ids, texts)
        },
    )
    assert (graded.audit["refused"], graded.audit["truncated"]) == (0.1, 0.1)
    assert graded.audit["parse_failures"] == pytest.approx(
        5 / 10
    )  # the refusal, "B", "" and two letters where a number is due


def test_floors_of_a_suite(fixture_data):
    data = fixture_data("mathvista")
    below = floors(data, data.suite.profile("official"))
    assert below["blank"] == pytest.approx(1 / 6) and below["constant"] >= below["blank"]
    assert below["random"] == pytest.approx((1 / 4 + 1 / 2) / 6)
    assert random_floor(data, data.suite.profile("vlrl")) == pytest.approx((1 / 4 + 1 / 2) / 6)


def test_k_samples(fixture_data):
    data = fixture_data("mathvista")
    right = {"1": "2", "2": "B", "3": "1.2", "4": "1.45", "5": "[2007, 2008]", "6": "B"}
    texts = {name: [Sample(right[name]), Sample(right[name]), Sample("999"), Sample("")] for name in data.ids}
    numbers = k_samples(grade(data, texts, "vlrl"))
    assert numbers["avg@4"] == pytest.approx(0.5) == numbers["pass@1"]
    assert numbers["pass@2"] == pytest.approx(1 - 1 / 6) and numbers["pass@4"] == 1
    assert numbers["maj@4"] == 1.0  # two votes against one, and one that says nothing
    assert k_samples(grade(data, {name: [Sample("x")] for name in data.ids})) == {}


def test_calibration_of_reported_confidence(fixture_data):
    data = fixture_data("vsi_bench")
    graded = grade(
        data,
        {
            name: [Sample(str(record["ground_truth"]), confidence=0.9)]
            for name, record in zip(data.ids, data.records)
        },
    )
    numbers = calibration(graded)
    assert (
        numbers["ece"] == pytest.approx(0.1)
        and numbers["brier"] == pytest.approx(0.01)
        and numbers["aurc"] == 0
    )


def test_disagreement_between_reward_and_benchmark(fixture_data):
    data = fixture_data("vsi_bench")
    texts = {
        name: [Sample(f"({record['ground_truth']})" if record["options"] else record["ground_truth"])]
        for name, record in zip(data.ids, data.records)
    }
    found = disagreement(grade(data, texts), grade(data, texts, "vlrl"))
    assert (
        found["only_vlrl"] == ["2", "3", "4", "5", "8", "9"]
        and found["only_official"] == []
        and found["share"] == 0.6
    )


def test_option_consistency(fixture_data):
    data = fixture_data("vsi_bench")
    plain = grade(
        data, {name: [Sample(record["ground_truth"])] for name, record in zip(data.ids, data.records)}
    )
    stubborn = grade(data, {name: [Sample("A")] for name in data.ids})
    assert consistency(plain, [plain]) == 1.0 and consistency(plain, [stubborn]) == pytest.approx(2 / 6)
    assert consistency(plain, []) is None


def test_a_response_file(tmp_path, fixture_data):
    file = tmp_path / "responses.jsonl"
    file.write_text('{"id": 1, "response": "2"}\n\n{"id": "1", "response": null}\n')
    assert [sample.text for sample in responses_from_file(file)["1"]] == ["2", ""]
    file.write_text('{"id": 1}\n')
    with pytest.raises(ConfigError, match=r"responses\.jsonl:1: a response has `id` and `response`, got id"):
        responses_from_file(file)
    file.write_text('{"id": 1, "response": "x"}\nnonsense\n')
    with pytest.raises(ConfigError, match="jsonl:2: not JSON"):
        list(read_jsonl(file))


def test_rescoring_a_file_by_any_profile(tmp_path, fixture_data):
    data = fixture_data("vsi_bench")
    source = tmp_path / "rows.jsonl"
    source.write_text(
        "\n".join(json.dumps({k: v for k, v in record.items() if k != "_folder"}) for record in data.records)
    )
    file = tmp_path / "responses.jsonl"
    file.write_text(
        "\n".join(
            json.dumps({"id": record["id"], "response": f"It is {record['ground_truth']}"})
            for record in data.records
        )
    )
    results = {
        part["profile"]: part
        for part in rescore(file, ["official", "lmms_eval", "vlmevalkit"], ["vsi_bench"], str(source))
    }
    assert results["official"]["scores"] == dict.fromkeys(data.ids, 0.0)
    assert results["lmms_eval"]["scores"]["0"] == 1.0 and results["lmms_eval"]["scores"]["2"] == 0.0
    assert results["vlmevalkit"]["overall"] == pytest.approx(1.0)
    assert results["official"]["items"][0]["extracted"] is None
    with pytest.raises(ConfigError, match="name it with --suite"):
        rescore(file, [], [])
    with pytest.raises(ConfigError, match="no such run or response file"):
        rescore(tmp_path / "gone.jsonl", [], ["vsi_bench"])


def test_summary_warns(fixture_data):
    data = fixture_data("mathvista")
    graded = grade(data, {name: [Sample("")] for name in data.ids}, "lmms_eval")
    warnings = " ".join(summarise(graded)["warnings"])
    assert (
        "an empty response scores 16.7%" in warnings
        and "2 gold answers cannot be reached" in warnings
        and "not the benchmark" in warnings
    )


def test_data_folders_laid_out_as_on_the_hub(tmp_path, fixture_data):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    suite = load_suite("vsi_bench")
    plain = [
        {k: v for k, v in record.items() if k != "_folder"} for record in fixture_data("vsi_bench").records
    ]
    (tmp_path / "data").mkdir()
    pq.write_table(pa.Table.from_pylist(plain[:6]), tmp_path / "data" / "test-00000-of-00002.parquet")
    pq.write_table(pa.Table.from_pylist(plain[6:]), tmp_path / "data" / "test-00001-of-00002.parquet")
    data = read_records(suite, str(tmp_path))
    assert (
        data.ids == [str(i) for i in range(10)]
        and data.records[2]["options"][0] == "A. lamp"
        and data.origin == "folder"
    )
    assert len(read_records(suite, str(tmp_path), limit=3)) == 3
    with pytest.raises(ConfigError, match="no such folder"):
        read_records(suite, str(tmp_path / "gone"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no data in"):
        read_records(suite, str(tmp_path / "empty"))
    double = tmp_path / "double.jsonl"
    double.write_text("\n".join(json.dumps(plain[0]) for _ in range(2)))
    with pytest.raises(ConfigError, match="two rows have the id '0'"):
        read_records(suite, str(double)).ids  # noqa: B018
