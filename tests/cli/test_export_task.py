"""`vlrl export-task`: the package it writes plays the task's episodes and pays the task's rewards, also
within verifiers itself."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vlrl.config import load
from vlrl.interop.verifiers_export import export_task
from vlrl.interop.verifiers_task import ExportedTask, Play
from vlrl.plugins.registry import ConfigError

BASE = ["base/rl", "models/tiny_text", "methods/grpo"]


def played(folder, turns, index=0, split="train"):
    """The messages that answered, and the scores."""
    task = ExportedTask(folder)
    play = Play(task, task.rows(split)[index])
    try:
        play.begin()
        said = [play.step(text) for text in turns]
        return said, asyncio.run(play.scores())
    finally:
        play.close()


def test_a_task_of_one_turn(tmp_path):
    done = export_task(load([*BASE, "tasks/lab_arithmetic"], []), tmp_path / "sums", count=3)
    assert (
        done.module == "sums" and done.rows["train"] == 3 and (tmp_path / "sums" / "pyproject.toml").is_file()
    )
    package = tmp_path / "sums" / "sums"
    kept = ExportedTask(package).rows("train")[0]
    assert (
        kept["messages"][-1]["content"].endswith(kept["row"]["question"])
        or kept["row"]["question"] in kept["messages"][-1]["content"]
    )
    slot = next(iter(ExportedTask(package).rewards))
    said, scores = played(package, [f"<answer>{kept['row']['answer']}</answer>"])
    assert said == [None] and scores[slot][0] == 1.0
    assert played(package, ["<answer>-99999</answer>"])[1][slot][0] < 1.0


def test_a_task_with_tools(tmp_path):
    export_task(load([*BASE, "tasks/lab_calculator"], []), tmp_path / "calculator", count=2)
    package = tmp_path / "calculator" / "calculator"
    kept = ExportedTask(package).rows("train")[0]
    assert (
        kept["messages"][0]["role"] == "system"
        and '"calculator"' in kept["messages"][0]["content"][0]["text"]
    )
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "20 + 22"}}</tool_call>'
    said, scores = played(package, [call, str(kept["row"]["answer"])])
    assert (
        said[0] == [{"role": "user", "content": "42"}]
        and said[1] is None
        and scores["arithmetic"] == (1.0, 1.0)
    )
    said, scores = played(package, [call] * 3)
    assert said[2] is None and scores["arithmetic"][0] == 0.0, "the last turn is played"


def test_a_game_pays_by_its_environment(tmp_path):
    pytest.importorskip("gymnasium")
    export_task(load([*BASE, "tasks/gym_frozen_lake"], []), tmp_path / "lake", count=1)
    package = tmp_path / "lake" / "lake"
    assert (
        "Actions: left, down, right, up"
        in ExportedTask(package).rows("train")[0]["messages"][-1]["content"][-1]["text"]
    )
    walk = ["down", "down", "right", "right", "down", "right"]
    assert played(package, walk)[1]["environment_return"] == (1.0, 1.0)
    assert played(package, ["right"])[1]["environment_return"][0] == 0.0, "an episode that was cut"


def test_what_cannot_be_exported_is_said(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    config = load([*BASE, "tasks/lab_arithmetic"], [])
    with pytest.raises(ConfigError, match="not empty"):
        export_task(config, tmp_path / "full")
    with pytest.raises(ConfigError, match="no name of a module"):
        export_task(config, tmp_path / "other", name="Not a name")
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize("release", ["0.1", "0.4"])
def test_verifiers_plays_the_exported_task(tmp_path, release):
    sys.path.insert(0, str(Path(__file__).parents[1] / "environments"))
    import verifiers_kit as kit

    from vlrl.environments.verifiers import Verifiers
    from vlrl.plugins.episode_pool import EpisodePool
    from vlrl.plugins.registry import build
    from vlrl.plugins.stages import Source

    python = kit.interpreter(release)
    root = Path(__file__).parents[2]
    path = [str(root), str(root / "rewards"), str(root / "data")]
    imports = subprocess.run(
        [python, "-c", "import vlrl_rewards, vlrl.interop.verifiers_task"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    if imports.returncode:
        pytest.skip("that interpreter lacks what vlrl's rewards need")
    export_task(load([*BASE, "tasks/lab_calculator"], []), tmp_path / "calculator", count=2)
    path.insert(0, str(tmp_path / "calculator"))
    row = next(
        iter(
            build(
                Source, {"name": "verifiers", "id": "calculator", "python": python, "path": path, "count": 1}
            )()
        )
    )
    environment = Verifiers(
        id="calculator", python=python, path=tuple(path), turn_seconds=240.0, start_seconds=240.0
    )
    answer = json.loads((tmp_path / "calculator" / "calculator" / "train.jsonl").read_text().splitlines()[0])[
        "row"
    ]["answer"]
    from vlrl.plugins.episodes import Action

    try:
        for turns, paid in (
            (
                [
                    '<tool_call>{"name": "calculator", "arguments": {"expression": "20 + 22"}}</tool_call>',
                    str(answer),
                ],
                1.0,
            ),
            (["no idea"], 0.0),
        ):
            with EpisodePool(environment) as pool:
                handle = pool.start("x", row, 0)
                pool.collect(240.0)
                for number, text in enumerate(turns, 1):
                    pool.step(handle, Action(text, number))
                    pool.collect(240.0)
                assert handle.error is None and handle.observation.done and handle.observation.reward == paid
    finally:
        environment.close()
