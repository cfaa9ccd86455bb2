"""Preference and step data as their authors publish them: every record becomes a row without a setting."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from vlrl_data.record_families import recognise

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Source

USER = {"role": "user", "content": "Name a fruit."}


def said(text):
    return {"role": "assistant", "content": text}


PREFERENCES = {
    "chosen_rejected": [
        {"prompt": "Name a fruit.", "chosen": "A fig.", "rejected": "A brick."},
        {"prompt": [USER], "chosen": [said("A fig.")], "rejected": [said("A brick.")]},
        {"chosen": [USER, said("A fig.")], "rejected": [USER, said("A brick.")]},
        {
            "prompt": "Name a fruit.",
            "chosen": [USER, said("A fig.")],
            "rejected": [USER, said("A brick.")],
            "messages": [USER, said("A fig.")],
            "score_chosen": 8.5,
            "score_rejected": 2.0,
        },
    ],
    "ultrafeedback": [
        {
            "source": "evol_instruct",
            "instruction": "Name a fruit.",
            "models": ["a", "b", "c"],
            "completions": [
                {"response": "A brick.", "overall_score": 1.0, "fine-grained_score": 1.5, "model": "a"},
                {"response": "A fig.", "overall_score": 8.5, "model": "b"},
                {"response": "An apple, or a stone.", "overall_score": 5.0, "model": "c"},
            ],
        }
    ],
    "helpsteer3": [
        {
            "domain": "general",
            "language": "english",
            "context": [USER],
            "response1": "A brick.",
            "response2": "A fig.",
            "overall_preference": 3,
            "individual_preference": [
                {"score": 3, "reasoning": "no fruit", "feedback1": "A brick is none.", "feedback2": "Right."}
            ],
        }
    ],
}


def rows_of(folder, records, **options):
    file = folder / "records.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    source = build(Source, {"name": "files", "path": str(file), **options})
    return source, list(source())


@pytest.mark.parametrize("family", PREFERENCES)
def test_preference_data(family, tmp_path):
    _, rows = rows_of(tmp_path, PREFERENCES[family])
    assert recognise(PREFERENCES[family][0])[0].name == family
    assert len(rows) == len(PREFERENCES[family])
    for row in rows:
        assert row.question == "Name a fruit." and row.target == "A fig." and row.task == "preference"
        assert row.meta["responses"][0] == "A fig." and row.meta["responses"][-1] == "A brick."
        assert row.meta["ratings"] == sorted(row.meta["ratings"], reverse=True)
        assert row.meta["ratings"][0] > row.meta["ratings"][-1]
    if family == "chosen_rejected":
        assert rows[3].meta["ratings"] == [8.5, 2.0]
    if family == "helpsteer3":
        assert rows[0].meta["ratings"] == [1.5, -1.5]


def test_pictures_with_preferences(tmp_path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    text = {"question": "What is it?", "chosen": "It is black.", "rejected": "A red cat."}
    about = {"origin_dataset": "COCO", "origin_split": "{}", "image_path": "x"}
    records = [{"ds_name": "RLHF-V", "image": "a.png", "text": json.dumps(text), "idx": 0, **about}]
    _, (row,) = rows_of(tmp_path, records)
    assert recognise(records[0])[0].name == "rlhf_v" and row.images[0].load().size == (8, 8)
    assert row.meta["responses"] == ["It is black.", "A red cat."] and "What is it?" in row.question
    _, (row,) = rows_of(tmp_path, [{"ds_name": "RLAIF-V", "image": "a.png", **text, "idx": "0", **about}])
    assert row.images and row.meta["responses"] == ["It is black.", "A red cat."]


def test_steps(tmp_path):
    prm800k = {
        "labeler": "x",
        "timestamp": "2022-07-17",
        "generation": 9,
        "is_quality_control_question": False,
        "is_initial_screening_question": False,
        "question": {
            "problem": "1 + 1 + 1?",
            "ground_truth_solution": "3",
            "ground_truth_answer": "3",
            "pre_generated_steps": ["1 + 1 = 2", "so", "4"],
            "pre_generated_answer": "4",
            "pre_generated_verifier_score": 0.01,
        },
        "label": {
            "steps": [
                {
                    "completions": [{"text": "1 + 1 = 2", "rating": 1, "flagged": None}],
                    "human_completion": None,
                    "chosen_completion": 0,
                },
                {
                    "completions": [{"text": "so", "rating": 0, "flagged": None}],
                    "human_completion": None,
                    "chosen_completion": 0,
                },
                {
                    "completions": [{"text": "4", "rating": -1, "flagged": None}],
                    "human_completion": None,
                    "chosen_completion": None,
                },
            ],
            "total_time": 278270,
            "finish_reason": "found_error",
        },
    }
    _, (row,) = rows_of(tmp_path, [prm800k])
    assert row.question == "1 + 1 + 1?" and row.answer == "3" and row.task == "steps"
    assert row.meta["steps"] == ["1 + 1 = 2", "so", "4"] and row.meta["step_labels"] == [1.0, 1.0, 0.0]
    shepherd = {
        "input": "How many are 2 and 2? Step 1: It is 2 + 2 = 4. ки\nStep 2: The answer is: 5 ки",
        "label": "How many are 2 and 2? Step 1: It is 2 + 2 = 4. +\nStep 2: The answer is: 5 -",
        "task": "GSM8K",
    }
    _, (row,) = rows_of(tmp_path, [shepherd], answers="optional")
    assert recognise(shepherd)[0].name == "math_shepherd" and row.question == "How many are 2 and 2?"
    assert row.meta["steps"] == ["Step 1: It is 2 + 2 = 4.", "Step 2: The answer is: 5"]
    assert row.meta["step_labels"] == [1.0, 0.0] and row.answer is None
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "b.png")
    scored = [
        {"step": "Look.", "score": 1.0, "num_mc_correct": 16, "num_mc_total": 16},
        {"step": "It is red.", "score": 0.25, "num_mc_correct": 4, "num_mc_total": 16},
    ]
    visual = {
        "image": "b.png",
        "question": "<image>\nWhich?",
        "answer": "blue",
        "response": "...",
        "steps_with_score": scored,
        "num_mc_sequences": 16,
    }
    _, (row,) = rows_of(tmp_path, [visual])
    assert row.images and row.answer == "blue" and row.meta["step_labels"] == [1.0, 0.25]


def test_valued_processes(tmp_path):
    """ViLReward-73K: a process is one step, whose label is what the tree search found it to be worth."""
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "c.png")
    process = "Step 1: The base is 4.\nStep 2: So the area is 6."
    valued = {"index": 7, "image_path": "c.png", "question": "Area?", "process": process, "value": 0.25}
    _, (row,) = rows_of(tmp_path, [valued], answers="optional")
    assert recognise(valued)[0].name == "vilreward" and row.images[0].load().size == (8, 8)
    assert row.question == "Area?" and row.task == "steps" and row.answer is None
    assert row.meta["steps"] == [process] and row.meta["step_labels"] == [0.25]


@pytest.mark.parametrize(
    ("record", "match"),
    [
        ({"question": "q", "process": "p", "value": 1.5}, "no probability"),
        ({"question": "q", "process": "p", "value": "good"}, "`value` is 'good'"),
        ({"context": [USER], "response1": "a", "response2": "b", "overall_preference": 0}, "equally good"),
        ({"prompt": "q", "chosen": 3, "rejected": "b"}, "a response is int"),
        ({"instruction": "q", "completions": [{"response": "one", "overall_score": 1.0}]}, "fewer than two"),
        ({"input": "q Step 1: x ки", "label": "q Step 1: x ?", "task": "GSM8K"}, "`label` has"),
        ({"chosen": "no prompt", "rejected": "anywhere"}, "no prompt, question or instruction"),
    ],
)
def test_a_broken_record_says_what_is_wrong(record, match, tmp_path):
    with pytest.raises(ConfigError, match=match):
        rows_of(tmp_path, [record])
