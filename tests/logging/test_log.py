import io
import json
import math

import pytest
from PIL import Image

from vlrl.logging.recorder import Recorder
from vlrl.logging.rollouts import read
from vlrl.plugins.registry import ConfigError
from vlrl.services.files import read_jsonl

CONFIG = {"steps": 5, "output": "runs/test", "watch": {"rollouts_every": 1}}


def record(folder, steps, groups=(), **options):
    recorder = Recorder(folder, CONFIG, **options)
    for step in steps:
        recorder.step(
            step,
            "rl",
            {"reward/total": step / 3, "loss": 1.0 / (step + 1), "tokens": 12},
            {"step": 0.5, "train": 0.2},
            groups,
        )
    return recorder


def test_metrics_are_deterministic_and_hold_no_clock(tmp_path):
    for name in ("a", "b"):
        record(tmp_path / name, range(3)).close()
    first = (tmp_path / "a" / "metrics.jsonl").read_bytes()
    assert first == (tmp_path / "b" / "metrics.jsonl").read_bytes()
    assert read_jsonl(tmp_path / "a" / "metrics.jsonl")[1] == {
        "step": 1,
        "phase": "rl",
        "loss": 0.5,
        "reward/total": 1 / 3,
        "tokens": 12,
    }
    times = read_jsonl(tmp_path / "a" / "timings.jsonl")
    assert [row["seconds"] for row in times] == [{"step": 0.5, "train": 0.2}] * 3
    assert times[0]["time"] <= times[2]["time"]


@pytest.mark.parametrize("checkpoint", [-1, 0, 2])
@pytest.mark.parametrize("torn", [False, True])
def test_a_killed_and_resumed_run_leaves_the_same_file(tmp_path, make_group, checkpoint, torn):
    groups = [make_group()]
    record(tmp_path / "whole", range(6), groups).close()
    killed = record(tmp_path / "killed", range(4), groups)
    killed.event("heldout", name="x", scores={"digits": 0.5})
    killed.flush()
    if torn:
        with (tmp_path / "killed" / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4, "phase": "r')
    resumed = Recorder(tmp_path / "killed", CONFIG)
    resumed.rewind(checkpoint)
    kept = sorted(path.name for path in (tmp_path / "killed" / "rollouts").iterdir())
    assert kept == [f"step-{step:06d}.parquet" for step in range(checkpoint + 1)]
    for step in range(checkpoint + 1, 6):
        resumed.step(
            step, "rl", {"reward/total": step / 3, "loss": 1.0 / (step + 1), "tokens": 12}, {}, groups
        )
    resumed.close()
    assert (tmp_path / "killed" / "metrics.jsonl").read_bytes() == (
        tmp_path / "whole" / "metrics.jsonl"
    ).read_bytes()
    assert read_jsonl(tmp_path / "killed" / "events.jsonl") == []


def test_a_step_is_never_written_twice(tmp_path):
    record(tmp_path, range(3)).close()
    with pytest.raises(ValueError, match=r"step 2 is already in .*metrics\.jsonl.*resume"):
        record(tmp_path, [2])


def test_torn_lines_are_skipped_and_named_and_gone_after_a_resume(tmp_path, caplog):
    good = [{"step": 0, "phase": "rl", "loss": 1.5}, {"step": 1, "phase": "rl", "loss": 1.25}]
    torn = ["rubbish", '{"step": 1, "pha', "[1, 2]", '{"stop": 7, "phase": "rl"}', "\0" * 20]
    lines = [json.dumps(good[0]), *torn, json.dumps(good[1]), '{"step": 2, "phase"']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))  # without a newline at the end
    recorder = Recorder(tmp_path, CONFIG)
    assert "metrics.jsonl: 6 torn lines (2, 3, 4, 5, 6 ...)" in caplog.text
    recorder.step(2, "rl", {"loss": 1.0}, {})
    assert [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl", {"step": int})] == [
        0,
        1,
        2,
    ]  # the torn last line did not swallow the new one
    recorder.rewind(1)
    recorder.close()
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(json.dumps(row) + "\n" for row in good)


def test_events_after_the_checkpoint_are_cut_though_their_step_is_its_own(tmp_path):
    recorder = Recorder(tmp_path, CONFIG)
    recorder.step(1, "rl", {}, {})
    recorder.event("warning", message="before")
    known = recorder.events
    recorder.event("heldout", name="final", scores={"a": 1.0})
    recorder.close()
    again = Recorder(tmp_path, CONFIG)
    again.rewind(1, known)
    again.event("heldout", name="final", scores={"a": 1.0})
    again.close()
    assert [row["kind"] for row in read_jsonl(tmp_path / "events.jsonl")] == [
        "warning",
        "heldout",
    ] and again.events == 2


def test_numbers_that_json_lacks_are_null(tmp_path):
    recorder = Recorder(tmp_path, CONFIG)
    recorder.step(0, "rl", {"loss": math.nan, "kl": math.inf, "count": 3, "flag": True}, {})
    recorder.close()
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line) == {"step": 0, "phase": "rl", "count": 3, "flag": 1, "kl": None, "loss": None}
    assert "NaN" not in line


def test_events_carry_the_step_and_odd_line_breaks_survive(tmp_path):
    recorder = record(tmp_path, [4])
    recorder.event("warning", text="a\u2028b\nc")
    recorder.close()
    assert read_jsonl(tmp_path / "events.jsonl") == [
        {"step": 4, "phase": "rl", "kind": "warning", "text": "a\u2028b\nc"}
    ]


def test_rollouts_hold_everything_and_one_copy_of_the_picture(tmp_path, make_group, picture):
    image = picture(3, (320, 320))
    texts = ["<answer>[10, 20, 30, 40]</answer>"] + ["no box"] * 7
    group = make_group([1.0] + [0.0] * 7, texts, answer=[2, 4, 60, 80], images=[image], task="grounding")
    del group.rollouts[1].rewards["format"]
    group.rollouts[0].signals["entropy"] = [0.5, 1.5, 1.0]
    group.rollouts[0].info["parts"] = {"iou": 0.25}
    record(tmp_path, [7], [group]).close()
    path = tmp_path / "rollouts" / "step-000007.parquet"
    rows = read(path)
    assert len(rows) == 8 and image.loads == 1
    first = rows[0]
    assert (first["step"], first["phase"], first["task"], first["id"], first["index"]) == (
        7,
        "rl",
        "grounding",
        "row-1",
        0,
    )
    assert (first["reward"], first["reward/accuracy"], first["reward/format"], first["advantage"]) == (
        1.0,
        1.0,
        1.0,
        0.875,
    )
    assert rows[1]["reward/format"] is None and (first["part/iou"], rows[1]["part/iou"]) == (0.25, None)
    assert first["prompt"] == "user: <image>Which digit?\nassistant: <think>"
    assert (first["completion"], first["length"], first["finish"]) == (texts[0], 3, "stop")
    assert (first["entropy"], rows[1]["entropy"]) == (1.0, None) and first["logp"] == pytest.approx(-0.2)
    assert json.loads(first["answer"]) == [2, 4, 60, 80]
    assert json.loads(first["gold_marks"]) == [{"xy": [2, 4, 60, 80], "label": ""}]
    assert json.loads(first["marks"]) == [
        {"xy": [20, 40, 60, 80], "label": ""}
    ]  # the policy saw half the pixels
    assert json.loads(rows[1]["marks"]) == []
    media = first["media"][0]
    assert (media["kind"], media["width"], media["height"]) == ("image", 320, 320)
    assert Image.open(io.BytesIO(media["bytes"])).size == (320, 320)
    assert path.stat().st_size < 2 * len(media["bytes"])


@pytest.mark.parametrize("text", ["\ud800 lone", "nul \x00", "\u2028", "𝄞 ☃", "\x1c[1, 2, 3, 4]"])
def test_any_text_can_be_kept(tmp_path, make_group, text):
    group = make_group([1.0], [text], answer={"text": text, "odd": {1, 2}}, row_id=text.replace("\ud800", ""))
    record(tmp_path, [0], [group]).close()
    (row,) = read(tmp_path / "rollouts" / "step-000000.parquet")
    assert row["completion"] == text.replace("\ud800", "?")
    assert json.loads(row["answer"])["text"] == row["completion"]


def test_a_video_becomes_a_strip_and_a_large_picture_small(tmp_path, make_group, picture):
    group = make_group(images=[picture(1, (2000, 1000))], videos=[picture(2, (40, 30), frames=9)])
    record(tmp_path, [0], [group]).close()
    large, strip = read(tmp_path / "rollouts" / "step-000000.parquet")[0]["media"]
    assert (large["width"], large["height"]) == (2000, 1000)
    assert Image.open(io.BytesIO(large["bytes"])).size == (768, 384)
    assert (strip["kind"], strip["width"], strip["height"]) == ("video", 40, 30)
    assert Image.open(io.BytesIO(strip["bytes"])).size == (4 * 40 + 3 * 4, 30)


def test_tokens_are_coloured_only_where_advantages_differ(tmp_path, make_group):
    groups = [make_group([1.0], advantages=[0.5, 0.5, -1.0]), make_group([1.0], advantages=[0.5, 0.5, 0.5])]
    record(tmp_path, [0], groups, decode=lambda ids: "".join(chr(96 + i) for i in ids)).close()
    rows = read(tmp_path / "rollouts" / "step-000000.parquet")
    assert [json.loads(row["spans"]) for row in rows] == [
        [["ab", 0.5, None, True], ["c", -1.0, None, True]],
        [],
    ]


def test_rollouts_every_n_steps_and_never(tmp_path, make_group):
    for every, expected in ((2, ["step-000000", "step-000002"]), (0, [])):
        recorder = Recorder(tmp_path / str(every), {"watch": {"rollouts_every": every}})
        for step in range(4):
            recorder.step(step, "rl", {}, {}, [make_group()])
        recorder.close()
        assert sorted(path.stem for path in (tmp_path / str(every)).glob("rollouts/*")) == expected


def test_a_picture_that_cannot_be_written_stops_the_run(tmp_path, make_group, picture):
    broken = picture(0)
    broken.size = (0, -1)
    recorder = record(tmp_path, [0], [make_group(images=[picture(1)])])
    recorder.step(1, "rl", {}, {}, [make_group(images=[broken])])
    with pytest.raises(ValueError):
        recorder.close()


def test_other_ranks_write_nothing(tmp_path, make_group):
    recorder = record(tmp_path / "none", [0], [make_group()], main=False)
    recorder.event("x")
    recorder.rewind(0)
    recorder.close()
    assert not (tmp_path / "none").exists()


def test_tensorboard_gets_the_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    record(tmp_path, range(2), trackers=["tensorboard"]).close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(next(tmp_path.glob("tensorboard/events*"))))
    reader.Reload()
    assert [(point.step, round(point.value, 4)) for point in reader.Scalars("reward/total")] == [
        (0, 0.0),
        (1, 0.3333),
    ]
    assert [point.value for point in reader.Scalars("seconds/step")] == [0.5, 0.5]


def test_an_unknown_tracker_is_refused_with_a_suggestion(tmp_path):
    with pytest.raises(ConfigError, match=r"'tensorbord'.*Did you mean 'tensorboard'"):
        Recorder(tmp_path, CONFIG, trackers=["tensorbord"])
