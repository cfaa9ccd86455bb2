"""`vlrl train`: what --overwrite replaces, wrong options, launch lines."""

import json
import os
from pathlib import Path

import pytest
import yaml

from vlrl.cli.train import answer_lines
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.checkpoints import overwrite
from vlrl.trainer.ranks.launch import Launch, deepspeed_file, find_deepspeed_config

ROOT = Path(__file__).parents[2]
TINY = [
    *(
        "base/rl",
        "models/tiny_text",
        "tasks/lab_arithmetic",
        "methods/grpo",
        "steps=1",
        "prompts_per_step=1",
        "group_size=2",
        "--quiet",
    ),
    *("sampling.max_tokens=2", "data.heldout=null", "data.train.arithmetic.count=4"),
    "policy.tiny={hidden: 16, layers: 1, heads: 2, kv_heads: 1, intermediate: 32}",
]


def old_run(folder):
    (folder / "checkpoints" / "step-000001" / "trainer").mkdir(parents=True)
    (folder / "checkpoints" / "step-000001" / "trainer" / "state.json").write_text("{}")
    for name in ("config.yaml", "metrics.jsonl", "sessions.jsonl"):
        (folder / name).write_text("{}\n")
    return folder


@pytest.mark.parametrize(
    "names",
    [
        ["notes.txt"],
        ["config.yaml"],
        ["metrics.jsonl", "thesis.tex"],
        ["src"],
        ["metrics.jsonl", "a", "b", "c", "d"],
    ],
)
def test_a_folder_that_no_run_made_is_not_overwritten(tmp_path, names):
    for name in names:
        (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="not overwritten.*another `output=`"):
        overwrite.check(tmp_path)
    assert all((tmp_path / name).read_text() == "mine" for name in names)


def test_a_link_is_not_overwritten(tmp_path):
    (tmp_path / "link").symlink_to(old_run(tmp_path / "run"))
    with pytest.raises(ConfigError, match="not overwritten"):
        overwrite.check(tmp_path / "link")


@pytest.mark.parametrize("names", [[], ["quarantine.jsonl"]])
def test_a_failed_start_is_overwritten(tmp_path, names):
    for name in names:
        (tmp_path / name).write_text("")
    overwrite.check(tmp_path)
    overwrite.check(tmp_path / "missing")
    overwrite.set_aside(tmp_path)
    assert tmp_path.is_dir() and not (tmp_path / "missing").exists()


def test_the_old_run_is_kept_until_the_new_one_has_a_checkpoint(tmp_path):
    folder = old_run(tmp_path / "run")
    overwrite.set_aside(folder)
    aside = overwrite.previous(folder)
    assert (
        list(folder.iterdir()) == []
        and (aside / "metrics.jsonl").is_file()
        and (aside / "checkpoints").is_dir()
    )
    (folder / "metrics.jsonl").write_text("a new run that fails before its first checkpoint\n")
    overwrite.set_aside(folder)
    assert list(folder.iterdir()) == [] and (aside / "metrics.jsonl").read_text() == "{}\n"
    overwrite.discard(folder)
    assert not aside.exists()


def test_a_folder_of_the_user_in_the_way_is_left_alone(tmp_path):
    folder = old_run(tmp_path / "run")
    (tmp_path / "run.previous").mkdir()
    with pytest.raises(ConfigError, match="run.previous"):
        overwrite.set_aside(folder)
    overwrite.discard(folder)
    assert (folder / "metrics.jsonl").is_file() and (tmp_path / "run.previous").is_dir()


def test_overwrite_from_the_command_line(vlrl, tmp_path):
    out = tmp_path / "run"
    assert vlrl("train", *TINY, f"output={out}")[0] == 0
    first = (out / "sessions.jsonl").read_text()
    with pytest.raises(ConfigError, match="already holds a run"):
        vlrl("train", *TINY, f"output={out}")
    with pytest.raises(ConfigError, match="no reward named 'nope'"):
        vlrl("train", *TINY, f"output={out}", "--overwrite", "rewards.x={name: nope}")
    assert (out / "sessions.jsonl").read_text() == first, "a mistake in the config deletes nothing"
    assert vlrl("train", *TINY, f"output={out}", "--overwrite")[0] == 0
    assert (
        (out / "sessions.jsonl").read_text() != first
        and not overwrite.previous(out).exists()
        and len((out / "metrics.jsonl").read_text().splitlines()) == 1
    )


@pytest.mark.parametrize(
    "words, message",
    [
        (["--steps", "20"], "no option '--steps'; settings are written without dashes: steps=20"),
        (["--lr=1e-5"], "optimizer.lr=1e-5"),
        (["--learning-rate", "3"], "no option '--learning-rate'"),
        (["--optimizer.lr", "3"], "optimizer.lr=3"),
        (["--overwite"], "Did you mean '--overwrite'"),
        (["--group-size=4"], "group_size=4"),
        (["--resume", "--overwrite"], "exclude each other"),
        (["--processes", "3", "--nodes", "2"], "multiple of --nodes"),
        (["--processes", "2", "--nodes", "2"], "--head ADDRESS"),
        (["--processes", "2", "--sharding", "zero7"], "no launch file named 'zero7'. Did you mean"),
    ],
)
def test_wrong_options(vlrl, words, message):
    with pytest.raises(ConfigError, match=message):
        vlrl("train", "quickstart", *words)


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (ROOT / "configs" / "accelerate").glob("*.yaml"))
)
def test_launch_files_find_their_deepspeed_json_from_any_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = Launch(2, name).settings()
    assert settings["num_processes"] == 2 and settings["num_machines"] == 1
    named = (
        yaml.safe_load((ROOT / "configs" / "accelerate" / f"{name}.yaml").read_text()).get("deepspeed_config")
        or {}
    ).get("deepspeed_config_file")
    assert (named is not None) == name.startswith("zero")
    if named:
        found = Path(settings["deepspeed_config"]["deepspeed_config_file"])
        assert found.is_absolute() and json.loads(found.read_text()) == json.loads((ROOT / named).read_text())
        monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", named)
        find_deepspeed_config()
        assert Path(os.environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"]) == found


def test_a_wrong_deepspeed_json_is_named():
    with pytest.raises(
        ConfigError, match=r"no file 'configs/deepspeed/zero9\.json'. Did you mean 'zero\d\.json'"
    ):
        deepspeed_file("configs/deepspeed/zero9.json")


def test_several_machines():
    settings = Launch(16, "zero3", nodes=2, rank=1, head="10.0.0.1").settings()
    assert (settings["num_processes"], settings["num_machines"], settings["machine_rank"]) == (16, 2, 1)
    assert (settings["main_process_ip"], settings["main_process_port"]) == ("10.0.0.1", 29500)


def test_held_out_answers_are_printed_one_line_each():
    before = {
        "task": "a",
        "question": "What is\n2 plus 2?\x1b[31m",
        "gold": "4",
        "text": "5\n6",
        "correct": False,
    }
    lines = answer_lines({"start": [before, before], "final": [{**before, "text": "4", "correct": True}]})
    assert (
        lines == ["held-out answers (start -> final):", "  What is 2 plus 2? [31m [4]  - '5 6' -> + '4'"]
        and answer_lines({}) == []
    )
