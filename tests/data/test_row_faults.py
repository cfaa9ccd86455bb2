"""One bad row never ends a run: every fault of a row or a record becomes a reason that names it, and the good
rows are used."""

import json
import re

import numpy as np
import pytest
from PIL import Image
from row_faults_kit import (
    GOOD,
    own_cache,  # noqa: F401 - every test has a cache of its own
    read,
    reason_of,
)
from typer.testing import CliRunner
from vlrl_data.cli import app
from vlrl_data.media.parse import MediaSettings, parse_image
from vlrl_data.validation import ANSWER_FORMS, validate_row

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Source
from vlrl.types import Row, RowError

FIELDS = [
    ({"choices": 5}, "its choices is int, not a list of texts"),
    ({"choices": [1, 2]}, r"its choices\[0\] is int"),
    ({"choices": "A or B"}, "its options are one text, 'A or B'; give a list"),
    ({"question": 5}, "its question is int, not text"),
    ({"question": ["How", "many"]}, "its question is list, not text"),
    ({"question": {"text": "How many?"}}, "its question is dict, not text"),
    ({"question": ""}, "no question"),
    ({"question": " \u200b\n\ufeff"}, "no question"),
    ({"question": "<image>"}, "no question"),
    ({"question": "<image> How many?"}, "1 <image> markers for 0 such media"),
    ({"question": "How \ud800 many?"}, r"its question has a lone surrogate \(U\+D800 at character 5\)"),
    ({"answer": "\udfff"}, "its answer has a lone surrogate"),
    ({"answer": {"a": ["x", "\ud83d"]}}, r"its answer\.a\[1\] has a lone surrogate"),
    ({"meta": {"\udc00": 1}}, "its meta has a lone surrogate"),
    ({"target": "\ud801"}, "its target has a lone surrogate"),
    ({"id": "\ud801"}, "its id has a lone surrogate"),
    ({"task": "\ud801"}, "its task has a lone surrogate"),
    ({"system": "\ud801"}, "its system has a lone surrogate"),
    ({"choices": ["a", "\ud801"]}, r"its choices\[1\] has a lone surrogate"),
    (
        {"question": "", "messages": [{"role": "user", "content": "\ud801"}]},
        r"its messages\[0\]\.content has a lone surrogate",
    ),
    ({"question": "long " * 300_000}, "its question has 1500000 characters, over the limit of 1000000"),
    ({"answer": "long " * 300_000}, "its answer has 1500000 characters"),
    (
        {"question": "", "messages": [{"role": "user", "content": ["How many?"]}]},
        r"its messages\[0\]\.content\[0\] is str",
    ),
    ({"question": "", "messages": [{"role": "user", "content": 5}]}, r"its messages\[0\]\.content is int"),
    ({"question": "", "messages": [{"role": "user"}]}, r"its messages\[0\] has no content"),
    ({"question": "", "messages": [{"role": 1, "content": "?"}]}, r"its messages\[0\]\.role is int"),
    ({"question": "", "messages": ["How many?"]}, r"its messages\[0\] is str"),
    ({"question": "", "messages": "How many?"}, "its messages is str"),
    ({"question": "", "messages": [{"role": "user", "content": ""}]}, "no question"),
    (
        {"question": "", "messages": [{"role": "user", "content": [{"type": "sound"}]}]},
        r"type is 'sound'. Known: text, image, video",
    ),
    (
        {
            "question": "",
            "messages": [{"role": "assistant", "content": "Hello."}, {"role": "tool", "content": "7"}],
        },
        "its messages have no user turn",
    ),
    ({"question": "Which?", "choices": ["<image>", "b"]}, "1 <image> markers for 0 such media"),
    (
        {
            "question": "",
            "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<image>"}],
        },
        "1 <image> markers for 0",
    ),
    (
        {
            "question": "",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}],
        },
        "1 <image> markers for 0",
    ),
    ({"system": ["Be brief."]}, "its system is list, not text"),
    ({"target": 5}, "its target is int, not text"),
    ({"task": 5}, "its task is int, not text"),
    ({"task": ["counting"]}, "its task is list, not text"),
    ({"id": ""}, "its id is empty"),
    ({"rewards": 5}, r"its rewards\[0\] is int"),
    ({"meta": "level 3"}, "its meta is str, not a mapping"),
    ({"images": 5}, "is not an image"),
    ({"images": [["a.png"]]}, "is not an image"),
    ({"videos": 5}, "is not a video"),
    ({"videos": [{"path": "a.mp4", "start": "soon"}]}, "give seconds"),
    ({"answer": ""}, "no answer"),
    ({"answer": " \u200b"}, "no answer"),
    ({"answer": {}}, "no answer"),
    ({"answer": [1, float("inf")]}, r"its answer\[1\] is inf"),
    ({"answer": 10**400}, "its answer is an integer of 1329 bits"),
    ({"answer": json.loads("[" * 80 + "]" * 80)}, "its answer is nested deeper than 64 levels"),
]


@pytest.mark.parametrize(("changes", "reason"), FIELDS, ids=range(len(FIELDS)))
def test_wrong_fields_have_a_reason(tmp_path, changes, reason):
    found = reason_of(tmp_path, GOOD | {"id": "bad"} | changes)
    assert re.search(reason, found), found


ANSWERS = [
    ("grounding", 7),
    ("grounding", "the cup"),
    ("grounding", [1, 2, 3]),
    ("grounding", {"label": "cup"}),
    ("detection", 7),
    ("detection", "a cup"),
    ("counting", [3]),
    ("counting", {"count": 3}),
    ("counting", "blue"),
    ("counting", True),
    ("jigsaw", [1, 1]),
    ("jigsaw", "left"),
    ("jigsaw", 5),
    ("video_counting", "many"),
    ("anomaly", [[1, 2, 3]]),
    ("anomaly", 4),
    ("classification", {"label": "cup"}),
    ("classification", 0.5),
    ("multiple_choice", [1, 2]),
    ("choice", {"a": 1}),
    ("choice", 0.5),
    ("yes_no", "perhaps"),
    ("yes_no", 1),
]


@pytest.mark.parametrize("stated", ["row", "source"])
@pytest.mark.parametrize(("task", "answer"), ANSWERS, ids=range(len(ANSWERS)))
def test_an_answer_must_fit_its_task(tmp_path, task, answer, stated):
    (tmp_path / "rows.jsonl").write_text(
        json.dumps(GOOD | {"answer": answer} | ({"task": task} if stated == "row" else {}))
    )
    with pytest.raises(
        ConfigError,
        match=f"its answer is .*; task '{task}' needs {ANSWER_FORMS[task][0][:9]}".replace("[", r"\["),
    ):
        read(tmp_path / "rows.jsonl", max_bad=0.0, **({"task": task} if stated == "source" else {}))


FITTING = [
    ("grounding", [1, 2, 3, 4]),
    ("grounding", "[1, 2, 3, 4]"),
    ("detection", []),
    ("detection", "None"),
    ("detection", [{"bbox": [1, 2, 3, 4], "label": "cup"}]),
    ("counting", 3),
    ("counting", "3"),
    ("counting", "twenty-one"),
    ("jigsaw", [2, 1]),
    ("jigsaw", "2 1"),
    ("anomaly", [[0.5, 1.5]]),
    ("classification", "cup"),
    ("classification", ["cup", "mug"]),
    ("multiple_choice", "B"),
    ("choice", "B"),
    ("yes_no", True),
    ("yes_no", "No"),
    ("anything", {"free": ["form", 1, None]}),
]


@pytest.mark.parametrize(("task", "answer"), FITTING, ids=range(len(FITTING)))
def test_fitting_answers_pass(task, answer):
    assert validate_row(Row("a", "?", answer, task=task)) is None  # and raises nothing


PAID_BY_ENVIRONMENT = {"gen_feelings"}  # rows of a conversation, which has no gold answer


def test_rows_of_every_task_pass_their_own_check():
    from vlrl.plugins.registry import names

    for name in names(Source):
        if name.startswith(("lab_", "gen_")):
            rows = build(Source, name)()
            answers = "optional" if name in PAID_BY_ENVIRONMENT else "required"
            assert [validate_row(rows[index], answers) for index in range(5)] == [None] * 5, name


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"problem": ["a", "b"], "answer": "x"}, "its question is list"),
        (
            {"prompt": [{"role": "user", "content": ["a"]}], "reward_model": {"ground_truth": "x"}},
            "list that holds str",
        ),
        ({"prompt": [{"role": "user", "content": 5}], "solution": "x"}, "content of message 0 is int"),
        (
            {"messages": [{"role": "user", "content": {"a": 1}}, {"role": "assistant", "content": "x"}]},
            "content of message 0 is dict",
        ),
        (
            {"conversations": [{"from": "human", "value": 3}, {"from": "gpt", "value": "x"}]},
            "content of message 0 is int",
        ),
        ({"message": "[" * 5000 + "]" * 5000, "answer": "x"}, "nested too deeply"),
        ({"message": '"hello"', "answer": "x"}, "its messages are str"),
        ({"problem": "?", "answer": "[[" + "9" * 5000 + ",1,2,3]]"}, None),
        ({"problem": "?", "answer": "[" + "9" * 5000 + ",1,2,3]"}, None),
        ({"problem": "?", "answer": "[{" * 3000}, None),
    ],
    ids=range(10),
)
def test_families_name_the_fault(tmp_path, record, reason):
    (tmp_path / "rows.jsonl").write_text(json.dumps(record))
    rows = read(tmp_path / "rows.jsonl")
    if reason is None:
        assert len(rows) == 1
    else:
        assert reason in rows.quarantine.rows[0].reason


def test_task_and_target_of_a_record_are_used_and_dropped_columns_told(tmp_path):
    record = {
        "problem": "?",
        "answer": "x",
        "task": "mine",
        "target": "<answer>x</answer>",
        "images": [],
        "label": 3,
    }
    swift = {
        "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "x"}],
        "solution": "x",
        "answer": "another",  # which the solution beside it replaces
        "task": "t",
        "target": "y",
    }
    for name, value in (("a", record), ("b", swift)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(value))
    rows = read(tmp_path / "a.jsonl")
    assert (rows[0].task, rows[0].target, rows[0].meta) == (
        "mine",
        "<answer>x</answer>",
        {"label": 3},
    ) and rows.dropped_columns() == {}
    rows = read(tmp_path / "b.jsonl")
    assert (rows[0].task, rows[0].target) == ("t", "y") and rows.dropped_columns() == {"answer": 1}
    result = CliRunner().invoke(app, ["check", str(tmp_path / "b.jsonl"), "--json"])
    assert json.loads(result.stdout)["dropped columns"] == {"answer": 1}
    (tmp_path / "c.jsonl").write_text(json.dumps({"problem": "?", "answer": "x", "target": 5}))
    assert "its target is int, not text" in read(tmp_path / "c.jsonl").quarantine.rows[0].reason


@pytest.mark.parametrize(
    "changes", [{"choices": 5}, {"question": ["?"]}, {"question": "\ud800"}, {"answer": "x" * 2_000_000}]
)
def test_check_preview_and_training_use_the_same_check(tmp_path, changes):
    """The plain check of a Row, which training calls, gives the reason that the commands give."""
    (tmp_path / "rows.jsonl").write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"id": "bad"} | changes))
    result = CliRunner().invoke(app, ["check", str(tmp_path / "rows.jsonl"), "--json"])
    assert result.exit_code == 1
    reason = next(iter(json.loads(result.stdout)["rows"].values()))
    with pytest.raises(RowError) as error:
        validate_row(Row(**(GOOD | {"id": "bad"} | changes)))
    assert str(error.value) == reason
    assert (
        CliRunner()
        .invoke(app, ["preview", str(tmp_path / "rows.jsonl"), "-o", str(tmp_path / "p.html")])
        .exit_code
        == 0
    )
    assert "1 of 1 rows" in (tmp_path / "p.html").read_text()


def test_check_looks_at_rows_that_code_makes(tmp_path):
    from vlrl.plugins.registry import load_plugin_file

    (tmp_path / "broken_rows.py").write_text(
        "from dataclasses import dataclass\n"
        "from vlrl.plugins.registry import register\nfrom vlrl.plugins.stages import Source\n"
        "from vlrl.types import Row\n"
        "@register('broken_rows')\n@dataclass(frozen=True, kw_only=True)\nclass Broken(Source):\n"
        "    def __call__(self):\n        return [Row('a', '?', 1), Row('b', ['?'], 1), Row('c', '', 1)]\n"
    )
    load_plugin_file(tmp_path / "broken_rows.py")
    result = CliRunner().invoke(app, ["check", "broken_rows", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "usable": 1,
        "unusable": 2,
        "reasons": {"its question is list, not text": 1, "it has no question": 1},
        "rows": {"broken_rows#1": "its question is list, not text", "broken_rows#2": "it has no question"},
    }


def test_numpy_numbers_and_media_in_meta_pass():
    meta = {"n": np.float32(1.5), "images": (parse_image(Image.new("RGB", (9, 9)), MediaSettings()),)}
    assert validate_row(Row("a", "?", np.int64(3), task="anything", meta=meta)) is None  # and raises nothing


@pytest.mark.parametrize("first", ['{"qeustion": "?"}', "5", "[1]", '{"question": "?", "answer": }', "null"])
def test_an_unknown_first_record_does_not_refuse_the_file(tmp_path, first):
    (tmp_path / "rows.jsonl").write_text(first + "\n" + json.dumps(GOOD))
    rows = read(tmp_path / "rows.jsonl")
    assert [row.id for row in rows] == ["good"] and len(rows.quarantine.rows) == 1


def test_reasons_are_short(tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"id": "b", "images": ["x" * 100_000 + "."]})
    )
    assert len(read(tmp_path / "rows.jsonl").quarantine.rows[0].reason) < 1100
    (tmp_path / "rows.jsonl").write_text(json.dumps({"a" * 100_000: 1}))
    with pytest.raises(ConfigError, match="no record family") as error:
        read(tmp_path / "rows.jsonl")
    assert len(str(error.value)) < 1000
