"""Prompts that are made during a run: text added to a prompt, and questions made of what the policy wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlrl.plugins.contexts import PhaseContext, SamplingContext, StageContext
from vlrl.plugins.registry import ConfigError
from vlrl.types import Message, Prompt, Row


def content_items(content: str | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A message's content as a list of items."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def with_text(prompt: Prompt, text: str) -> Prompt:
    """The prompt with a text after its last user turn; pictures and what the prompt template wrote stay.
    Edge: without a user turn, unchanged."""
    last = max((i for i, message in enumerate(prompt.messages) if message["role"] == "user"), default=-1)
    if last < 0:
        return prompt
    message: Message = {
        **prompt.messages[last],
        "content": [*content_items(prompt.messages[last]["content"]), {"type": "text", "text": text}],
    }
    return replace(prompt, messages=(*prompt.messages[:last], message, *prompt.messages[last + 1 :]))


def with_system(prompt: Prompt, text: str) -> Prompt:
    """The prompt with a text after its system message, which is made where there is none."""
    if prompt.messages and prompt.messages[0]["role"] == "system":
        first: Message = {
            **prompt.messages[0],
            "content": [*content_items(prompt.messages[0]["content"]), {"type": "text", "text": "\n" + text}],
        }
        return replace(prompt, messages=(first, *prompt.messages[1:]))
    return replace(
        prompt, messages=({"role": "system", "content": [{"type": "text", "text": text}]}, *prompt.messages)
    )


def within_limit(prompt: Prompt, run: StageContext) -> bool:
    """Whether the prompt has at most `max_prompt_tokens` tokens. A longer one is not used; no prompt is ever
    cut."""
    return len(run.policy.encode(prompt)) <= run.settings.max_prompt_tokens


def prompts_within_limit(run: SamplingContext, rows: Sequence[Row]) -> list[Prompt]:
    """The rows' prompts; those above `max_prompt_tokens` are left out and counted as data/too_long."""
    prompts = [run.prompt_template(row) for row in rows]
    kept = [prompt for prompt in prompts if within_limit(prompt, run)]
    if len(kept) < len(prompts):
        run.count({"data/too_long": float(len(prompts) - len(kept))})
    return kept


def neutralised(text: str) -> str:
    """A model's text as part of a question: control tokens are broken up, markers of pictures and videos are
    removed."""
    return text.replace("<image>", "").replace("<video>", "").replace("<|", "< |").strip()


def derived_row(
    row: Row, suffix: str, question: str, answer: Any, task: str, rewards: tuple[str, ...] = ()
) -> Row:
    """Another question about the same pictures, with the id `<row.id>/<suffix>`."""
    return replace(
        row,
        id=f"{row.id}/{suffix}",
        question=question,
        answer=answer,
        task=task,
        rewards=rewards,
        choices=(),
        target="",
        messages=(),
    )


def check_task(run: PhaseContext, plugin: str, task: str) -> None:
    """Raise ConfigError in a run in which no reward scores the rows of `task`, which a rollout strategy
    makes."""
    if not any(not reward.tasks or task in reward.tasks for reward in run.rewards.values()):
        raise ConfigError(
            f"rollout: {plugin!r} makes rows of the task {task!r}, which no reward scores; add one with "
            f"tasks: [{task}] to `rewards`"
        )
