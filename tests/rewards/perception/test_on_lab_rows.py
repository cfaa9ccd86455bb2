"""The rewards read what the shipped generators write: a row's own demonstration earns everything, that of
another row less on average."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from task_kit import ALIKE, SELECTS, UNSEEN, WORSE, full_and_silent, judge_opened, params

from vlrl.config import folders, load
from vlrl.plugins.episodes import EPISODE_RETURN
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward, Select, Source
from vlrl.trainer.phase import with_own_rewards
from vlrl.types import Prompt, Rollout

ROOT = Path(folders()[0])
TASKS = sorted(path.stem for path in (ROOT / "tasks").glob("*.yaml"))
ROWS = 6  # of each reward
SLOW = {"gen_kernel": 2}  # each of its answers is compiled in a process that imports torch


def rows_and_rewards(task):
    """[(reward, its first rows)] of a task's rewards with a weight, format and what an environment pays (it
    has tests of its own) aside."""
    tree = load(["base/rl", f"tasks/{task}"]).tree
    sources = {slot: build(Source, spec) for slot, spec in tree["data"]["train"].items()}
    specs = with_own_rewards(tree.get("rewards"), sources)
    rewards = [judge_opened(build(Reward, dict(spec))) for slot, spec in specs.items() if slot != "format"]
    mine = [(reward, []) for reward in rewards if reward.weight and EPISODE_RETURN not in reward.requires]
    assert mine or tree.get("environment"), (
        f"task {task} is scored by nothing that its rows show, and has no environment"
    )
    turns = itertools.chain.from_iterable(
        zip(*(source() for source in sources.values()), strict=False)
    )  # a row of each source in turn
    count = SLOW.get(task, ROWS)
    rows = itertools.islice(turns, 40 * ROWS)
    for row in build(Select, SELECTS[task])(list(rows)) if task in SELECTS else rows:
        for reward, own in mine:
            if len(own) < count and (not reward.tasks or row.task in reward.tasks):
                own.append(row)
        if all(len(own) == count for _, own in mine):
            break
    return mine


def earned(reward, row, text):
    return float(reward(Rollout(Prompt(row, ()), ids=[], text=text)))


def scores(reward, rows):
    """Scores of the rows' own demonstrations, of silence, and of the demonstrations of other rows (with
    another answer, where rows have one)."""
    pairs = [
        (
            a,
            next(
                (b for b in [*rows[i:], *rows[:i]] if (b.answer or b.target) != (a.answer or a.target)), None
            ),
        )
        for i, a in enumerate(rows)
    ]
    others = [earned(reward, a, b.target) for a, b in pairs if b is not None]
    return (
        [earned(reward, row, row.target) for row in rows],
        [earned(reward, row, "") for row in rows],
        others,
    )


def test_the_stated_frequency_earns_most_of_a_forecast():
    """The demonstration states the true rate, which has the best mean Brier score, but no single outcome
    tells it: -(p - y)^2 of each row."""
    ((reward, rows),) = rows_and_rewards("gen_forecast")
    assert [earned(reward, row, row.target) for row in rows] == pytest.approx(
        [-((row.meta["rate"] - row.answer) ** 2) for row in rows]
    )
    assert all(earned(reward, row, "") == -1.0 for row in rows)
    assert all(earned(reward, row, f"<answer>{row.answer}</answer>") == 0.0 for row in rows)


OTHERS = (*WORSE, *UNSEEN, "gen_chain", "gen_graph", "gen_sat", "gen_forecast", "reasoning_gym")


@pytest.mark.sweep
@pytest.mark.parametrize("task", params(task for task in TASKS if not task.startswith(OTHERS)))
def test_a_demonstration_earns_everything(task):
    found = rows_and_rewards(task)
    for reward, rows in found:
        assert len(rows) >= 2, (reward.name, reward.tasks)
        if any(mark not in row.target for row in rows for mark in reward.form_marks):
            continue  # the demonstrations do not show the form that this reward is about
        full, silent = full_and_silent(reward, rows[0])
        own, empty, others = scores(reward, rows)
        assert own == pytest.approx([full] * len(own)), (reward.name, own)
        assert empty == [silent] * len(empty), (reward.name, empty)
        assert task in ALIKE or (others and sum(others) / len(others) < full - 0.05), (reward.name, others)
