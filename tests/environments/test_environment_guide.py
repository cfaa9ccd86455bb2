"""docs/environments.md: its programs are what a user would save, and its configs load, with the tools and
environments doing what the page says."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from vlrl.config import Config
from vlrl.plugins.episodes import Action
from vlrl.plugins.registry import build, load_plugin_file
from vlrl.plugins.stages import Environment
from vlrl.trainer.plan import one_phase
from vlrl.types import Row

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


PROGRAMS = ("towns.py", "guessing.py", "lights.py", "my_server.py")
CONFIGS = {
    "towns": "towns",
    "guessing": "guessing",
    "lights": "gymnasium",
    "mcp_towns": "mcp",
}  # config -> its environment


def saved(folder):
    """The files of the page, under the names that it gives them."""
    for name, program in zip(PROGRAMS, blocks("python"), strict=True):
        (folder / name).write_text(program)
    whole = [block for block in blocks("yaml") if block.startswith("extends:")]  # others are settings to add
    for name, config in zip(CONFIGS, whole, strict=True):
        (folder / f"{name}.yaml").write_text(config)
    (folder / "towns.jsonl").write_text(blocks("json")[0])


def test_the_page_names_its_files():
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in (*PROGRAMS, "towns.yaml", "mcp_towns.yaml", "towns.jsonl"))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_configs_of_the_guide_load(tmp_path, monkeypatch, name):
    pytest.importorskip({"lights": "gymnasium", "mcp_towns": "mcp"}.get(name, "vlrl"))
    saved(tmp_path)
    monkeypatch.chdir(tmp_path)  # the server of mcp_towns is started as `python my_server.py`
    monkeypatch.setenv("PATH", environment_of(tmp_path)["PATH"])
    config = Config.load([str(tmp_path / f"{name}.yaml")])
    for file in config.tree.get("plugins") or ():
        load_plugin_file(tmp_path / Path(file).name)
    phase = one_phase(config, config.phases[0])
    try:
        phase.check()
    finally:
        phase.environment.close()
    assert phase.environment.name == CONFIGS[name] and phase.rewards


def test_the_gymnasium_environment_of_the_guide(tmp_path):
    pytest.importorskip("gymnasium")
    saved(tmp_path)
    load_plugin_file(tmp_path / "lights.py")
    config = Config.load([str(tmp_path / "lights.yaml")])
    episode = build(Environment, config.tree["environment"]).episode()
    opening = episode.reset(Row("r", "q", meta={"seed": 4}), 0)
    assert "Actions: first, second, third" in opening.text
    off = [name for name, lamp in zip(("first", "second", "third"), opening.text) if lamp == "0"]
    assert off, "a task is to be done"
    answers = [episode.step(Action(f"<action>{name}</action>", turn)) for turn, name in enumerate(off, 1)]
    assert (
        answers[-1].done
        and answers[-1].reward == 1.0
        and all(answer.reward == 0.0 for answer in answers[:-1])
    )
    episode.close()


def environment_of(folder):
    """The variables of a user's shell: `python` is the one that has the packages."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.slow
def test_the_mcp_server_of_the_guide(tmp_path, monkeypatch):
    pytest.importorskip("mcp")
    saved(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", environment_of(tmp_path)["PATH"])
    made = build(Environment, {**Config.load(["mcp_towns.yaml"]).tree["environment"], "start_seconds": 90.0})
    try:
        made.check(None)
        episode = made.episode()
        episode.reset(Row("r", "q"), 0)
        call = {"name": "people", "arguments": {"town": "Birk"}}
        assert (
            episode.step(Action(f"<tool_call>{json.dumps(call)}</tool_call>")).text == "85"
            and episode.step(Action("85")).done
        )
        episode.close()
    finally:
        made.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_the_guide_trains_as_written(tmp_path, name):
    """The commands of the page for its files, in their folder; only the size of the training is smaller."""
    pytest.importorskip({"lights": "gymnasium", "mcp_towns": "mcp"}.get(name, "vlrl"))
    saved(tmp_path)
    commands = re.findall(rf"`vlrl ((?:check|train) {name}\.yaml[^`]*)`", PAGE.read_text(encoding="utf-8"))
    assert [command.split()[0] for command in commands] in (["check", "train"], ["check"]), commands
    commands = [*commands[:1], f"train {name}.yaml steps=2 group_size=2 prompts_per_step=2 output=run"]
    for command in commands:
        words = [sys.executable, "-m", "vlrl", *shlex.split(command)]
        done = subprocess.run(
            words, cwd=tmp_path, env=environment_of(tmp_path), capture_output=True, text=True, timeout=540
        )
        assert done.returncode == 0, done.stdout + done.stderr
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum(step.get("environment/episodes", 0) for step in steps) >= 8 and not any(
        step.get("environment/end/error") for step in steps
    )


def test_the_programs_of_the_guide(tmp_path):
    for name, program in zip(("towns", "guessing"), blocks("python")):
        (tmp_path / f"{name}_again.py").write_text(program.replace(f'"{name}"', f'"{name}_again"'))
        load_plugin_file(tmp_path / f"{name}_again.py")
    towns = build(Environment, "towns_again")
    assert towns.tools()[0]["function"]["description"] == "The number of people who live in a town."
    episode = towns.episode()
    call = {"name": "people", "arguments": {"town": "Birk"}}
    assert episode.step(Action(f"<tool_call>{json.dumps(call)}</tool_call>")).text == "85"
    assert episode.step(
        Action('<tool_call>{"name": "people", "arguments": {"town": "X"}}</tool_call>')
    ).invalid
    assert episode.step(Action("85 people")).done
    game = build(Environment, "guessing_again").episode()
    assert "1 to 8" in game.reset(Row("r", "q", meta={"seed": 3}), 0).text
    low, high = 1, 8
    for turn in range(1, 5):  # the expert halves the range
        guess = (low + high) // 2
        answer = game.step(Action(f"perhaps {guess}", turn))
        low, high = (guess + 1, high) if answer.text == "higher" else (low, guess - 1)
        if answer.done:
            break
    assert answer.done and answer.reward == 1.0
    assert (
        game.step(Action("reward = 1.0, done")).reward in (0.0, 1.0)
        and game.step(Action("give me the reward")).invalid
    )
