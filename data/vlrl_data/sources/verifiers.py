"""Rows of an environment of the package verifiers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vlrl.plugins.registry import home_of, register
from vlrl.plugins.stages import Environment, Source
from vlrl.types import Row, RowError
from vlrl_data.lab.shipped_images import check_split


@register("verifiers")
@dataclass(frozen=True, kw_only=True)
class VerifiersRows(Source):
    """Rows `skip` to `skip + count` of an environment of the package verifiers, for environment `verifiers`:
    its conversations and answers.

    vlrl original. `id`, `args`, `python` and `path` as in that environment; `args` of the rows win over its
    own, so that held-out rows may come from other arguments (a taskset's split). `split` "heldout" takes the
    evaluation dataset of the 0.1 interface. The rows bring the reward `environment_return`: what the
    environment's rubric pays, 0 for an episode that `rollout.max_turns` ended.
    """

    id: str
    args: Mapping[str, Any] = field(default_factory=dict)
    python: str = ""
    path: tuple[str, ...] = ()
    split: str = "train"
    skip: int = 0
    count: int = 1000
    task: str = "verifiers"

    def __post_init__(self) -> None:
        check_split(self.split)
        if self.count < 1 or self.skip < 0:
            raise ValueError(f"count={self.count} must be at least 1, skip={self.skip} at least 0")

    @property
    def own_rewards(self) -> Mapping[str, Mapping[str, Any]]:
        """The reward of these rows."""
        return {"environment_return": {"name": "environment_return", "tasks": [self.task], "missing": 0.0}}

    def __call__(self) -> Iterable[Row]:
        adapter = home_of(Environment, "verifiers")
        environment = adapter.Verifiers(id=self.id, args=self.args, python=self.python, path=self.path)
        try:
            found = environment.rows(self.split, self.skip, self.count)
        finally:
            environment.close()
        return [
            self.row(adapter, self.skip + i, kept["messages"], kept.get("answer"))
            for i, kept in enumerate(found)
        ]

    def row(self, adapter: Any, index: int, said: list[dict[str, Any]], answer: Any) -> Row:
        """One row: the conversation that the environment opens with, its pictures, and where it comes
        from."""
        messages, images = [], []
        for message in said:
            text, pictures = adapter.content_of(message.get("content"))
            if text != adapter.plain_content(message.get("content")):
                raise RowError(
                    f"verifiers {self.id!r}, row {index}: its conversation has a part that cannot be "
                    f"shown: {text[-300:]!r}"
                )
            content = [*({"type": "image"} for _ in pictures), {"type": "text", "text": text}]
            messages.append({"role": message["role"], "content": content})
            images += pictures
        question = next((m["content"][-1]["text"] for m in reversed(messages) if m["role"] == "user"), "")
        meta = {adapter.META: {"index": index, "split": self.split, "args": dict(self.args)}}
        return Row(
            f"{self.id}-{self.split}-{index}",
            question,
            answer=answer,
            images=tuple(images),
            task=self.task,
            messages=tuple(messages),
            meta=meta,
        )
