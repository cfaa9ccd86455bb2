"""Python functions as rewards: one completion at a time, or lists over a group as TRL's."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from vlrl.plugins.stages import Reward
from vlrl.types import Group, Rollout, Row


@dataclasses.dataclass(frozen=True, kw_only=True)
class FunctionReward(Reward):
    """A Python function as a reward: `function(text, answer, **row) -> float`, plain or async.

    `text` is the completion, `answer` the gold answer; further arguments are filled by name: `prompt`,
    `question`, `id`, `task`, `choices`, `target`, `images`, `rollout`, and every other column of the row. An
    argument named `answer` makes rows without one an error.
    """

    name: ClassVar[str] = "function"
    function: Callable[..., Any]

    @property
    def reads_answer(self) -> bool:  # type: ignore[override]  # of each function its own
        return "answer" in inspect.signature(self.function).parameters

    def __call__(self, rollout: Rollout) -> Any:
        return self.function(
            **_accepted(self.function, {**columns_of(rollout.row), "text": rollout.text, "rollout": rollout})
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchFunctionReward(FunctionReward):
    """A function with TRL's signature as a reward: `function(completions, **columns) -> list[float]`, over
    the rollouts of a group.

    `prompts`, `completions` and every column of the rows are lists of one entry per rollout; completions of
    rows with a conversation as prompt are lists of one assistant message. `completion_ids` has the token ids.
    """

    def __call__(self, rollout: Rollout) -> Any:
        raise TypeError(f"{self.name!r} scores whole groups: call score(group)")

    def score_group(self, group: Group) -> Any:
        columns = columns_of(group.row)
        chat = isinstance(columns.get("prompt"), list)
        texts = [rollout.text for rollout in group]
        values = {name: [value] * len(texts) for name, value in columns.items()}
        values["completions"] = (
            [[{"role": "assistant", "content": text}] for text in texts] if chat else texts
        )
        values["prompts"] = [columns["prompt"]] * len(texts)
        values["completion_ids"] = [list(rollout.ids) for rollout in group]
        return self.function(**_accepted(self.function, values))


def columns_of(row: Row) -> dict[str, Any]:
    """What a reward function can ask of a row, by name; the row's own further columns among them."""
    known = {
        "id": row.id,
        "task": row.task,
        "question": row.question,
        "answer": row.answer,
        "target": row.target,
        "choices": row.choices,
    }
    prompt = list(row.messages) or row.question
    return {
        "prompt": prompt,
        **known,
        "images": row.images,
        "videos": row.videos,
        **{str(key): value for key, value in row.meta.items()},
    }


def _accepted(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(values)
    return {name: value for name, value in values.items() if name in parameters}
