"""What the strategies share that ask again: who is right, and prompts with something added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vlrl.capabilities import Annotation
from vlrl.types import Group, Message, Prompt, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext

GIVEN_TOKENS: Annotation[int] = Annotation(
    "given",
    int,
    hint="a rollout strategy that begins rollouts with a part of a demonstration, such as rollout: {name: g2rpo_a} or {name: seele}",
    doc="number of first tokens of the rollout that come from a demonstration",
)


def right(rollout: Rollout, threshold: float, slot: str = "") -> bool:
    """Whether the total reward, or that of one slot, is above the threshold. The rollout must have been scored."""
    return (rollout.rewards[slot] if slot else rollout.reward) > threshold


def accuracy(rollouts: Sequence[Rollout], threshold: float, slot: str = "") -> float:
    """The share of right ones; 0 of nothing."""
    return sum(right(rollout, threshold, slot) for rollout in rollouts) / len(rollouts) if rollouts else 0.0


def items(content: object) -> list:
    """A message's content as a list of items."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)  # type: ignore[call-overload]


def with_text(prompt: Prompt, text: str) -> Prompt:
    """The prompt with a text behind its last user turn (pictures and all that the scaffold wrote stay). Edge: without a user turn, unchanged."""
    last = max((i for i, message in enumerate(prompt.messages) if message["role"] == "user"), default=-1)
    if last < 0:
        return prompt
    message: Message = {**prompt.messages[last], "content": [*items(prompt.messages[last]["content"]), {"type": "text", "text": text}]}
    return replace(prompt, messages=(*prompt.messages[:last], message, *prompt.messages[last + 1 :]))


def with_system(prompt: Prompt, text: str) -> Prompt:
    """The prompt with a text behind its system message, which is made where there is none."""
    if prompt.messages and prompt.messages[0]["role"] == "system":
        first: Message = {**prompt.messages[0], "content": [*items(prompt.messages[0]["content"]), {"type": "text", "text": "\n" + text}]}
        return replace(prompt, messages=(first, *prompt.messages[1:]))
    return replace(prompt, messages=({"role": "system", "content": [{"type": "text", "text": text}]}, *prompt.messages))


def fits(prompt: Prompt, run: RunContext) -> bool:
    """Whether the prompt, made longer, still has at most `max_prompt_tokens`: nothing is ever cut."""
    return len(run.policy.encode(prompt)) <= run.settings.max_prompt_tokens


def score_rounds(groups: Sequence[Group], rounds: Sequence[Sequence[Rollout]], run: RunContext) -> list[list[Rollout]]:
    """Score a round's rollouts and put them into their groups; returns those that could be scored, group by group."""
    fresh = [Group(group.prompt, list(rollouts), group.id) for group, rollouts in zip(groups, rounds, strict=True)]
    run.score(fresh)
    for group, new in zip(groups, fresh):
        group.rollouts += new.rollouts
    return [new.rollouts for new in fresh]
