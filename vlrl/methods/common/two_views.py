"""Two views: a base for rollout strategies that sample every question in two forms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import SamplingContext
from vlrl.types import Group, Prompt, Request, Row


@dataclass(frozen=True)
class TwoViews(Independent):
    """G rollouts of a prompt, then G of another view of its row, in one group; those of the other view carry
    the annotation `mark`."""

    mark: ClassVar[Annotation[bool]]

    @abstractmethod
    def view(self, row: Row) -> Row | None:
        """The row in its other form; None for a row with one form only."""

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        requests = []
        for group, count in zip(groups, counts, strict=True):
            other = self.view(group.row) if count else None
            if other is not None:
                prompt = run.prompt_template(other)
                requests.append(
                    Request(prompt, run.sampling(prompt, 0), count, self.seeds(run, prompt), tag=group)
                )
        for completion in run.engine.generate(requests):
            rollout = run.make_rollout(completion)
            self.mark.set(rollout, True)
            completion.request.tag.rollouts.append(rollout)
        return groups
