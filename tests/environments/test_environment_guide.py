"""docs/environments.md: its programs are what a user would save, and its configs load, with the tools and environments doing what the page says."""

import json
import re
from pathlib import Path

import pytest

from vlrl.config import Config
from vlrl.episodes import Action
from vlrl.registry import build, load_plugin_file
from vlrl.stages import Environment
from vlrl.trainer.phase import build_phase, check_requirements
from vlrl.types import Row

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("place", [0, 1])
def test_the_configs_of_the_guide_load(tmp_path, place):
    name = ("towns", "guessing")[place]
    (tmp_path / f"{name}.py").write_text(blocks("python")[place])
    (tmp_path / f"{name}.yaml").write_text(blocks("yaml")[place])
    (tmp_path / "towns.jsonl").write_text(blocks("json")[0])
    config = Config.load([str(tmp_path / f"{name}.yaml")])
    load_plugin_file(tmp_path / f"{name}.py")
    phase = build_phase(config, "rl")
    check_requirements(phase)
    assert phase.slots["environment"].name == name and phase.maps["rewards"]


def test_the_programs_of_the_guide(tmp_path):
    for name, program in zip(("towns", "guessing"), blocks("python")):
        (tmp_path / f"{name}_again.py").write_text(program.replace(f'"{name}"', f'"{name}_again"'))
        load_plugin_file(tmp_path / f"{name}_again.py")
    towns = build(Environment, "towns_again")
    assert towns.tools()[0]["function"]["description"] == "The number of people who live in a town."
    episode = towns.episode()
    call = {"name": "people", "arguments": {"town": "Birk"}}
    assert episode.step(Action(f"<tool_call>{json.dumps(call)}</tool_call>")).text == "85"
    assert episode.step(Action('<tool_call>{"name": "people", "arguments": {"town": "X"}}</tool_call>')).invalid
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
    assert game.step(Action("reward = 1.0, done")).reward in (0.0, 1.0) and game.step(Action("give me the reward")).invalid
