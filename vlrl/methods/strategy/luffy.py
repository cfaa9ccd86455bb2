"""Demonstrations among a prompt's own samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from vlrl.methods.strategy.expert import written
from vlrl.methods.strategy.independent import Independent
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Prompt, Row

if TYPE_CHECKING:
    from vlrl.run import Run

LOOKED_AT = 256  # rows of each source that are asked for demonstrations at the start


def demonstrations(row: Row) -> list[str]:
    """What experts wrote for a row: `row.meta["demonstrations"]` (one text per teacher), or its `target`; perhaps nothing."""
    return [text for text in row.meta.get("demonstrations", ()) if text] or [text for text in (row.target,) if text]


@register("with_demonstrations")
@dataclass(frozen=True)
class WithDemonstrations(Independent):
    """y_1 .. y_(n-k) ~ pi(. | x) and k demonstrations (source "expert") in one group, scored by the same rewards.

    k is `per_prompt`, or as many as the row has. With `replace` they take the place of samples, so that the group keeps its size n, of which at least
    one is the policy's own; without it they come on top. `trained` false sets them aside for a replay that may fetch them.
    Paper: Yan et al. 2025 (LUFFY), arXiv:2504.14945, sec. 3; released script: n = 8 with one whole trace (prefix ratio 1).
    Checked against copies of the released code (mix_src). Deviates: traces that go on as the policy's own after a part are left out.
    Edge: a row without a demonstration gets n samples; a prompt with count 0 gets nothing. Log-probs of the expert are unknown and left empty; the
    temperature is that of the samples, as in the release, or 1 where it varies by position. Raises ConfigError where no row has a demonstration.
    """

    per_prompt: int = 1
    replace: bool = True
    trained: bool = True

    def __post_init__(self) -> None:
        if self.per_prompt < 1:
            raise ValueError(f"per_prompt={self.per_prompt} must be at least 1; use strategy 'independent' for no demonstrations")

    def setup(self, run: Run) -> None:
        rows = (row for source in run.rows.values() for row in islice(source, LOOKED_AT))
        if not any(demonstrations(row) for row in rows):
            raise ConfigError(
                "strategy 'with_demonstrations': none of the first rows has a `target` or a list `meta.demonstrations`; fill one, "
                "or use strategy 'independent'"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        texts = []
        for prompt, count in zip(prompts, counts, strict=True):
            room = max(count - 1, 0) if self.replace else self.per_prompt * bool(count)
            texts.append(demonstrations(prompt.row)[: min(self.per_prompt, room)])
        own = [count - len(some) if self.replace else count for count, some in zip(counts, texts)]
        groups = super().__call__(prompts, own, run)
        for group, some in zip(groups, texts, strict=True):
            temperature = run.decode(group.prompt, 0).temperature
            for text in some:
                rollout = written(group.prompt, text, run)
                rollout.trained = self.trained
                rollout.temperature = temperature if isinstance(temperature, (int, float)) and temperature > 0 else 1.0
                group.rollouts.append(rollout)
        return groups
