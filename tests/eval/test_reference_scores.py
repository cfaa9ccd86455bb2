"""MathVista and VSI-Bench against scores that the authors' code and the two harnesses gave on responses of
ours."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from vlrl.eval import as_suite, score_item, score_response
from vlrl.eval.scorers.vsi_bench import first_number, first_token, last_number, mean_relative_accuracy
from vlrl.plugins.registry import ConfigError

CASES = [
    json.loads(line) for line in (Path(__file__).parent / "reference_scores.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("suite", ["vsi_bench", "mathvista"])
def test_every_profile_gives_the_reference_score(suite):
    wrong, count = [], 0
    for case in CASES:
        if case["suite"] == suite:
            for profile, expected in case["scores"].items():
                count += 1
                score = score_item(suite, case["row"], case["response"], profile)
                if abs(score - expected) > 1e-11:
                    wrong.append((profile, case["row"], case["response"], expected, score))
    assert count > 900 and not wrong, wrong[:5]


def test_the_reference_cases_tell_the_profiles_apart():
    vsi = [case["scores"] for case in CASES if case["suite"] == "vsi_bench"]
    assert (
        sum(s["official"] != s["lmms_eval"] for s in vsi) > 20
        and sum(s["lmms_eval"] != s["vlmevalkit"] for s in vsi) > 20
    )


@pytest.mark.parametrize(
    ("gold", "response", "scores"),
    [
        ("3", "between 2 and 4", (0.0, 0.4, 0.4)),
        ("3", "2 or 3", (0.4, 0.4, 1.0)),
        ("2.5", "The distance is 2.5 meters.", (0.0, 1.0, 1.0)),
    ],
)
def test_vsi_bench_has_three_scorers(gold, response, scores):
    record = {
        "id": 1,
        "question_type": "object_abs_distance",
        "question": "How far?",
        "options": None,
        "ground_truth": gold,
    }
    assert tuple(
        score_item("vsi_bench", record, response, p) for p in ("official", "lmms_eval", "vlmevalkit")
    ) == pytest.approx(scores)


def test_vsi_bench_letter_in_parentheses():
    record = {
        "id": 1,
        "question_type": "route_planning",
        "question": "?",
        "options": ["A. x", "B. y"],
        "ground_truth": "B",
    }
    assert [
        score_item("vsi_bench", record, "(B)", p) for p in ("official", "lmms_eval", "vlmevalkit", "vlrl")
    ] == [0, 0, 1, 1]
    assert score_item("vsi_bench", record, "A or B", "vlrl") == 0


@pytest.mark.parametrize(
    ("gold", "predicted", "score"),
    [
        (10, 9.5, 1.0), (10, 9, 0.9), (10, 8.5, 0.8), (10, 8, 0.6), (10, 7.5, 0.6), (10, 7, 0.5), (10, 6.5,
            0.4), (10, 6, 0.3), (10, 5.5, 0.1),
        (10, 5, 0.1), (10, 4.9, 0.0), (1, 1.45, 0.2), (1, 1.05, 1.0), (4, 5, 0.6), (4, 3, 0.6), (4, 6, 0.1),
        (4, 2, 0.1),
    ],
)  # fmt: skip
def test_float_edges_of_the_mean_relative_accuracy(gold, predicted, score):
    assert mean_relative_accuracy(predicted, gold) == pytest.approx(score, abs=1e-12)


def test_mean_relative_accuracy_away_from_edges_is_the_formula():
    thresholds = [Fraction(50 + 5 * i, 100) for i in range(10)]
    for gold in range(1, 40):
        for predicted in range(0, 80):
            error = Fraction(abs(predicted - gold), gold)
            if all(error != 1 - t for t in thresholds):
                expected = sum(error < 1 - t for t in thresholds) / 10
                assert mean_relative_accuracy(predicted, gold) == pytest.approx(expected, abs=1e-12)


def test_nothing_and_gold_zero():
    assert mean_relative_accuracy(None, 3) == 0 and mean_relative_accuracy(0, 0) == 0
    assert mean_relative_accuracy(0, 0, guard=True) == 1 and mean_relative_accuracy(
        0.4, 0, guard=True
    ) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("text", "token"), [("3. x", "3"), (" 3", ""), ("3...", "3"), ("3\n", "3"), ("", "")]
)
def test_first_token(text, token):
    assert first_token(text) == token


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("twenty-one", 21, -1),
        ("two hundred and five", 205, 5),
        ("one apple, room 2", 1, 2),
        ("no idea", None, None),
        ("[7, 8]", 7, 7),
        ("-2.5 m", -2.5, -2.5),
    ],
)
def test_first_and_last_number(text, first, last):
    assert (first_number(text), last_number(text)) == (first, last)


def test_macro_score_of_vsi_bench():
    suite = as_suite("vsi_bench")
    wanted = {
        "object_counting": [1.0, 0.6],
        "object_abs_distance": [0.1, 1.0, 0.0],
        "object_rel_direction_easy": [1.0],
        "route_planning": [1.0, 0.0],
    }
    wanted |= {"object_rel_direction_medium": [0.0, 1.0], "object_rel_direction_hard": [0.0]}
    records = [{"question_type": name} for name, scores in wanted.items() for _ in scores]
    scored = [
        score_response("vsi_bench", {"question_type": "object_counting", "ground_truth": "1"}, "1")
        for _ in records
    ]
    scored = [
        replace(entry, score=score)
        for entry, score in zip(scored, [s for scores in wanted.values() for s in scores])
    ]
    figures = suite.profile("official").aggregate(records, scored)
    direction = (1.0 + 0.5 + 0.0) / 3
    assert figures["object_rel_direction"] == pytest.approx(direction)
    assert figures["overall"] == pytest.approx((0.8 + 1.1 / 3 + direction + 0.5) / 4)


def test_silence_scores_the_shortest_choice_in_mathvista():
    record = {
        "pid": "1",
        "question_type": "multi_choice",
        "answer_type": "text",
        "choices": ["Yes", "No"],
        "answer": "No",
        "precision": None,
        "query": "",
    }
    assert [
        score_item("mathvista", record, "", p)
        for p in ("official", "extraction_ignore_empty", "vlmevalkit", "vlrl")
    ] == [1, 0, 0, 0]


def test_a_row_may_name_its_stage():
    record = {
        "pid": "1",
        "question_type": "free_form",
        "answer_type": "integer",
        "choices": None,
        "answer": "14",
        "precision": None,
        "query": "",
    }
    assert score_item("mathvista", record, "14.9") == 1
    assert score_item("mathvista", {**record, "stage": "rule_end_to_end"}, "14.9") == 0
    with pytest.raises(ValueError, match="no stage 'x'"):
        score_item("mathvista", {**record, "stage": "x"}, "14")


def test_profiles_by_snapshot_and_stage():
    suite = as_suite("mathvista")
    assert suite.profile("lmms_eval@75571").name == "lmms_eval"
    with pytest.raises(ConfigError, match="not 'abc'"):
        suite.profile("lmms_eval@abc")
    with pytest.raises(ConfigError, match="Did you mean 'official'"):
        suite.profile("offical")
    with pytest.raises(ConfigError, match="has no stages"):
        as_suite("vsi_bench").profile("official:extraction")
    with pytest.raises(ConfigError, match="Did you mean 'mathvista'"):
        as_suite("mathvsta")


def test_broken_rows_are_refused_and_responses_are_not():
    with pytest.raises(ValueError, match="question_type 'x'"):
        score_item("vsi_bench", {"question_type": "x", "ground_truth": "1"}, "1")
    with pytest.raises(ValueError, match="must be text"):
        score_item("vsi_bench", {"question_type": "object_counting", "ground_truth": "1"}, 1)  # type: ignore[arg-type]
    record = {
        "id": 1,
        "question_type": "object_counting",
        "question": "?",
        "options": None,
        "ground_truth": "4",
    }
    for response in ("[" * 3000 + "]", "9" * 400, "\x00", "<answer>" * 500, "1e999"):
        for profile in ("official", "lmms_eval", "vlmevalkit"):
            assert score_item("vsi_bench", record, response, profile) == 0
