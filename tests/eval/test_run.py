"""Generation and resuming: the journal, broken records, failing engines, kills, several processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from vlrl.engine.fake import Fake
from vlrl.eval.generate import GenerationSettings, generate_responses, pending_samples
from vlrl.eval.grade import grade
from vlrl.eval.journal import Entry, Journal, read_journal
from vlrl.eval.prompts import sample_seed
from vlrl.eval.records import SuiteData
from vlrl.eval.summary import select_responses
from vlrl.types import Completion

SETTINGS = GenerationSettings(samples=3, temperature=1.0, max_tokens=8, variants=("plain", "blind"), batch=4)


def speak(request, index):
    """A response that is a function of the stream alone."""
    return random.Random(request.seed).choice(["A", "B", "4", "200", ""])


def generated(folder, data, settings=SETTINGS, engine=None, rank=0, world=1):
    journal = Journal(folder)
    pending = pending_samples([data], settings, journal.entries(), rank, world)
    return generate_responses(engine or Fake(function=speak), pending, settings, journal)


def responses(folder):
    return {key: entry.response for key, entry in read_journal(folder / "journal").items()}


def test_streams_depend_on_what_is_drawn_alone():
    seeds = {sample_seed(s, "x", i, k) for s in (0, 1) for i in "ab" for k in (0, 1)}
    assert len(seeds) == 8 and all(0 <= seed < 2**31 for seed in seeds)
    assert sample_seed(0, "x", "a", 0) == sample_seed(0, "x", "a", 0)


def test_a_journal_has_every_sample_once(tmp_path, fixture_data):
    data = fixture_data("vsi_bench")
    assert generated(tmp_path, data) == 0
    entries = read_journal(tmp_path / "journal")
    assert len(entries) == len(data) * (3 + 1)
    entry = entries["vsi_bench", "plain", "0", 2]
    assert entry.input["media"] and entry.finish == "stop" and not entry.error
    assert pending_samples([data], SETTINGS, Journal(tmp_path).entries()) == []


def test_processes_share_the_work(tmp_path, fixture_data):
    data = fixture_data("vsi_bench")
    pending = [pending_samples([data], SETTINGS, {}, rank, 3) for rank in range(3)]
    keys = [sample.key for part in pending for sample in part]
    assert len(keys) == len(set(keys)) == 40
    generated(tmp_path / "one", data)
    for rank in (2, 0, 1):
        journal = Journal(tmp_path / "many")
        generate_responses(Fake(function=speak), pending[rank], SETTINGS, journal)
    assert responses(tmp_path / "one") == responses(tmp_path / "many")


def test_a_line_that_a_kill_cut_off_is_drawn_again(tmp_path, fixture_data):
    data = fixture_data("vsi_bench")
    generated(tmp_path, data)
    whole = responses(tmp_path)
    (file,) = (tmp_path / "journal").glob("*.jsonl")
    file.write_bytes(file.read_bytes()[:-25])
    assert len(read_journal(tmp_path / "journal")) == 39
    generated(tmp_path, data)
    assert responses(tmp_path) == whole


def test_an_entry_without_error_wins(tmp_path):
    journal = Journal(tmp_path)
    journal.add(Entry("s", "a", 0, "", error="MediaError: gone"))
    journal.add(Entry("s", "a", 0, "B"))
    journal.add(Entry("s", "a", 0, "", error="again"))
    assert journal.entries()["s", "plain", "a", 0].response == "B"


def test_a_row_with_broken_media_fails_alone_and_counts_as_wrong(tmp_path, fixture_data):
    data = fixture_data("vsi_bench")
    broken = SuiteData(
        data.suite,
        [{**row, "scene_name": "gone"} if row["id"] == 3 else row for row in data.records],
        "folder",
        data.folder,
    )
    settings = GenerationSettings(max_tokens=8)
    assert (
        generated(
            tmp_path, broken, settings, Fake(function=lambda request, index: str(request.prompt.row.answer))
        )
        == 1
    )
    graded = grade(broken, select_responses(read_journal(tmp_path / "journal"), "vsi_bench"))
    assert (
        graded.audit["failed"] == 0.1
        and graded.audit["failures"] == {"MediaError": 1}
        and graded.audit["scored"] == 10
    )
    assert graded.scores == [0.0 if row["id"] == 3 else 1.0 for row in broken.records]
    assert pending_samples([broken], settings, Journal(tmp_path).entries())[0].key == (
        "vsi_bench",
        "plain",
        "3",
        0,
    )  # tried again when the run goes on


@dataclass(frozen=True)
class Fragile(Fake):
    """Breaks on a whole batch that holds an unlucky row, and on that row alone."""

    def generate(self, requests):
        for request in requests:
            if request.prompt.row.id.endswith("/5"):
                raise RuntimeError("out of memory")
            yield Completion(request, 0, [1], [-0.5], "A", "length")


def test_an_engine_that_fails_is_tried_row_by_row(tmp_path, fixture_data):
    data = fixture_data("vsi_bench")
    assert generated(tmp_path, data, GenerationSettings(max_tokens=1), Fragile()) == 1
    entries = read_journal(tmp_path / "journal")
    assert len(entries) == 10 and [e.id for e in entries.values() if e.error] == ["5"]
    graded = grade(data, select_responses(entries, "vsi_bench"))
    assert graded.audit["truncated"] == 0.9 and graded.responses[0][0].confidence == pytest.approx(0.606531)


def slow(request, index):
    time.sleep(0.004)
    return speak(request, index)


def child(folder, data, settings):
    generated(folder, data, settings, Fake(function=slow))


def kill_at_random(folder, target, kills, lines):
    """Run `target` in a forked child and SIGKILL it `kills` times, each time after a few more journal
    lines."""
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


def test_a_run_killed_five_times_ends_as_an_undisturbed_one(tmp_path, fixture_data):
    data, settings = (
        fixture_data("vsi_bench"),
        GenerationSettings(samples=8, temperature=1.0, max_tokens=8, batch=16),
    )
    generated(tmp_path / "whole", data, settings)
    folder = tmp_path / "killed"

    def lines():
        return sum(path.read_bytes().count(b"\n") for path in (folder / "journal").glob("*.jsonl"))

    kill_at_random(folder, lambda: child(folder, data, settings), 5, lines)
    assert 0 < len(read_journal(folder / "journal")) < 80
    generated(folder, data, settings)
    assert responses(folder) == responses(tmp_path / "whole")
    assert select_responses(read_journal(folder / "journal"), "vsi_bench").keys() == {
        str(i) for i in range(10)
    }


@pytest.fixture(scope="module")
def tiny():
    """The tiny Qwen2.5-VL on the in-process engine."""
    torch = pytest.importorskip("torch")
    from vlrl.eval.model import open_model

    torch.set_num_threads(1)
    return open_model("tiny_qwen2_5_vl", {"name": "hf"})


@pytest.mark.parametrize("name", ["mathvista", "vsi_bench"])
def test_a_real_model_killed_and_resumed(tmp_path, fixture_data, tiny, name):
    data, settings = fixture_data(name), GenerationSettings(samples=4, temperature=1.0, max_tokens=6, batch=8)

    def run(folder):
        journal = Journal(folder)
        return generate_responses(
            tiny.engine, pending_samples([data], settings, journal.entries()), settings, journal, tiny.policy
        )

    assert run(tmp_path / "whole") == 0
    folder = tmp_path / "killed"

    def lines():
        return sum(path.read_bytes().count(b"\n") for path in (folder / "journal").glob("*.jsonl"))

    kill_at_random(folder, lambda: run(folder), 2, lines)
    run(folder)
    whole, killed = read_journal(tmp_path / "whole" / "journal"), read_journal(folder / "journal")
    assert {key: (e.response, e.input) for key, e in whole.items()} == {
        key: (e.response, e.input) for key, e in killed.items()
    }
    entry = whole[name, "plain", data.ids[0], 0]
    assert entry.input["tokens"] > 20 and len(entry.input["media"]) == 1
    assert len(json.dumps(entry.input)) < 600


def test_confidence_is_the_geometric_mean(fixture_data):
    from vlrl.eval.generate import PendingSample, _entry

    data = fixture_data("mathvista")
    completion = Completion(
        SimpleNamespace(prompt=SimpleNamespace(key="k", images=(), videos=())),
        0,
        [1, 2],
        [-1.0, -3.0],
        "x",
        "stop",
    )
    assert _entry(PendingSample(data, 0, "plain", 0), completion, None).confidence == pytest.approx(0.135335)
