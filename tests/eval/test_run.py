"""Drawing and resuming: the journal, broken rows, failing engines, kills, several processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from vlrl.eval.collect import Draw, collect, missing
from vlrl.eval.rows import Rows

from vlrl.engine.fake import Fake
from vlrl.eval.grade import grade
from vlrl.eval.journal import Entry, Journal, read
from vlrl.eval.prompts import sample_seed
from vlrl.eval.summary import pick
from vlrl.types import Completion

DRAW = Draw(samples=3, temperature=1.0, max_tokens=8, variants=("plain", "blind"), batch=4)


def speak(request, index):
    """A response that is a function of the stream alone."""
    return random.Random(request.seed).choice(["A", "B", "4", "200", ""])


def drawn(folder, rows, draw=DRAW, engine=None, rank=0, world=1):
    journal = Journal(folder)
    return collect(engine or Fake(function=speak), missing([rows], draw, journal, rank, world), draw, journal)


def responses(folder):
    return {key: entry.response for key, entry in read(folder / "journal").items()}


def test_streams_depend_on_what_is_drawn_alone():
    seeds = {sample_seed(s, "x", i, k) for s in (0, 1) for i in "ab" for k in (0, 1)}
    assert len(seeds) == 8 and all(0 <= seed < 2**31 for seed in seeds)
    assert sample_seed(0, "x", "a", 0) == sample_seed(0, "x", "a", 0)


def test_a_journal_has_every_sample_once(tmp_path, fixture_rows):
    rows = fixture_rows("vsi_bench")
    assert drawn(tmp_path, rows) == 0
    entries = read(tmp_path / "journal")
    assert len(entries) == len(rows) * (3 + 1)
    entry = entries["vsi_bench", "plain", "0", 2]
    assert entry.input["media"] and entry.finish == "stop" and not entry.error
    assert missing([rows], DRAW, Journal(tmp_path)) == []


def test_processes_share_the_work(tmp_path, fixture_rows):
    rows = fixture_rows("vsi_bench")
    todo = [missing([rows], DRAW, Journal(tmp_path), rank, 3) for rank in range(3)]
    keys = [item.key for part in todo for item in part]
    assert len(keys) == len(set(keys)) == 40
    drawn(tmp_path / "one", rows)
    for rank in (2, 0, 1):
        journal = Journal(tmp_path / "many")
        collect(Fake(function=speak), todo[rank], DRAW, journal)
    assert responses(tmp_path / "one") == responses(tmp_path / "many")


def test_a_line_that_a_kill_cut_off_is_drawn_again(tmp_path, fixture_rows):
    rows = fixture_rows("vsi_bench")
    drawn(tmp_path, rows)
    whole = responses(tmp_path)
    (file,) = (tmp_path / "journal").glob("*.jsonl")
    file.write_bytes(file.read_bytes()[:-25])
    assert len(read(tmp_path / "journal")) == 39
    drawn(tmp_path, rows)
    assert responses(tmp_path) == whole


def test_an_entry_without_error_wins(tmp_path):
    journal = Journal(tmp_path)
    journal.add(Entry("s", "a", 0, "", error="MediaError: gone"))
    journal.add(Entry("s", "a", 0, "B"))
    journal.add(Entry("s", "a", 0, "", error="again"))
    assert journal.entries()["s", "plain", "a", 0].response == "B"


def test_a_row_with_broken_media_fails_alone_and_counts_as_wrong(tmp_path, fixture_rows):
    rows = fixture_rows("vsi_bench")
    broken = Rows(rows.suite, [{**row, "scene_name": "gone"} if row["id"] == 3 else row for row in rows.fields], "folder", rows.folder)
    draw = Draw(max_tokens=8)
    assert drawn(tmp_path, broken, draw, Fake(function=lambda request, index: str(request.prompt.row.answer))) == 1
    graded = grade(broken, pick(read(tmp_path / "journal"), "vsi_bench"))
    assert graded.audit["failed"] == 0.1 and graded.audit["failures"] == {"MediaError": 1} and graded.audit["scored"] == 10
    assert graded.scores == [0.0 if row["id"] == 3 else 1.0 for row in broken.fields]
    assert missing([broken], draw, Journal(tmp_path))[0].key == ("vsi_bench", "plain", "3", 0)  # tried again when the run goes on


@dataclass(frozen=True)
class Fragile(Fake):
    """Breaks on a whole batch that holds an unlucky row, and on that row alone."""

    state: dict = field(init=False, default_factory=lambda: {"calls": 0, "version": 0, "policy": None})

    def generate(self, requests):
        for request in requests:
            if request.prompt.row.id.endswith("/5"):
                raise RuntimeError("out of memory")
            yield Completion(request, 0, [1], [-0.5], "A", "length")


def test_an_engine_that_fails_is_tried_row_by_row(tmp_path, fixture_rows):
    rows = fixture_rows("vsi_bench")
    assert drawn(tmp_path, rows, Draw(max_tokens=1), Fragile()) == 1
    entries = read(tmp_path / "journal")
    assert len(entries) == 10 and [e.id for e in entries.values() if e.error] == ["5"]
    graded = grade(rows, pick(entries, "vsi_bench"))
    assert graded.audit["truncated"] == 0.9 and graded.samples[0][0].confidence == pytest.approx(0.606531)


def slow(request, index):
    time.sleep(0.004)
    return speak(request, index)


def child(folder, rows, draw):
    drawn(folder, rows, draw, Fake(function=slow))


def kill_at_random(folder, target, kills, lines):
    """Run `target` in a forked child and SIGKILL it `kills` times, each time after a few more journal lines."""
    rng, context = random.Random(3), multiprocessing.get_context("fork")
    for _ in range(kills):
        process = context.Process(target=target)
        before = lines()
        process.start()
        while process.is_alive() and lines() < before + rng.randint(1, 6):
            time.sleep(0.001)
        assert process.is_alive(), "the run ended before it was killed: give it more samples"
        os.kill(process.pid, signal.SIGKILL)
        process.join()


def test_a_run_killed_five_times_ends_as_an_undisturbed_one(tmp_path, fixture_rows):
    rows, draw = fixture_rows("vsi_bench"), Draw(samples=8, temperature=1.0, max_tokens=8, batch=16)
    drawn(tmp_path / "whole", rows, draw)
    folder = tmp_path / "killed"

    def lines():
        return sum(path.read_bytes().count(b"\n") for path in (folder / "journal").glob("*.jsonl"))

    kill_at_random(folder, lambda: child(folder, rows, draw), 5, lines)
    assert 0 < len(read(folder / "journal")) < 80
    drawn(folder, rows, draw)
    assert responses(folder) == responses(tmp_path / "whole")
    assert pick(read(folder / "journal"), "vsi_bench").keys() == {str(i) for i in range(10)}


@pytest.fixture(scope="module")
def tiny():
    """The tiny Qwen2.5-VL on the in-process engine."""
    torch = pytest.importorskip("torch")
    from vlrl.eval.model import open_model

    torch.set_num_threads(1)
    return open_model("tiny_qwen2_5_vl", {"name": "hf"})


@pytest.mark.parametrize("name", ["mathvista", "vsi_bench"])
def test_a_real_model_killed_and_resumed(tmp_path, fixture_rows, tiny, name):
    rows, draw = fixture_rows(name), Draw(samples=4, temperature=1.0, max_tokens=6, batch=8)

    def run(folder):
        journal = Journal(folder)
        return collect(tiny.engine, missing([rows], draw, journal), draw, journal, tiny.policy)

    assert run(tmp_path / "whole") == 0
    folder = tmp_path / "killed"

    def lines():
        return sum(path.read_bytes().count(b"\n") for path in (folder / "journal").glob("*.jsonl"))

    kill_at_random(folder, lambda: run(folder), 2, lines)
    run(folder)
    whole, killed = read(tmp_path / "whole" / "journal"), read(folder / "journal")
    assert {key: (e.response, e.input) for key, e in whole.items()} == {key: (e.response, e.input) for key, e in killed.items()}
    entry = whole[name, "plain", rows.ids[0], 0]
    assert entry.input["tokens"] > 20 and len(entry.input["media"]) == 1
    assert len(json.dumps(entry.input)) < 600


def test_confidence_is_the_geometric_mean(fixture_rows):
    from vlrl.eval.collect import Todo, _entry

    rows = fixture_rows("mathvista")
    completion = Completion(SimpleNamespace(prompt=SimpleNamespace(key="k", images=(), videos=())), 0, [1, 2], [-1.0, -3.0], "x", "stop")
    assert _entry(Todo(rows, 0, "plain", 0), completion, None).confidence == pytest.approx(0.135335)
