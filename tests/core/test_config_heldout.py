"""`heldout` in a training source stands for an entry of `data.heldout`."""

import pytest

from vlrl.config import load
from vlrl.plugins.registry import ConfigError


def data(tmp_path, text, *overrides):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    return load([file], overrides).tree["data"]


SUMS = "data: {train: {sums: {name: lab_arithmetic, terms: 3, weight: 2.0, heldout: 20}}}"


def test_rows_of_the_same_source(tmp_path):
    found = data(tmp_path, SUMS)
    assert found["train"] == {"sums": {"name": "lab_arithmetic", "terms": 3, "weight": 2.0}}
    assert found["heldout"] == {
        "sums": {"name": "lab_arithmetic", "terms": 3, "split": "heldout", "count": 20}
    }


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("{}", {"terms": 3, "split": "heldout"}),
        ("{count: 4, terms: 2}", {"terms": 2, "split": "heldout", "count": 4}),
        ("{split: train, seed: 1}", {"terms": 3, "split": "train", "seed": 1}),
    ],
)
def test_other_fields_may_differ(tmp_path, stated, expected):
    text = SUMS.replace("20", stated)
    assert data(tmp_path, text)["heldout"]["sums"] == {"name": "lab_arithmetic", **expected}


def test_another_file(tmp_path):
    text = (
        "data: {train: {mine: {name: files, path: a.jsonl, task: sums, heldout: {path: b.jsonl, limit: 9}}}}"
    )
    found = data(tmp_path, text)
    assert found["heldout"]["mine"] == {"name": "files", "path": "b.jsonl", "task": "sums", "limit": 9}


def test_what_data_heldout_states_wins(tmp_path):
    text = (
        "data:\n  train: {sums: {name: lab_arithmetic, heldout: 20}}\n  heldout: {sums: {count: 7, seed: 3}}"
    )
    assert data(tmp_path, text)["heldout"]["sums"] == {
        "name": "lab_arithmetic",
        "split": "heldout",
        "count": 7,
        "seed": 3,
    }
    assert data(tmp_path, SUMS, "data.heldout.sums.count=5")["heldout"]["sums"]["count"] == 5
    assert "heldout" not in data(tmp_path, SUMS, "data.heldout=null")
    assert data(tmp_path, SUMS, "data.train.sums.heldout=null")["heldout"] == {}


def test_a_later_file_or_override_changes_both(tmp_path):
    (tmp_path / "base.yaml").write_text(SUMS)
    text = "extends: [base]\ndata: {train: {sums: {terms: 5, heldout: {}}}}"
    found = data(tmp_path, text)
    assert found["train"]["sums"]["terms"] == found["heldout"]["sums"]["terms"] == 5
    assert found["heldout"]["sums"]["count"] == 20
    found = data(tmp_path, text, "data.train.sums.heldout=3", "data.train.sums.terms=4")
    assert found["heldout"]["sums"] == {"name": "lab_arithmetic", "terms": 5, "split": "heldout", "count": 3}
    found = data(tmp_path, SUMS, "data.train.other={name: lab_chains, heldout: 9}")
    assert found["heldout"]["other"] == {"name": "lab_chains", "split": "heldout", "count": 9}


def test_inside_a_phase(tmp_path):
    text = f"phases:\n  rl:\n    {SUMS}\n  more: {{}}"
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    config = load([file])
    assert config.phase("rl")["data"]["heldout"]["sums"]["count"] == 20
    assert "data" not in config.phase("more")


def test_what_is_no_number_of_rows_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data.train.sums.heldout: expected a number of rows.*mine.yaml:1"):
        data(tmp_path, SUMS.replace("20", "many"))
    with pytest.raises(ConfigError, match="heldout: expected a number of rows"):
        data(tmp_path, SUMS.replace("20", "true"))
    with pytest.raises(ConfigError, match="split"):  # the source has none
        data(tmp_path, "data: {train: {mine: {name: files, path: a.jsonl, heldout: 5}}}")
