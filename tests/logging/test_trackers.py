"""Trackers of a run: what they are told, after a resume too, and what happens where one fails. Those whose
library is installed are read back with that library."""

from __future__ import annotations

import json
import logging
import struct
import threading
from importlib.util import find_spec

import pytest

from vlrl.config.trackers import TRACKERS, check_trackers
from vlrl.logging import tracker_libraries
from vlrl.logging.recorder import Recorder
from vlrl.logging.tracker_libraries import LIBRARIES, markdown
from vlrl.logging.trackers import MARKS, RolloutTable, Tracker, Trackers
from vlrl.plugins.registry import ConfigError

CONFIG = {
    "steps": 7,
    "output": "runs/test",
    "rewards": {"exact": {"name": "exact", "weight": 1.0}},
    "engine": {"name": "openai", "api_key": "sk-abcdefghijklmnop1234"},
    "watch": {"rollouts_every": 2},
}


class ToldTracker(Tracker):
    """Keeps what it is told."""

    def __init__(self, fails_at=None):
        self.fails_at = fails_at
        self.run, self.steps, self.heldout, self.tables, self.ended = None, [], [], [], False
        self.threads = set()

    def start(self, run):
        self.run = run

    def log(self, step, values, table):
        if step == self.fails_at:
            raise RuntimeError("the server\nis gone")
        self.threads.add(threading.get_ident())
        self.steps.append((step, values))
        if table:
            self.tables.append((step, table))

    def scores(self, step, scores):
        self.heldout.append((step, scores))

    def finish(self):
        self.ended = True


@pytest.fixture
def told(monkeypatch):
    """Trackers of two libraries are told trackers: {name: [one for each start]}."""
    made = {"tensorboard": [], "wandb": []}

    def use(name, **options):
        def make():
            made[name].append(ToldTracker(**options))
            return made[name][-1]

        monkeypatch.setitem(LIBRARIES, name, make)

    monkeypatch.setattr(tracker_libraries, "check_trackers", lambda names: None)
    use("tensorboard")
    use("wandb")
    made["use"] = use
    return made


def run(folder, steps, trackers, groups=(), back_to=None, **options):
    recorder = Recorder(folder, CONFIG, trackers=trackers, tracker_rollouts=3, **options)
    if back_to is None:
        recorder.event("heldout", name="start", scores={"digits": 0.25})
    else:
        recorder.rewind(back_to)
    for step in steps:
        metrics = {"reward/total": step / 4, "pass@2": 0.5, "kl": float("nan")}
        recorder.step(step, "rl", metrics, {"step": 0.5}, groups)
    return recorder


def finished(recorder):
    recorder.event("heldout", name="final", scores={"digits": 0.75})
    recorder.close()


def test_a_tracker_gets_numbers_seconds_scores_and_the_config_without_secrets(told, tmp_path):
    finished(run(tmp_path, [1, 2], ["wandb"]))
    (one,) = told["wandb"]
    assert one.steps == [
        (step, {"reward/total": step / 4, "pass@2": 0.5, "seconds/step": 0.5}) for step in (1, 2)
    ]
    assert one.heldout == [(0, {"heldout/start/digits": 0.25}), (2, {"heldout/final/digits": 0.75})]
    assert one.ended and one.threads != {threading.get_ident()}
    assert one.run.name == tmp_path.name
    assert one.run.config["rewards"] == CONFIG["rewards"]
    assert "sk-abc" not in json.dumps(one.run.config)


def test_a_table_has_the_first_rollouts_and_their_pictures(told, tmp_path, make_group, picture):
    groups = [make_group([1.0, 0.0], ["x" * 3000, "b"], images=[picture(1, (900, 600))]), make_group()]
    run(tmp_path, [1, 2], ["wandb"], groups).close()
    ((step, table),) = told["wandb"][0].tables
    assert step == 2 and len(table.rows) == 3
    first = dict(zip(table.columns, table.rows[0], strict=True))
    assert (first["id"], first["reward"], first["reward/format"], first["advantage"]) == (
        "row-1",
        1.0,
        1.0,
        0.5,
    )
    assert first["completion"] == "x" * 2000 + " ..." and first["answer"] == '"7"'
    assert [data[:2] if data else None for data in table.pictures] == [b"\xff\xd8", b"\xff\xd8", None]


def test_no_rollouts_reach_a_tracker_that_is_to_get_none(told, tmp_path, make_group):
    config = {**CONFIG, "watch": {}}
    recorder = Recorder(tmp_path, config, trackers=["wandb"], tracker_rollouts=0)
    recorder.step(1, "rl", {}, {}, [make_group()])
    recorder.close()
    assert told["wandb"][0].tables == [] and (tmp_path / "rollouts" / "step-000001.parquet").is_file()


def test_a_resumed_run_goes_on_and_doubles_no_step(told, tmp_path):
    names = ["tensorboard", "wandb"]
    run(tmp_path, range(1, 6), names).close()
    finished(run(tmp_path, range(4, 8), names, back_to=3))
    for name in names:
        first, second = told[name]
        assert first.run.id == second.run.id and len(first.run.id) == 20
        assert [step for step, _ in first.steps] == [1, 2, 3, 4, 5]
        assert [step for step, _ in second.steps] == [6, 7]
        assert first.heldout == [(0, {"heldout/start/digits": 0.25})]
        assert second.heldout == [(7, {"heldout/final/digits": 0.75})]


def test_a_tracker_that_is_added_later_gets_the_steps_before(told, tmp_path):
    run(tmp_path, range(1, 4), []).close()
    run(tmp_path, range(4, 6), ["wandb"], back_to=3).close()
    assert told["wandb"][0].steps == [
        (step, {"reward/total": step / 4, "pass@2": 0.5, "seconds/step": 0.5}) for step in range(1, 6)
    ]


def test_a_tracker_that_fails_ends_no_run_is_said_once_and_catches_up(told, tmp_path, caplog):
    told["use"]("tensorboard", fails_at=2)
    with caplog.at_level(logging.WARNING):
        finished(run(tmp_path, range(1, 5), ["tensorboard", "wandb"]))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and said[0].startswith(
        "tracker tensorboard failed and gets no more of this run: RuntimeError: the server is gone; "
    )
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["message"] for event in events if event["kind"] == "warning"] == said
    assert [step for step, _ in told["tensorboard"][0].steps] == [1]
    assert [step for step, _ in told["wandb"][0].steps] == [1, 2, 3, 4] and told["wandb"][0].ended
    told["use"]("tensorboard")
    run(tmp_path, [5], ["tensorboard"], back_to=4).close()
    assert [step for step, _ in told["tensorboard"][1].steps] == [2, 3, 4, 5]


@pytest.mark.parametrize("error", [OSError("no space"), SystemExit(3)])
def test_a_tracker_that_does_not_start_ends_no_run(told, tmp_path, monkeypatch, error):
    def start(self, run):
        raise error

    monkeypatch.setattr(ToldTracker, "start", start)
    recorder = run(tmp_path, [1], ["wandb"])
    finished(recorder)
    assert told["wandb"][0].steps == [] and not told["wandb"][0].ended
    assert "tracker wandb failed" in (tmp_path / "events.jsonl").read_text()


def test_a_tracker_that_hangs_is_left_behind(tmp_path):
    held = threading.Event()

    class HangingTracker(ToldTracker):
        def log(self, step, values, table):
            held.wait(60)

    trackers = Trackers({"wandb": HangingTracker()}, tmp_path, {})
    trackers.begin(list)
    trackers.log(1, {"loss": 1.0})
    trackers.close(seconds=0.2)
    assert trackers.take_failures() == [
        "trackers (wandb) did not finish within 0.2 s and may lack the last steps; `--resume` sends them"
    ]
    held.set()


def test_damaged_marks_begin_a_new_run(tmp_path):
    ids = set()
    for text in ("", "{", "[]", '{"id": 3}', '{"id": "x", "sent": {"a": "b"}, "scores": {}}'):
        (tmp_path / MARKS).write_text(text)
        tracker = ToldTracker()
        trackers = Trackers({"wandb": tracker}, tmp_path, {})
        trackers.begin(list)
        trackers.close()
        ids.add(tracker.run.id)
        assert json.loads((tmp_path / MARKS).read_text())["id"] == tracker.run.id
    assert len(ids) == 5


def test_other_ranks_start_no_tracker(told, tmp_path):
    finished(run(tmp_path / "none", [1], ["wandb"], main=False))
    assert told["wandb"] == [] and not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_library_names_the_extra_that_mends_it(name, monkeypatch):
    monkeypatch.setattr("vlrl.config.trackers.find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"'{name}' needs its package: pip install .*\[{name}\]'"):
        check_trackers([name])


def test_a_tracker_is_named_once(monkeypatch):
    monkeypatch.setattr("vlrl.config.trackers.find_spec", lambda package: True)
    with pytest.raises(ConfigError, match="wandb is named twice"):
        check_trackers(["wandb", "wandb"])
    assert set(LIBRARIES) == set(TRACKERS)


def test_markdown_keeps_bars_and_lines_in_their_cells():
    table = RolloutTable(("a", "b"), (("x|y\nz", 0.123456), ("<b>", None)), (None, None))
    assert markdown(table).splitlines() == [
        "| a | b |",
        "|---|---|",
        "| x&#124;y<br>z | 0.1235 |",
        "| &lt;b&gt; | None |",
    ]


# --- the real libraries: what a reader of theirs finds after a run that was killed and resumed --------------


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    tags = reader.Tags()
    numbers = {name: [(p.step, p.value) for p in reader.Scalars(name)] for name in tags["scalars"]}
    texts = {
        name: [(p.step, p.tensor_proto.string_val[0].decode()) for p in reader.Tensors(name)]
        for name in tags["tensors"]
    }
    pictures = [event.step for name in tags["images"] for event in reader.Images(name)]
    return numbers, texts["config/text_summary"][0][1], texts["rollouts/text_summary"], pictures


def read_wandb(folder):
    from wandb.proto import wandb_internal_pb2

    numbers, tables, config, ids = {}, [], {}, set()
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for data in level_log(path):
            record = wandb_internal_pb2.Record.FromString(data)
            for item in record.run.config.update:
                config[item.key] = json.loads(item.value_json)
            if record.run.run_id:
                ids.add(record.run.run_id)
            values = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            for item in record.summary.update:
                if item.key.startswith("heldout/"):
                    numbers[item.key] = [(None, json.loads(item.value_json))]
            if record.history.item:
                step = int(values.pop("_step", record.history.step.num))
                for name, text in values.items():
                    value = json.loads(text)
                    if isinstance(value, (int, float)):
                        numbers.setdefault(name, []).append((step, value))
                    elif name == "rollouts.path":
                        tables.append((step, (path.parent / "files" / value).read_text()))
    assert len(ids) == 1
    staged = (path for path in (folder / "wandb" / "artifacts" / "staging").iterdir() if path.is_file())
    pictures = [path for path in staged if path.read_bytes()[1:4] == b"PNG"]  # for `wandb sync`
    return numbers, json.dumps(config), tables, pictures


def level_log(path):
    """The records of a file of W&B: blocks of 32 KiB of (checksum, length, kind, data), after 7 bytes."""
    data = path.read_bytes()
    at, record = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def read_mlflow(folder):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{(folder / 'mlflow' / 'mlflow.db').resolve()}")
    (found,) = client.search_runs([client.get_experiment_by_name("vlrl").experiment_id])
    assert found.info.status == "FINISHED" and found.data.params["rewards.exact.name"] == "exact"
    numbers = {
        name.replace("pass_2", "pass@2"): [
            (p.step, p.value) for p in client.get_metric_history(found.info.run_id, name)
        ]
        for name in found.data.metrics
    }
    (config,) = (folder / "mlflow").rglob("config.json")
    tables = [
        (int(path.stem[5:]), path.read_text())
        for path in sorted((folder / "mlflow").rglob("rollouts/step-*.json"))
    ]
    return numbers, config.read_text(), tables, [*(folder / "mlflow").rglob("*.png")]


def read_trackio(folder):
    from trackio.sqlite_storage import SQLiteStorage

    (name,) = SQLiteStorage.get_runs("vlrl")
    numbers, tables = {}, []
    for line in SQLiteStorage.get_logs("vlrl", name):
        for key, value in line.items():
            if isinstance(value, (int, float)) and key != "step":
                numbers.setdefault(key, []).append((line["step"], value))
            elif key == "rollouts":
                tables.append((line["step"], json.dumps(value)))
    pictures = [*(folder / "trackio").rglob("*.png")]
    return numbers, json.dumps(SQLiteStorage.get_run_config("vlrl", name)), tables, pictures


def read_swanlab(folder):
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    numbers, tables, config, ids = {}, [], "", set()
    for path in sorted((folder / "swanlab").glob("run-*/*.swanlab")):
        ids.add(path.stem)
        config = (path.parent / "files" / "config.yaml").read_text()
        reader = DataStoreReader()
        reader.open(path)
        for data in reader:
            record = Record.FromString(data)
            if record.HasField("scalar"):
                one = record.scalar
                numbers.setdefault(one.key, []).append((one.step, one.value.number))
        reader.close()
        tables += [(int(f.name[:3]), f.read_text()) for f in sorted((path.parent / "media/text").iterdir())]
    assert len(ids) == 1
    return numbers, config, tables, [*(folder / "swanlab").rglob("media/image/*")]


READERS = {
    "mlflow": read_mlflow,
    "swanlab": read_swanlab,
    "tensorboard": read_tensorboard,
    "trackio": read_trackio,
    "wandb": read_wandb,
}


@pytest.mark.parametrize("name", TRACKERS)
def test_the_library_holds_a_resumed_run_once(name, tmp_path, make_group, picture, monkeypatch, capfd):
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.delenv("WANDB_DATA_DIR", raising=False)
    group = make_group([1.0, 0.0], ["<b>7</b>", "8"], images=[picture(3, (60, 40))])
    run(tmp_path, range(1, 6), [name], [group]).close()
    finished(run(tmp_path, range(4, 8), [name], [group], back_to=3))
    assert json.loads((tmp_path / MARKS).read_text())["sent"] == {name: 7}, capfd.readouterr().err
    assert capfd.readouterr() == ("", ""), "libraries print nothing"
    numbers, config, tables, pictures = READERS[name](tmp_path)
    assert numbers["reward/total"] == [(step, step / 4) for step in range(1, 8)]
    assert numbers["pass@2"] == [(step, 0.5) for step in range(1, 8)]
    assert numbers["seconds/step"] == [(step, 0.5) for step in range(1, 8)]
    assert "kl" not in numbers
    assert [value for _, value in numbers["heldout/start/digits"]] == [0.25]
    assert [value for _, value in numbers["heldout/final/digits"]] == [0.75]
    assert '"exact"' in config or "name: exact" in config
    assert [step for step, _ in tables] == [2, 4, 6]
    assert all("row-1" in text and "7" in text for _, text in tables)
    assert pictures
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"sk-abcdefghijklmnop1234" not in path.read_bytes(), path
