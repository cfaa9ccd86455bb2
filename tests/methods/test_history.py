"""Rows chosen by their past accuracies: scores by hand, the choice, a restart, the tool, two phases."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import yaml
from make import end_step, group, run
from tiny import steps, text_run
from typer.testing import CliRunner

from vlrl.methods.core.prompt_sampler import KEY, ByHistory, ShuffleWithHistory
from vlrl.methods.core.select import Listed
from vlrl.plugins.registry import ConfigError, names
from vlrl.plugins.stages import Source
from vlrl.trainer.step.loop import train_step
from vlrl.types import Row

ROWS = [Row(f"r{i}", f"q{i}") for i in range(6)]
# two visits are common to all: mean curve (0.25, 0.75); sum of (1 - m)^2 = 0.5625 + 0.0625 = 0.625
PAST = {"r0": [0.0, 1.0, 0.0], "r1": [0.0, 0.5], "r2": [1.0, 1.0], "r3": [0.0, 0.5]}
ALIGNMENT = {
    "r0": 1 - 0.125 / 0.625,
    "r1": 1 - 0.125 / 0.625,
    "r2": 1 - 0.625 / 0.625,
    "r3": 1 - 0.125 / 0.625,
}
SPREAD = {"r0": math.sqrt(2) / 3, "r1": 0.25, "r2": 0.0, "r3": 0.25}


def chooser(past=None, **fields):
    made = ByHistory(**fields)
    history = {row: {KEY: values} for row, values in (PAST if past is None else past).items()} | {
        "r5": {"other": 1}
    }
    made.setup(run(rows={"main": ROWS}, history=history, seed=3))
    return made


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ALIGNMENT),
        ({"low": 0.6}, {row: ALIGNMENT[row] for row in ("r0", "r1", "r3")}),
        ({"score": "spread"}, SPREAD),
        ({"score": "spread", "top": 1}, {"r0": SPREAD["r0"]}),
        ({"score": "spread", "top": 2, "high": 0.3}, {"r1": 0.25, "r3": 0.25}),
        ({"score": "accuracy"}, {"r0": 1 / 3, "r1": 0.25, "r2": 1.0, "r3": 0.25}),
    ],
)
def test_scores_by_hand(fields, expected):
    chosen = ByHistory(**fields).choose(PAST)
    assert chosen == pytest.approx(expected)
    assert list(chosen) == sorted(chosen, key=lambda row: (-chosen[row], row))


def test_all_correct_from_the_start_is_aligned():
    assert ByHistory().choose({"a": [1.0], "b": [1.0]}) == {"a": 1.0, "b": 1.0}


def test_rounds_copies_and_restart():
    made = chooser(score="accuracy", favour=0.9, copies=3)
    first = [row.id for row in made(6)]
    assert sorted(first) == ["r0", "r1", "r2", "r2", "r2", "r3"] and made.metrics() == {"data/chosen": 6.0}
    made(2)
    again = chooser(score="accuracy", favour=0.9, copies=3)
    again.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert [row.id for row in again(7)] == [row.id for row in made(7)]
    assert {row.id for row in chooser(score="spread", top=1)(5)} == {"r0"}  # one row fills the batch


@pytest.mark.parametrize(
    ("past", "fields", "words"),
    [
        ({}, {}, "no row was visited"),
        ({"gone": [1.0, 0.5]}, {}, "same data.train"),
    ],
)
def test_nothing_left_says_why(past, fields, words):
    with pytest.raises(ConfigError, match=words):
        chooser(past, **fields)(1)


def test_no_row_within_the_bounds_takes_the_nearest():
    told = []
    made = chooser(low=0.95)
    made.run.warn = told.append
    assert {row.id for row in made(9)} == {"r0", "r1", "r3"} and "3 nearest are taken, at 0.800" in told[0]
    with pytest.raises(ConfigError, match="4 rows have scores from 0.000 to 0.800"):
        ByHistory(low=0.95).choose(PAST)  # the command line tool still refuses


def test_a_score_without_two_visits_says_so():
    told = []
    made = chooser({"r1": [1.0], "r2": [0.0]}, score="spread", top=1)
    made.run.warn = told.append
    assert {row.id for row in made(3)} == {"r1"} and "visits_per_row: 2" in told[0]


def test_rows_of_one_visit_do_not_hide_the_others():
    assert set(ByHistory().choose({**PAST, "r4": [1.0]})) == set(PAST) and set(
        ByHistory(score="spread").choose({**PAST, "r4": [1.0]})
    ) == set(PAST)


def test_a_short_phase_visits_fewer_rows_in_whole_epochs():
    """3 steps of 2 rows: two visits of 3 of the 6 rows; 6 steps reach all of them twice."""
    for steps_, rows in ((3, 3), (6, 6)):
        told = []
        made = run(
            rows={"main": ROWS},
            source_weights={},
            seed=0,
            settings=SimpleNamespace(steps=steps_, prompts_per_step=2),
            warn=told.append,
        )
        sampler = ShuffleWithHistory(visits_per_row=2)
        sampler.setup(made)
        drawn = [row.id for _ in range(steps_) for row in sampler(2)]
        assert (
            len(set(drawn[:rows])) == rows
            and sorted(drawn[:rows]) == sorted(drawn[rows:])
            and len(told) == (rows < 6)
        )
    with pytest.raises(ConfigError, match="visits"):
        ShuffleWithHistory(visits_per_row=-1)


@pytest.mark.parametrize("fields", [{"score": "luck"}, {"top": -1}, {"copies": 0}, {"low": 1.0, "high": 0.0}])
def test_bad_settings(fields):
    with pytest.raises(ConfigError, match="sampler"):
        ByHistory(**fields)


def test_visits_are_recorded():
    made = run(rows={"main": ROWS}, source_weights={}, seed=0)
    sampler = ShuffleWithHistory()
    sampler.setup(made)
    end_step(sampler, [group(5.0, 5.0, name="r1", raw={"acc": [1.0, 0.0]}), group(name="r2")])
    end_step(sampler, [group(5.0, name="r1", raw={"acc": [1.0]})])
    assert made.history == {"r1": {KEY: [0.5, 1.0]}}


def test_listed_rows():
    assert [row.id for row in Listed(("r4", "r1", "elsewhere"))(ROWS)] == ["r1", "r4"]
    with pytest.raises(ConfigError, match="none of the 1 listed ids"):
        Listed(("x",))(ROWS)
    with pytest.raises(ConfigError, match="vlrl data select"):
        Listed(())


def test_the_tool_writes_a_config(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    names(Source)  # vlrl_data is on the path
    from vlrl_data.cli import app

    table = [
        {"id": row, "step": step + 1, "reward": value}
        for row, values in PAST.items()
        for step, value in enumerate(values)
    ]
    table += [{"id": "r0", "step": 1, "reward": 1.0}]  # r0's first visit is now (0 + 1) / 2
    (tmp_path / "rollouts").mkdir()
    pq.write_table(pa.Table.from_pylist(table[::-1]), tmp_path / "rollouts" / "step-000001.parquet")
    out = tmp_path / "chosen.yaml"
    told = CliRunner().invoke(
        app, ["select", str(tmp_path), "--score", "spread", "--top", "2", "-o", str(out)]
    )
    assert told.exit_code == 0 and "2 of 4 rows" in told.output and "kept no rollouts" not in told.output
    assert yaml.safe_load(out.read_text()) == {
        "select": {"chosen": {"name": "listed", "ids": ["r0", "r1"]}}
    }  # r0: std of 0.5, 1, 0
    (tmp_path / "rollouts" / "step-000001.parquet").rename(tmp_path / "rollouts" / "step-000010.parquet")
    assert (
        "9 steps kept no rollouts"
        in CliRunner().invoke(app, ["select", str(tmp_path), "-o", str(out)]).output
    )


@pytest.mark.parametrize(("method", "rows"), [("lim", 4.0), ("1_shot_rlvr", 1.0)])
def test_the_second_phase_trains_on_what_the_first_saw(method, rows):
    made = text_run([f"methods/{method}"], ["data.train.arithmetic.count=4", "phases.rl.steps=2"])
    for _ in range(2):
        train_step(made)
        made.phase_step += 1
    assert sum(len(memory[KEY]) for memory in made.history.values()) == 8
    assert {len(memory[KEY]) for memory in made.history.values()} == {2}
    made.phase_step = 0
    made.use(1)
    made.enter(1)
    assert 1 <= steps(made, 1)[0]["data/chosen"] <= rows
