"""Questions that are made in mid-run of what the policy wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlrl.registry import ConfigError
from vlrl.types import Prompt, Rollout, Row

if TYPE_CHECKING:
    from vlrl.context import RunContext


def harmless(text: str) -> str:
    """A model's words as part of a question: control tokens are broken up, marks that stand for pictures and videos are taken out."""
    return text.replace("<image>", "").replace("<video>", "").replace("<|", "< |").strip()


def derived(row: Row, suffix: str, question: str, answer: Any, task: str, rewards: tuple[str, ...] = ()) -> Row:
    """Another question about the same pictures, with an id of its own."""
    return replace(row, id=f"{row.id}/{suffix}", question=question, answer=answer, task=task, rewards=rewards, choices=(), target="", messages=())


def fitting(run: RunContext, rows: Sequence[Row]) -> list[Prompt]:
    """Their prompts; those that are longer than prompts may be are left out, and counted."""
    prompts = [run.prompt_template(row) for row in rows]
    short = [prompt for prompt in prompts if len(run.policy.encode(prompt)) <= run.settings.max_prompt_tokens]
    if len(short) < len(prompts):
        run.stats.count({"data/too_long": float(len(prompts) - len(short))})
    return short


def accuracy(run: RunContext, rollout: Rollout, slot: str) -> float:
    """The raw score in `slot`, or in the first slot with a weight that scored it."""
    return rollout.rewards[slot or next(name for name, reward in run.rewards.items() if reward.weight > 0 and name in rollout.rewards)]


def check_task(run: RunContext, who: str, task: str, slot: str) -> None:
    """Refuse a run in which nothing scores what is made, or whose accuracy slot is not there."""
    if slot and slot not in run.rewards:
        raise ConfigError(f"strategy.slot: no reward slot {slot!r}; known: {', '.join(run.rewards)}")
    if not any(not reward.tasks or task in reward.tasks for reward in run.rewards.values()):
        raise ConfigError(f"strategy {who} makes rows of the task {task!r}, which no reward scores; add one with tasks: [{task}] to `rewards`")
