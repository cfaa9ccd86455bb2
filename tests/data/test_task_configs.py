"""Every task config: rewards score its demonstrations 1 and empty answers at most 0, held-out rows differ, every task is scored."""

from pathlib import Path

import pytest
import yaml

from vlrl.registry import build
from vlrl.stages import PromptTemplate, Reward, Source
from vlrl.types import CoordinateSpace, Rollout

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "tasks").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_task(path):
    tree = yaml.safe_load(path.read_text())
    rewards = {slot: build(Reward, spec) for slot, spec in tree["rewards"].items()}
    template = build(PromptTemplate, tree["prompt_template"])
    for slot, spec in tree["data"]["train"].items():
        rows, heldout = build(Source, spec)(), build(Source, tree["data"]["heldout"][slot])()
        assert {row.id for row in rows[:20]}.isdisjoint(row.id for row in heldout[:20])
        for row in (rows[0], rows[1], heldout[0]):
            spaces = tuple(CoordinateSpace(medium.load().size, medium.load().size) for medium in row.images)
            prompt = template(row)
            scored = [name for name, reward in rewards.items() if row.task in reward.tasks]
            assert scored, f"task {row.task} is scored by nothing"
            for name in scored:
                reward = rewards[name]
                assert reward(Rollout(prompt, [1], text=row.target, spaces=spaces)) == pytest.approx(1.0), (name, row.target)
                assert reward(Rollout(prompt, [1], text="", spaces=spaces)) <= 0.0
            assert len(row.target) + 1 <= tree["sampling"]["max_tokens"] * 2
