"""What the strategies share that ask every question in two ways."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vlrl.methods.core.rollout import Independent
from vlrl.types import Group, Prompt, Request, Row

if TYPE_CHECKING:
    from vlrl.context import RunContext


@dataclass(frozen=True)
class SecondView(Independent):
    """After G rollouts of a prompt G more of another view of its row, in the same group; they carry `info[mark]`."""

    mark: ClassVar[str]

    @abstractmethod
    def view(self, row: Row) -> Row | None:
        """The row in its other form; None: it is asked in one form only."""

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        requests = []
        for group, count in zip(groups, counts, strict=True):
            other = self.view(group.row) if count else None
            if other is not None:
                prompt = run.prompt_template(other)
                requests.append(Request(prompt, run.sampling(prompt, 0), count, self.seeds(run, prompt), tag=group))
        for completion in run.engine.generate(requests):
            rollout = run.make_rollout(completion)
            rollout.info[self.mark] = True
            completion.request.tag.rollouts.append(rollout)
        return groups
