"""The rewards read what the shipped generators write: a row's own demonstration earns everything, that of another row less on average."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from vlrl.config import folders, load
from vlrl.registry import build
from vlrl.stages import Reward, Source
from vlrl.types import Prompt, Rollout

ROOT = Path(folders()[0])
TASKS = sorted(path.stem for path in (ROOT / "tasks").glob("*.yaml"))


def rows_and_rewards(task):
    tree = load(["base/rl", f"tasks/{task}"]).tree
    spec = next(iter(tree["data"]["train"].values()))
    rows = list(itertools.islice(build(Source, spec)(), 6))
    rewards = [build(Reward, {k: v for k, v in value.items()}) for slot, value in tree["rewards"].items() if slot != "format"]
    return rows, [reward for reward in rewards if reward.weight]


def earned(reward, row, text):
    return float(reward(Rollout(Prompt(row, ()), ids=[], text=text)))


@pytest.mark.parametrize("task", [task for task in TASKS if not task.startswith(("gen_chain", "gen_graph", "gen_sat"))])
def test_a_demonstration_earns_everything(task):
    rows, rewards = rows_and_rewards(task)
    assert rows and rewards
    for reward in rewards:
        mine = [row for row in rows if not reward.tasks or row.task in reward.tasks]
        right = [earned(reward, row, row.target) for row in mine]
        assert right == pytest.approx([1.0] * len(right)), task
        assert all(earned(reward, row, "") == 0 for row in mine)
        others = [earned(reward, a, b.target) for a, b in zip(mine, mine[1:] + mine[:1], strict=True)]
        assert len(mine) < 2 or sum(others) < len(others)
