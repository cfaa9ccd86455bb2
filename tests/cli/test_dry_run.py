"""`vlrl train ... --dry-run`: what a run would fetch and read, and one line for what does not exist."""

import json

import pytest

from vlrl.config import load
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.dry_run import dry_run

NAMES = ["base/rl", "models/qwen2_5_1_5b", "methods/grpo"]
WORDS = ["rewards={math: {name: math, tasks: [math]}}", "output=runs/none"]


def source(path, **fields):
    return (
        f"data.train={json.dumps({'mine': {'name': 'files', 'path': str(path), 'task': 'math', **fields}})}"
    )


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1+1?", "final": "2", "level": 1}\n')
    return path


def test_it_names_model_data_and_steps_and_makes_nothing(rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    words = [
        *WORDS,
        source(rows, fields={"final": "answer"}),
        "data.heldout={gsm8k: {name: hub, path: openai/gsm8k}}",
    ]
    lines = dry_run(load(NAMES, words))
    assert lines[0] == "model   Qwen/Qwen2.5-1.5B-Instruct: fetched from the hub (size unknown)"
    assert f"data    train.mine: {rows}: 1 records, read as qa" in lines
    fetched = "fetched from the hub unless its cache has it (size unknown)"
    assert f"data    heldout.gsm8k: openai/gsm8k@train: {fetched}" in lines
    assert "phase   main: 100 steps of 8 prompts x 8, 1 updates" in lines
    assert lines[-1] == "output  runs/none" and not (tmp_path / "runs").exists()


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"^data\.train\.mine: path: nothing at '.*/gone\.jsonl'"):
        dry_run(load(NAMES, [*WORDS, source(tmp_path / "gone.jsonl")]))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"fields": {"final_answer": "answer"}},
            "no column 'final_answer', which `fields` renames; it has question, final, level",
        ),
        ({"format": "easyr1"}, "the field `answer` is missing"),
        ({}, "no record family has the fields final, level, question"),
    ],
)  # fmt: skip
def test_a_column_that_is_not_there_is_one_line(rows, fields, said):
    with pytest.raises(ConfigError) as raised:
        dry_run(load(NAMES, [*WORDS, source(rows, **fields)]))
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_a_picture_that_is_not_there_is_one_line(rows):
    rows.write_text('{"question": "How many?", "answer": "2", "image": "gone.png"}\n')
    with pytest.raises(ConfigError, match=r"^data\.train\.mine: .*rows\.jsonl:1: .*gone\.png"):
        dry_run(load(["base/rl", "models/qwen2_5_vl_3b", "methods/grpo"], [*WORDS, source(rows)]))


@pytest.mark.parametrize("name", ["dapo", "luffy"])
def test_the_command_lists_the_flagships_of_the_hub(vlrl, name):
    code, said = vlrl("train", f"experiments/{name}", "--dry-run")
    assert code == 0 and "fetched from the hub unless its cache has it" in said
