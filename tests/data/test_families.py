"""Every record family reads its fixture, and survives the conversion to our format and back."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from vlrl_data.record_families import by_name, recognise
from vlrl_data.record_families.answers import literal, parse_answer, strip_tags
from vlrl_data.tools.convert import pack, record_of, write

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Source
from vlrl.types import Row

FIXTURES = Path(__file__).parents[2] / "data" / "fixtures"
SIZE = (84, 56)
BOX = [10, 8, 40, 30]


def read(name, kind="files", **options):
    source = build(Source, {"name": kind, "path": str(FIXTURES / name), "max_bad": 0.0, **options})
    return source, source()


# file: (family, [(id, question, answer, sizes of pictures, frames of videos, task)])
EXPECTED = {
    "vlm_r1_rec.jsonl": (
        "llava",
        [
            (
                "vlm_r1_rec-1",
                "<image>Please provide the bounding box of the red square.",
                BOX,
                [SIZE],
                [],
                "grounding",
            )
        ],
    ),
    "vlm_r1_ovd.jsonl": (
        "llava",
        [
            (
                "vlm_r1_ovd-0",
                "<image>Detect all green squares.",
                [{"bbox_2d": BOX, "label": "green"}, {"bbox_2d": [50, 20, 80, 50], "label": "green"}],
                [SIZE],
                [],
                "od_ap",
            ),
            ("vlm_r1_ovd-1", "<image>Detect all red squares.", "None", [SIZE], [], "od_ap"),
        ],
    ),
    "llava.jsonl": (
        "llava",
        [
            ("two", "<image><image>How many squares in both?", "3", [SIZE, SIZE], [], "default"),
            ("text", "How many wheels has a car?", 4, [], [], "default"),
        ],
    ),
    "visual_rft_lisa.json": (
        "lisa",
        [("lisa_0", "<image> Where is it?", [10.0, 7.95, 39.98, 29.96], [SIZE], [], "grounding")],
    ),
    "video_r1.json": (
        "video_r1",
        [
            ("video_r1-1", "Which way?", "B", [], [4], "multiple_choice"),
            ("video_r1-2", "How many?", "2", [SIZE], [], "numerical"),
        ],
    ),
    "video_r1_cot.json": ("video_r1", [("video_r1-1", "Which way?", "B", [], [4], "multiple_choice")]),
    "visual_rft.json": (
        "visual_rft",
        [
            (
                "visual_rft-0",
                "Detect all red squares.",
                [{"Position": [0.84, 0.45, 3.36, 1.68], "Confidence": 1}],
                [SIZE],
                [],
                "detection",
            )
        ],
    ),
    "visual_arft.json": ("arft", [("visual_arft-0", "Which colour?", "red", [SIZE], [], "default")]),
    "r1_v.parquet": ("r1_v", [("r1_v-0", "How many?", "1", [SIZE], [], "default")]),
    "easyr1.jsonl": (
        "easyr1",
        [
            ("easyr1-0", "<image><image>Same colour?", "no", [SIZE, SIZE], [], "default"),
            ("easyr1-1", "<video>Which way?", "right", [], [4], "default"),
        ],
    ),
    "verl.parquet": ("verl", [("colours-train-0", "<image>Which colour?", "blue", [SIZE], [], "colour")]),
    "trl.jsonl": ("trl", [("trl-0", "Which colour?", "blue", [SIZE], [], "default")]),
    "mm_eureka.jsonl": ("mm_eureka", [("mm_eureka-0", "<image>How many?", "1", [SIZE], [], "default")]),
    "ms_swift.jsonl": (
        "ms_swift",
        [
            ("ms_swift-0", "<image>Find red square.", BOX, [SIZE], [], "default"),
            ("ms_swift-1", "", "right", [], [4], "default"),
        ],
    ),
    "vlrl.jsonl": (
        "vlrl",
        [
            ("a", "Which colour?", "red", [SIZE], [], "colour"),
            ("b", "<video>Which way?", "right", [], [4], "default"),
        ],
    ),
    "qa.csv": (
        "qa",
        [
            ("qa-1", "Which colour?", "blue", [SIZE], [], "default"),
            ("qa-2", "What is 2+2?", "4", [], [], "default"),
        ],
    ),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VLRL_CACHE", str(tmp_path / "cache"))


def seen(row: Row):
    return (
        row.id,
        row.question,
        row.answer,
        [m.load().size for m in row.images],
        [len(m.load()) for m in row.videos],
        row.task,
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_fixture(name):
    family, expected = EXPECTED[name]
    source, rows = read(name)
    chosen, why = source.family_of(rows.parts[0].records)
    assert chosen.name == family and why
    assert [seen(row) for row in rows] == expected


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("writer", [write, pack])
def test_round_trip(name, writer, tmp_path):
    _, rows = read(name)
    target = tmp_path / "ours.jsonl"
    assert writer(rows, target) == len(rows)
    again = build(Source, {"name": "files", "path": str(target), "max_bad": 0.0})()
    assert len(again) == len(rows)
    for before, after in zip(rows, again):
        assert record_of(before) | {"images": 0, "videos": 0} == record_of(after) | {"images": 0, "videos": 0}
        assert [m.key for m in before.media] == [m.key for m in after.media]


def test_each_file_is_recognised_by_itself():
    rows = build(Source, {"name": "files", "path": str(FIXTURES / "*.jsonl"), "max_bad": 0.0})()
    assert len(rows) == sum(
        len(expected) for name, (_, expected) in EXPECTED.items() if name.endswith("jsonl")
    )


def test_details():
    _, rows = read("video_r1_cot.json")
    assert rows[0].target == "<think>It moves right.</think>\n<answer>B</answer>" and rows[0].choices == (
        "left",
        "right",
    )
    _, rows = read("ms_swift.jsonl")
    assert rows[0].target == "[10, 8, 40, 30]" and rows[1].system == "Be brief."
    assert [m["role"] for m in rows[1].messages] == ["user", "assistant", "user"]
    _, rows = read("vlrl.jsonl")
    assert rows[0].choices == ("red", "blue") and rows[1].videos[0].span == (0.5, 1.5)


def test_jigsaw_r1_lists_become_puzzles():
    source, rows = read("jigsaw_r1.json")
    assert source.family_of(rows.parts[0].records)[0].name == "jigsaw_r1" and len(rows) == 2
    for row, name in zip(rows, ("red", "green")):
        whole = np.asarray(Image.open(FIXTURES / "media" / f"{name}.png"))
        halves = {1: whole[:28], 2: whole[28:]}
        assert sorted(row.answer) == [1, 2] and row.task == "jigsaw"
        assert np.array_equal(
            np.asarray(row.images[0].load()), np.concatenate([halves[piece] for piece in row.answer])
        )


def test_containers():
    _, rows = read("webdataset.tar", "webdataset")
    assert [(r.id, r.question, r.answer, len(r.images)) for r in rows] == [
        ("s0", "Which colour?", "red", 1),
        ("s1", "What is it?", "1", 0),
    ]
    _, rows = read("classes", "folder")
    assert [(r.id, r.answer, r.task) for r in rows] == [
        ("blue/0.png", "blue", "classification"),
        ("red/0.png", "red", "classification"),
    ]
    _, rows = read("hf_saved", "hub")
    assert [seen(row) for row in rows] == [("hf_saved-0", "Which colour?", "green", [SIZE], [], "default")]


def test_image_folder_with_metadata(tmp_path):
    (tmp_path / "a.png").write_bytes((FIXTURES / "media" / "red.png").read_bytes())
    (tmp_path / "metadata.csv").write_text("file_name,question,answer\na.png,Which?,red\n")
    rows = build(Source, {"name": "folder", "path": str(tmp_path)})()
    assert seen(rows[0])[1:4] == ("Which?", "red", [SIZE])
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "a.png", "question": "What?", "answer": "r"}\n')
    assert seen(build(Source, {"name": "folder", "path": str(tmp_path)})()[0])[1:4] == ("What?", "r", [SIZE])


def test_overrides_and_renaming(tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps({"ask": "Q", "tell": "A", "level": 3}) + "\n")
    options = {
        "fields": {"ask": "question", "tell": "answer"},
        "task": "t",
        "rewards": ["exact"],
        "system": "S",
    }
    row = build(Source, {"name": "files", "path": str(tmp_path / "x.jsonl"), **options})()[0]
    assert (row.question, row.answer, row.task, row.rewards, row.system, row.meta) == (
        "Q",
        "A",
        "t",
        ("exact",),
        "S",
        {"level": 3},
    )


def test_several_files_with_roots(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(
            (FIXTURES / "media" / ("red.png" if name == "a" else "green.png")).read_bytes()
        )
        record = {"image": "x.png", "problem": "?", "solution": name}
        (tmp_path / f"{name}.json").write_text(json.dumps([record]))
    root = [str(tmp_path / "a"), str(tmp_path / "b")]
    rows = build(
        Source, {"name": "files", "path": f"{tmp_path}/a.json:{tmp_path}/b.json", "media_root": root}
    )()
    assert [(row.id, row.answer) for row in rows] == [("a-0", "a"), ("b-0", "b")]


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"foo": 1},
        {"question": "x"} | {"anwser": 1},
        {"conversations": []},
        {"conversations": [{"role": 1}]},
    ],
)
def test_unknown_family_is_told(record):
    with pytest.raises(ConfigError, match="no record family"):
        recognise(record)


def test_unknown_names():
    with pytest.raises(ConfigError, match="Did you mean 'video_r1'"):
        by_name("video_r2")
    with pytest.raises(ConfigError, match="no record family 'x'"):
        build(Source, {"name": "files", "path": "x", "format": "x"})
    with pytest.raises(ConfigError, match="nothing at"):
        build(Source, {"name": "files", "path": "no/such.jsonl"})()


def test_a_data_set_of_the_hub_has_its_files_in_a_folder_of_its_own(tmp_path):
    """As `hf download ... --local-dir` leaves them; files beside the folder `data` come first."""
    (tmp_path / "data").mkdir()
    (tmp_path / "README.md").write_text("# a data set\n")
    (tmp_path / "data" / "train.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    files = {"name": "files", "path": str(tmp_path)}
    assert [row.answer for row in build(Source, files)()] == ["2"]
    (tmp_path / "own.jsonl").write_text('{"question": "1 + 2?", "answer": "3"}\n')
    assert [row.answer for row in build(Source, files)()] == ["3"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("<answer> 3 </answer>", "3"),
        ("<think>[1,2,3,4]</think><answer>no</answer>", "no"),
        ("[1, 2.5, 3, 4]", [1, 2.5, 3, 4]),
        ("<answer>[1,2,3,4]</answer>", [1, 2, 3, 4]),
        ('```json\n[{"bbox_2d": [1, 2, 3, 4]}]\n```', [{"bbox_2d": [1, 2, 3, 4]}]),
        ("[{'Position': [1, 2, 3, 4]}]", [{"Position": [1, 2, 3, 4]}]),
        ("[[1,2,3,4],[5,6,7,8]]", [[1, 2, 3, 4], [5, 6, 7, 8]]),
        ("[1, 2]", "[1, 2]"),
        ("[{oh no", "[{oh no"),
        ("__import__('os')", "__import__('os')"),
        ("", None),
        ("  ", None),
        ("<answer></answer>", None),
        (4, 4),
        (0, 0),
        (0.5, 0.5),
        (None, None),
        ({}, None),
        ([], []),
    ],
)
def test_answers(raw, expected):
    assert parse_answer(raw) == expected


def test_literal_runs_no_code():
    with pytest.raises(ValueError, match=r"malformed|neither"):
        literal("__import__('os').getcwd()")
    assert strip_tags("<answer>1</answer> or <answer>2</answer>") == "2"


def drafted(record):
    family, _ = recognise(record)
    return family.name, family.draft({"": record} if isinstance(record, list) else record)


def test_a_prompt_that_is_written_in_chatml_becomes_its_messages():
    turns = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHow many?\nBox it.<|im_end|>\n"
    record = {
        "prompt": [{"role": "user", "content": f"{turns}<|im_start|>assistant\n"}],
        "reward_model": {"ground_truth": "3", "style": "rule"},
    }
    name, draft = drafted(record)
    assert (name, draft["system"], draft["question"]) == ("verl", "Be brief.", "How many?\nBox it.")
    for begun in ("", "<think>", "I go through it.\n<think>"):  # Logic-RL and Time-R1 begin the answer
        text = f"{turns}<|im_start|>assistant\n{begun}"
        draft = drafted({**record, "prompt": [{"role": "user", "content": text}]})[1]
        assert draft["question"] == "How many?\nBox it." and draft["meta"].get("opening", "") == begun
    closed = f"{turns}<|im_start|>assistant\n3<|im_end|>\n"
    for text in (f"Read this: {turns}<|im_start|>assistant\n", turns, closed):
        kept = drafted({**record, "prompt": [{"role": "user", "content": text}]})[1]
        assert kept["question"] == text and not kept["system"], "only a whole prompt with an open answer"


@pytest.mark.parametrize("asked", ["question", "problem"])
def test_verl_records_may_hold_the_question_alone(asked):
    record = {asked: "1 + 1?", "reward_model": {"ground_truth": {"target": "2", "solution": "two"}}}
    name, draft = drafted(record)
    assert (name, draft["question"], draft["answer"]) == ("verl", "1 + 1?", "2")


def test_verl_records_may_hold_a_demonstration_and_several_accepted_answers():
    record = {
        "prompt": [{"role": "user", "content": "Who?"}],
        "reward_model": {"ground_truth": {"target": ["Ada", "Ada L."]}, "style": "rule"},
        "target": [{"role": "assistant", "content": "<think>\nShe.\n</think>\nAda"}],
    }
    draft = drafted(record)[1]
    assert draft["answer"] == ["Ada", "Ada L."] and draft["target"].endswith("\nAda")
    assert drafted({**record, "target": "Ada"})[1]["target"] == "Ada"


def test_records_of_open_reasoner_zero_are_lists_of_two_turns():
    asked = {"from": "human", "value": "How many?"}
    gold = {"from": "assistant", "ground_truth": {"value": "7"}}
    assert drafted([asked, gold]) == ("orz", {"question": "How many?", "answer": "7"})
    with pytest.raises(ConfigError, match="no record family"):
        recognise([asked, asked])


@pytest.mark.parametrize(
    ("gold", "answer", "task", "hard"),
    [
        ({"event_pub_date": "2019-05"}, "2019-05", "date", False),
        (
            {"event1_pub_date": "2018-01", "event2_pub_date": "2018-05", "difficulty": {"alpha": 0.07}},
            ["2018-01", "2018-05"],
            "date_gap",
            True,
        ),
        (
            {
                "event_pub_date": "2019-05",
                "masked_entity": "May",
                "difficulty": {"events_difficulty": [False]},
            },
            ["2019-05", "May"],
            "entity",
            True,
        ),
    ],
)
def test_news_have_the_dates_of_their_events(gold, answer, task, hard):
    record = {"prompt": [{"role": "user", "content": "When?"}], "reward_model": {"ground_truth": gold}}
    name, draft = drafted(record)
    assert (name, draft["answer"], draft["task"], draft["meta"]["hard"]) == ("time_r1", answer, task, hard)


def test_scene_graphs_may_be_json_or_lists():
    things, pairs = [{"id": "cup.1", "bbox": [1, 2, 3, 4]}], []
    for objects, relationships in ((things, pairs), (json.dumps(things), json.dumps(pairs))):
        record = {"image": "a.png", "objects": objects, "relationships": relationships, "image_id": "7"}
        name, draft = drafted(record)
        assert (name, draft["task"]) == ("r1_sgg", "scene_graph")
        assert draft["answer"] == {"objects": things, "relationships": []}
