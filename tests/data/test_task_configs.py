"""Every task config: rewards give its demonstrations their full score and empty answers the lowest, held-out
rows differ, every task is scored."""

from pathlib import Path

import pytest
from task_kit import SELECTS, UNSEEN, WORSE, full_and_silent, judge_opened, params

from vlrl.config import load
from vlrl.plugins.episodes import EPISODE_RETURN
from vlrl.plugins.registry import build
from vlrl.plugins.stages import PromptTemplate, Reward, Select, Source
from vlrl.trainer.phase import applies, with_own_rewards
from vlrl.types import CoordinateSpace, Group, Rollout

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "tasks").glob("*.yaml"))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "task", params(path.stem for path in CONFIGS if path.stem not in {**WORSE, **UNSEEN})
)
def test_task(task):
    tree = load(["base/rl", f"tasks/{task}"]).tree
    select = build(Select, SELECTS[task]) if task in SELECTS else list
    if task == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    sources = {
        f"{split}.{slot}": build(Source, spec)
        for split, specs in tree["data"].items()
        for slot, spec in specs.items()
    }
    rewards = {
        slot: judge_opened(build(Reward, spec))
        for slot, spec in with_own_rewards(tree.get("rewards"), sources).items()
    }
    template = build(PromptTemplate, tree["prompt_template"])
    for slot, spec in tree["data"]["train"].items():
        rows = select(build(Source, spec)())
        kept = tree["data"].get("heldout", {}).get(slot)  # some tasks only train
        heldout = select(build(Source, kept)()) if kept else rows[-1:]
        assert {row.id for row in rows[:20]}.isdisjoint(row.id for row in heldout[:20])
        for row in (rows[0], rows[1], heldout[0]):
            spaces = tuple(CoordinateSpace(medium.load().size, medium.load().size) for medium in row.images)
            prompt = template(row)
            scored = [name for name, reward in rewards.items() if applies(name, reward.tasks, row)]
            assert scored, f"task {row.task} is scored by nothing"
            scored = [
                name
                for name in scored
                if name not in ("triplet", "gain") and EPISODE_RETURN not in rewards[name].requires
            ]  # what an environment pays, to the policy or to executors, has tests of its own
            assert scored or tree.get("environment") or tree.get("rollout"), (
                f"task {row.task} is paid by an environment, and has none"
            )
            for name in scored:
                reward = rewards[name]
                full, silent = full_and_silent(reward, row)
                if any(mark not in row.target for mark in reward.form_marks):
                    continue  # the demonstration does not show the form that this reward is about
                assert reward(Rollout(prompt, [1], text=row.target, spaces=spaces)) == pytest.approx(full), (
                    name,
                    row.target,
                )
                assert reward(Rollout(prompt, [1], text="", spaces=spaces)) == silent
            assert len(row.target) + 1 <= tree["sampling"]["max_tokens"] * 2


@pytest.mark.parametrize("task", params(WORSE))
def test_a_demonstration_beats_a_worse_sibling(task):
    """Rewards that compare siblings: the demonstration wins, wherever it stands in the group."""
    tree = load(["base/rl", f"tasks/{task}"]).tree
    (reward,) = (judge_opened(build(Reward, spec)) for spec in tree["rewards"].values() if "judge" in spec)
    rows = [row for spec in tree["data"]["train"].values() for row in build(Source, spec)()[:3]]
    for row in rows:
        prompt = build(PromptTemplate, tree["prompt_template"])(row)
        for texts in ((row.target, WORSE[task]), (WORSE[task], row.target)):
            scores = reward.score_group(Group(prompt, [Rollout(prompt, [1], text=text) for text in texts]))
            own = scores[texts.index(row.target)]
            assert own == max(scores) > min(scores), (row.target, scores)
