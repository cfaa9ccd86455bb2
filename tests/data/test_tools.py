"""The functions of `vlrl_data.tools` and their commands: stats, dedup, decontaminate, difficulty, split,
preview."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner
from vlrl_data.cli import app, parse, spec_of
from vlrl_data.lab import shipped_images
from vlrl_data.media.images import InMemoryImage, StoredImage
from vlrl_data.tools.duplicates import HashIndex, decontaminate, dedup, distance, image_hash, ngrams, words
from vlrl_data.tools.preview import entry, marks_of, page
from vlrl_data.tools.rollout_rewards import load_pass_rates, merge_pass_rates, pass_rates
from vlrl_data.tools.split import split
from vlrl_data.tools.stats import answer_kind, stats

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import PromptTemplate, Select, Source
from vlrl.types import Row

FIXTURES = Path(__file__).parents[2] / "data" / "fixtures"


def photo(name, box=None, size=(120, 90), quality=None):
    whole = shipped_images.region(name, "train")
    return InMemoryImage(shipped_images.crop(name, box or whole, *size))


def test_picture_hash_survives_resizing_and_tells_photos_apart():
    hashes = {name: image_hash(photo(name)) for name in shipped_images.PHOTOS}
    for name, value in hashes.items():
        assert distance(value, image_hash(photo(name, size=(300, 200)))) <= 6
        assert all(distance(value, other) > 6 for twin, other in hashes.items() if twin != name)


def test_hash_by_hand():
    rising = Image.fromarray(np.tile(np.arange(9, dtype=np.uint8) * 20, (8, 1)))
    assert image_hash(InMemoryImage(rising)) == 2**64 - 1
    assert image_hash(InMemoryImage(Image.new("L", (9, 8), 7))) == 0


def test_hash_index_finds_all_within_radius():
    rng = random.Random(0)
    values = [rng.getrandbits(64) for _ in range(200)]
    index = HashIndex(4)
    for i, value in enumerate(values):
        index.add(value, str(i))
    for i, value in enumerate(values[:40]):
        flipped = value
        for bit in rng.sample(range(64), i % 6):
            flipped ^= 1 << bit
        assert index.near(flipped) == ([str(i)] if i % 6 <= 4 else [])


def test_dedup():
    rows = [
        Row("a", "What is it?", images=(photo("coffee"),)),
        Row("b", "what is IT", images=(photo("coffee", size=(240, 180)),)),
        Row("c", "What is it?", images=(photo("rocket"),)),
        Row("d", "Which cup?", images=(photo("coffee"),)),
        Row("e", "Two plus two?"),
        Row("f", "two PLUS two"),
    ]
    assert [(m.id, m.other) for m in dedup(rows)] == [("b", "a"), ("f", "e")]
    assert [(m.id, m.other) for m in dedup(rows, "text")] == [("b", "a"), ("c", "a"), ("f", "e")]
    assert [(m.id, m.other) for m in dedup(rows, "image")] == [("b", "a"), ("d", "a"), ("f", "e")]
    with pytest.raises(ConfigError, match="by: 'sound'"):
        dedup(rows, "sound")


def test_words_and_ngrams():
    assert words("<image>The Café's 3rd, cup!") == ["the", "cafe", "s", "3rd", "cup"]
    assert (
        ngrams("a b c", 2) == {("a", "b"), ("b", "c")}
        and ngrams("a b", 13) == {("a", "b")}
        and ngrams("?", 3) == set()
    )


LONG = "if the first train leaves at nine and the second one at ten which of them arrives before noon"


def test_decontaminate():
    suite = [
        Row("s1", LONG),
        Row("s2", "What is this?", images=(photo("coffee"),)),
        Row("s3", "Two plus two?"),
    ]
    rows = [
        Row("copy", "Well then: " + LONG.upper() + "?"),
        Row("near", " ".join(LONG.split()[:12]) + " or not"),
        Row("picture", "Which drink?", images=(photo("coffee", size=(333, 250)),)),
        Row("question", "What is this?", images=(photo("rocket"),)),
        Row("short", "two plus two"),
        Row("longer", "How much is two plus two?"),
    ]
    assert [(m.id, m.other) for m in decontaminate(rows, suite)] == [
        ("copy", "s1"),
        ("picture", "s2"),
        ("short", "s3"),
    ]


def test_split_is_stable_and_disjoint():
    shared = photo("coffee")
    rows = [
        Row(f"r{i}", "?", images=(shared,) if i % 10 == 0 else (), meta={"scene": i // 4}) for i in range(400)
    ]
    parts = split(rows, {"train": 0.8, "heldout": 0.2}, by="media")
    assert sum(map(len, parts.values())) == 400 and 40 < len(parts["heldout"]) < 140
    assert len({name for name, part in parts.items() if any(row.images for row in part)}) == 1
    more = split([*rows, Row("new", "?")], {"train": 0.8, "heldout": 0.2}, by="media")
    assert {row.id for row in more["train"]} - {"new"} == {row.id for row in parts["train"]}
    scenes = [
        {row.meta["scene"] for row in part} for part in split(rows, {"a": 1, "b": 1}, by="scene").values()
    ]
    assert not scenes[0] & scenes[1]
    with pytest.raises(ConfigError, match="no meta field 'colour'"):
        split(rows, {"a": 1}, by="colour")
    with pytest.raises(ConfigError, match="shares above 0"):
        split(rows, {"a": 0})


def test_stats():
    figures = stats(
        [
            Row("a", "12345", "3", images=(photo("coffee"),)),
            Row("b", "1", [1, 2, 3, 4]),
            Row("b", "123", "cat", task="t"),
        ]
    )
    assert figures["rows"] == 3 and figures["ids"] == 2 and figures["task"] == {"default": 2, "t": 1}
    assert figures["answer"] == {"int": 1, "box": 1, "word": 1} and figures["sizes"] == {"120 x 90": 1}
    assert figures["question characters"]["median"] == 3 and figures["pixels"]["max"] == 10800


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (3, "int"),
        (2.5, "number"),
        ("2.5", "number"),
        ("-3", "int"),
        ("B", "letter"),
        ("two words", "text"),
        ([[1, 2, 3, 4]], "boxes"),
        (None, "none"),
    ],
)
def test_answer_kinds(answer, kind):
    assert answer_kind(answer) == kind


def rollouts(folder, table):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "rollouts").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(table), folder / "rollouts" / "step-000001.parquet")


def test_difficulty_is_measured_stored_and_used(tmp_path):
    table = [
        {"id": "a-0", "reward": r, "reward/acc": a}
        for r, a in ((1.1, 1.0), (0.1, 0.0), (0.1, 0.0), (0.1, 0.0))
    ]
    table += [
        {"id": "a-1", "reward": 1.0, "reward/acc": 1.0},
        {"id": "a-2", "reward": 0.0, "reward/acc": None},
    ]
    rollouts(tmp_path / "run", table)
    measured = pass_rates(tmp_path / "run", "acc")
    assert measured == {
        "a-0": {"pass_rate": 0.25, "tries": 4, "mean": 0.25},
        "a-1": {"pass_rate": 1.0, "tries": 1, "mean": 1.0},
    }
    assert merge_pass_rates([measured, {"a-1": {"pass_rate": 0.0, "tries": 3, "mean": 0.0}}])["a-1"] == {
        "pass_rate": 0.25,
        "tries": 4,
        "mean": 0.25,
    }
    out = tmp_path / "difficulty.json"
    assert (
        CliRunner()
        .invoke(app, ["difficulty", str(tmp_path / "run"), "--slot", "acc", "-o", str(out)])
        .exit_code
        == 0
    )
    assert load_pass_rates(out) == measured
    (tmp_path / "a.jsonl").write_text(
        "\n".join(json.dumps({"problem": f"q{i}", "answer": "x"}) for i in range(3))
    )
    rows = build(Source, {"name": "files", "path": str(tmp_path / "a.jsonl"), "difficulty": str(out)})()
    assert [row.meta.get("pass_rate") for row in rows] == [0.25, 1.0, None]
    assert [row.id for row in build(Select, "pass_rate")(rows)] == ["a-0", "a-2"]
    assert [
        row.id
        for row in build(Select, {"name": "pass_rate", "missing": "drop", "low": 0.0, "high": 1.0})(rows)
    ] == ["a-0", "a-1"]
    assert [row.id for row in build(Select, {"name": "order", "descending": True})(rows)] == [
        "a-1",
        "a-0",
        "a-2",
    ]
    for bad, phrase in (("slot", "no reward 'nope'. Known: acc"), ("none", "no rollouts")):
        with pytest.raises(ConfigError, match=phrase):
            pass_rates(tmp_path / ("run" if bad == "slot" else "x"), "nope")
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(ConfigError, match="not a table"):
        load_pass_rates(tmp_path / "x.json")


def test_selections():
    rows = [Row(str(i), "?", task="ab"[i % 2]) for i in range(10)]
    assert [row.id for row in build(Select, {"name": "take", "count": 3})(rows)] == ["0", "1", "2"]
    some = [row.id for row in build(Select, {"name": "take", "count": 4, "seed": 1})(rows)]
    assert len(set(some)) == 4 and some == sorted(some) != ["0", "1", "2", "3"]
    assert len(build(Select, {"name": "take", "count": 99})(rows)) == 10
    assert [row.id for row in build(Select, {"name": "tasks", "keep": ["b"]})(rows)] == [
        "1",
        "3",
        "5",
        "7",
        "9",
    ]
    assert [row.id for row in build(Select, {"name": "take", "count": 5})(rows)[1:3]] == ["1", "2"]
    for spec in ({"name": "take", "count": 0}, {"name": "pass_rate", "low": 0.9, "high": 0.1}):
        with pytest.raises(ConfigError):
            build(Select, spec)


@pytest.mark.parametrize(
    ("answer", "marks"),
    [
        ([1, 2, 30, 40], [{"box": [1, 2, 30, 40]}]),
        ([[1, 2, 30, 40], [5, 6]], [{"box": [1, 2, 30, 40]}, {"point": [5, 6]}]),
        ([{"bbox_2d": [1, 2, 30, 40], "label": "cup"}], [{"box": [1, 2, 30, 40], "label": "cup"}]),
        ([2, 1, 4, 3], []),
        ("[1, 2]", []),
        (None, []),
    ],
)
def test_marks(answer, marks):
    assert marks_of(answer) == marks


def test_preview_shows_everything_and_escapes_it(tmp_path):
    rows = [
        Row(
            "<b>",
            "Is <image> a cup & saucer?",
            [10, 20, 60, 70],
            images=(photo("coffee"),),
            target="<answer>x</answer>",
        ),
        Row("bad", "?", "a", images=(StoredImage(str(tmp_path / "no.png")),)),
    ]
    html = page(rows, "t", "", build(PromptTemplate, {"name": "chat", "style": "think_open"}))
    assert (
        "&lt;b&gt;" in html
        and "cup &amp; saucer" in html
        and "&lt;think&gt;" in html
        and "<b>bad</b>" in html
    )
    assert re.search(r'<rect x="10" y="20" width="50"\s+height="50"', html) and "no.png: No such file" in html
    assert (
        "http" not in html.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
        and html.count("data:image/png;base64") == 1
    )
    clip = entry(build(Source, "lab_video")()[0])["media"][0]
    assert len(clip["frames"]) == 8 and clip["caption"] == "video 1: 8 frames of 56 x 56 at 4.00 per second"


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("lab_counting,size=84,photos=[coffee]", {"name": "lab_counting", "size": 84, "photos": ["coffee"]}),
        ("hub:a/b@test", {"name": "hub", "path": "a/b", "split": "test"}),
        (
            str(FIXTURES / "qa.csv") + ",task=t",
            {"name": "files", "path": str(FIXTURES / "qa.csv"), "task": "t"},
        ),
        (str(FIXTURES / "webdataset.tar"), {"name": "webdataset", "path": str(FIXTURES / "webdataset.tar")}),
        (str(FIXTURES / "classes"), {"name": "folder", "path": str(FIXTURES / "classes")}),
        (str(FIXTURES / "hf_saved"), {"name": "hub", "path": str(FIXTURES / "hf_saved")}),
    ],
)
def test_source_specs(text, spec):
    assert spec_of(text) == spec


def test_parse():
    assert parse("chat,style=think,shots=[]") == {"name": "chat", "style": "think", "shots": []}


def run(*phrase):
    return CliRunner().invoke(app, [str(word) for word in phrase])


def test_commands(tmp_path, monkeypatch):
    monkeypatch.setenv("VLRL_CACHE", str(tmp_path / "cache"))
    figures = run("stats", FIXTURES / "llava.jsonl", "--json")
    assert figures.exit_code == 0 and json.loads(figures.stdout)["rows"] == 2
    figures = run("check", FIXTURES / "easyr1.jsonl", "--json")
    assert figures.exit_code == 0 and json.loads(figures.stdout)["format"] == {
        "easyr1": "easyr1 because it has `problem` and `answer`"
    }
    assert (
        run(
            "preview",
            FIXTURES / "vlm_r1_rec.jsonl",
            "-o",
            tmp_path / "p.html",
            "--prompt-template",
            "chat,style=boxed",
        ).exit_code
        == 0
    )
    assert r"\boxed{}" in (tmp_path / "p.html").read_text()
    for option in ((), ("--pack",)):
        assert (
            run("convert", FIXTURES / "verl.parquet", "-o", tmp_path / "ours.jsonl", *option).exit_code == 0
        )
    (tmp_path / "bad.jsonl").write_text((tmp_path / "ours.jsonl").read_text() + "{\n")
    figures = run("check", tmp_path / "bad.jsonl", "--json", "--quarantine", tmp_path / "q.jsonl")
    assert (
        figures.exit_code == 1
        and json.loads(figures.stdout)["unusable"] == 1
        and "broken JSON" in (tmp_path / "q.jsonl").read_text()
    )
    two = tmp_path / "two.jsonl"
    two.write_text(
        "\n".join(json.dumps({"id": f"{i}", "question": "Same?", "answer": "a"}) for i in range(2))
    )
    figures = run("dedup", two, "-o", tmp_path / "one.jsonl", "--json")
    assert (
        json.loads(figures.stdout)["dropped"] == 1
        and len((tmp_path / "one.jsonl").read_text().splitlines()) == 1
    )
    figures = run(
        "decontaminate", two, "--against", tmp_path / "one.jsonl", "-o", tmp_path / "none.jsonl", "--json"
    )
    assert json.loads(figures.stdout)["kept"] == 0
    assert run("split", "lab_knights,count=40", "-o", tmp_path / "parts", "--by", "id").exit_code == 0
    assert (
        sum(
            len((tmp_path / "parts" / f"{name}.jsonl").read_text().splitlines())
            for name in ("train", "heldout")
        )
        == 40
    )
    assert isinstance(
        run("split", "lab_knights", "-o", tmp_path / "x", "--parts", "train").exception, ConfigError
    )
