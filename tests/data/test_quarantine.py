"""Unusable rows are found before training, each with its reason; the usable rows are drawn exactly once per
epoch."""

import json
import re
from collections import Counter

import pytest
from bad_rows_kit import good, write_folder
from PIL import Image
from run_kit import View
from typer.testing import CliRunner
from vlrl_data.cli import app
from vlrl_data.quarantine import reason_kind

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import PromptSampler, Source
from vlrl.types import RowError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("mixed")
    return root, write_folder(root)


def source(root, **options):
    spec = {
        "name": "files",
        "path": str(root / "rows.jsonl"),
        "format": "easyr1",
        "limits": {"max_pixels": 10_000},
        "max_bad": 0.2,
    }
    return build(Source, spec | options)


def test_everything_bad_is_found_with_its_reason(folder, tmp_path, caplog):
    root, lines = folder
    files = source(root, quarantine=str(tmp_path / "quarantine.jsonl"), check_level="decode")
    rows = files()
    assert len(rows) == 1000
    told = [json.loads(line) for line in (tmp_path / "quarantine.jsonl").read_text().splitlines()]
    expected = {number: reason for number, (_, reason) in enumerate(lines, 1) if reason not in ("", "blank")}
    found = {int(entry["location"].rpartition(":")[2]): entry["reason"] for entry in told}
    assert set(found) == set(expected) and len(found) == 200
    for number, reason in expected.items():
        assert re.search(reason, found[number]), (number, reason, found[number])
    assert files.metrics() == {"data/quarantined": 200.0}
    assert "200 of 1200 rows are quarantined" in caplog.text
    files()
    assert (
        len((tmp_path / "quarantine.jsonl").read_text().splitlines()) == 200
    )  # reading again does not repeat them


def test_used_exactly_once_per_epoch_also_after_a_restart(folder):
    root, _ = folder

    def sampler():
        made = build(PromptSampler, "shuffle")
        made.setup(View(rows={"a": source(root, check_level="decode")()}, source_weights={}, seed=1))
        return made

    first, second = sampler(), sampler()
    ids = [row.id for row in first(437)]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    ids += [row.id for row in second(563)]
    assert Counter(ids) == Counter({f"g{i}": 1 for i in range(1000)})


def test_share_limit_stops(folder, tmp_path):
    root, _ = folder
    with pytest.raises(
        ConfigError, match=r"200 of 1200 rows cannot be used, a share of 0.167 over max_bad=0.1"
    ):
        source(root, max_bad=0.1, check_level="decode", quarantine=str(tmp_path / "q.jsonl"))()
    assert len((tmp_path / "q.jsonl").read_text().splitlines()) == 200


@pytest.mark.parametrize(("level", "bad"), [("rows", 130), ("headers", 180), ("decode", 200)])
def test_levels(folder, level, bad):
    root, _ = folder
    assert len(source(root, check_level=level)().quarantine.rows) == bad


def test_unchecked_rows_are_refused_when_asked_for(folder, tmp_path, monkeypatch):
    root, _ = folder
    monkeypatch.setattr("vlrl_data.dataset.UNCHECKED_HEAD", 20)
    rows = source(root, check_level="none", quarantine=str(tmp_path / "q.jsonl"))()
    before = len(rows.quarantine.rows)
    refused = [index for index in range(len(rows)) if not usable(rows, index)]
    assert (
        len(rows) + before == 1200 and len(refused) + before >= 110
    )  # duplicates are not seen without looking at all
    assert len((tmp_path / "q.jsonl").read_text().splitlines()) == before + len(refused)


def usable(rows, index):
    try:
        return bool(rows[index].id)
    except RowError:
        return False


def test_sources_share_a_quarantine_file(folder, tmp_path):
    root, _ = folder
    (tmp_path / "one.jsonl").write_text(good(0).replace("p0.png", str(root / "p0.png")) + "\n{")
    for path in (root / "rows.jsonl", tmp_path / "one.jsonl", tmp_path / "one.jsonl"):
        source(
            root, path=str(path), max_bad=0.5, quarantine=str(tmp_path / "q.jsonl"), check_level="decode"
        )()
    per_source = Counter(
        json.loads(line)["source"].rpartition("/")[2] for line in (tmp_path / "q.jsonl").open()
    )
    assert per_source == {"rows.jsonl": 200, "one.jsonl": 1}


def test_unknown_column_of_ours(tmp_path):
    rows = [
        {"id": "a", "question": "q", "answer": "x"},
        {"id": "b", "question": "q", "answer": "x", "targte": "y"},
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = build(Source, {"name": "files", "path": str(tmp_path / "x.jsonl"), "max_bad": 1.0})()
    assert [row.id for row in found] == ["a"]
    assert "unknown column 'targte'. Did you mean 'target'?" in found.quarantine.rows[0].reason


def test_answers_may_be_optional(tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps({"id": "a", "question": "q"}))
    assert (
        len(build(Source, {"name": "files", "path": str(tmp_path / "x.jsonl"), "answers": "optional"})()) == 1
    )
    with pytest.raises(ConfigError, match="no answer"):
        build(Source, {"name": "files", "path": str(tmp_path / "x.jsonl")})()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [("x.json", "{", "broken JSON"), ("x.json", "3", "expected a list"), ("x.jsonl", "", "is empty")],
)
def test_files_that_cannot_be_read(tmp_path, name, content, reason):
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=reason):
        build(Source, {"name": "files", "path": str(tmp_path / name)})()


@pytest.mark.parametrize(
    ("name", "content"), [("x.parquet", b"PAR1xxxx"), ("x.csv", b"a,b\n1\n"), ("x.tar", b"hello")]
)
def test_containers_that_cannot_be_read(tmp_path, name, content, monkeypatch):
    monkeypatch.setenv("VLRL_CACHE", str(tmp_path / "cache"))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=name):
        build(Source, {"name": "webdataset" if name == "x.tar" else "files", "path": str(tmp_path / name)})()


def test_budget(tmp_path):
    Image.new("RGB", (100, 50)).save(tmp_path / "a.png")
    rows = [
        {"id": "q", "question": "?", "answer": "x", "images": ["a.png", "a.png"]},
        {"id": "b", "question": "?", "answer": [1, 2, 3, 4], "images": ["a.png"]},
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    spec = {"name": "files", "path": str(tmp_path / "x.jsonl"), "row_pixels": 2500, "max_bad": 1.0}
    found = build(Source, spec)()
    assert [row.id for row in found] == ["q"] and sum(
        m.load().width * m.load().height for m in found[0].images
    ) <= 2500
    assert "cannot be resized because its answer is in pixels" in found.quarantine.rows[0].reason
    assert [bad.index for bad in build(Source, spec | {"over_budget": "drop"})().quarantine.rows] == [0, 1]


def test_reason_kinds_omit_paths_texts_and_numbers():
    assert reason_kind("/a/b.png: 30 x 40 pixels, 'x'") == reason_kind("/c.png: 3 x 4 pixels, 'why'")


def test_a_fault_of_many_rows_is_one_line_with_its_fix(tmp_path):
    rows = [{"question": f"{n}?", "answer": "x", "image": f"pictures/{n}.png"} for n in range(300)]
    mixed, alike = (
        write(tmp_path / "x.jsonl", [*rows, {"question": "", "answer": "x"}]),
        write(tmp_path / "y.jsonl", rows),
    )
    result = CliRunner().invoke(app, ["check", mixed, "--json"])
    figures = json.loads(result.stdout)
    assert (figures["usable"], figures["unusable"]) == (0, 301)
    first, other = figures["rows"].values()
    assert (
        "pictures/0.png: No such file or directory (and 299 more like it); set media_root to the folder that"
        in first
    )
    assert other == "it has no question"
    table = CliRunner().invoke(app, ["check", mixed]).output
    assert len(table.splitlines()) < 25 and table.count("No such file") == 2
    for words in (
        ["stats"],
        ["convert", "-o", str(tmp_path / "o.jsonl")],
        ["dedup", "-o", str(tmp_path / "o.jsonl")],
    ):
        result = CliRunner().invoke(app, [words[0], alike, *words[1:]])
        assert "300 of 300 rows cannot be used: 300 x" in str(result.exception) and "set media_root" in str(
            result.exception
        )
    assert not (tmp_path / "o.jsonl").exists()
    few = CliRunner().invoke(app, ["check", write(tmp_path / "few.jsonl", rows[:3]), "--json"])
    assert len(json.loads(few.stdout)["rows"]) == 3


def write(path, rows):
    """The path of a file of rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
