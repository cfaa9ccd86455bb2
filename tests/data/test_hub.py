"""Hugging Face datasets: a repository-like folder, whole, sliced and streamed; saved dictionaries of
splits."""

import shutil
from pathlib import Path

import pytest

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Source

FIXTURES = Path(__file__).parents[2] / "data" / "fixtures"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A folder with a parquet file, as a dataset repository has it."""
    monkeypatch.setenv("VLRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    (tmp_path / "repo").mkdir()
    shutil.copy(FIXTURES / "r1_v.parquet", tmp_path / "repo" / "train.parquet")
    return tmp_path / "repo"


@pytest.mark.parametrize("options", [{}, {"split": "train[:1]"}, {"stream": True, "limit": 1}])
def test_read(repository, options):
    rows = build(Source, {"name": "hub", "path": str(repository), **options})()
    assert [(row.question, row.answer, row.images[0].load().size) for row in rows] == [
        ("How many?", "1", (84, 56))
    ]
    if options.get("stream"):
        shutil.rmtree(repository)  # what was streamed is kept
        again = build(Source, {"name": "hub", "path": str(repository), **options})()
        assert [row.id for row in again] == [row.id for row in rows]


def test_streaming_needs_a_limit():
    with pytest.raises(ConfigError, match="say how many"):
        build(Source, {"name": "hub", "path": "a/b", "stream": True})


def test_saved_splits(tmp_path):
    from datasets import Dataset, DatasetDict

    saved = DatasetDict(
        {name: Dataset.from_dict({"problem": [f"{name}?"], "answer": ["x"]}) for name in ("train", "test")}
    )
    saved.save_to_disk(str(tmp_path / "both"))
    assert (
        build(Source, {"name": "hub", "path": str(tmp_path / "both"), "split": "test"})()[0].question
        == "test?"
    )
    with pytest.raises(ConfigError, match="no split 'dev'. Known: train, test"):
        build(Source, {"name": "hub", "path": str(tmp_path / "both"), "split": "dev"})()
