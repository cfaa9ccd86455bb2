"""What a run does for its plug-ins, which import no part of the trainer (`vlrl/plugins/contexts.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vlrl.trainer.ranks.collectives import gather, params_sharded, state_sharded
from vlrl.trainer.step.loss_inputs import cost, make_batch, split_micro_batches
from vlrl.types import Group, TokenBatch

if TYPE_CHECKING:
    from types import ModuleType

    from vlrl.trainer.step.episode_pool import RunEpisodes


class RunServices:
    """The services of a run. `gather`, `gather_and_clear`, `sum_tensor`, `mean` and `accuracy` are
    collectives: all ranks call them, or none."""

    accelerator: Any = None
    policy: Any
    settings: Any

    @property
    def rank(self) -> int:
        """This process, of `ranks`."""
        return self.accelerator.process_index if self.accelerator is not None else 0

    @property
    def ranks(self) -> int:
        """How many processes train."""
        return self.accelerator.num_processes if self.accelerator is not None else 1

    @property
    def state_sharded(self) -> bool:
        """Whether weights or optimizer states are spread over ranks (FSDP, DeepSpeed): none has a whole copy
        of both."""
        return state_sharded(self.accelerator)

    @property
    def params_sharded(self) -> bool:
        """Whether the weights themselves are (FSDP, ZeRO-3)."""
        return params_sharded(self.accelerator)

    def gather(self, values: Sequence[Any]) -> list[Any]:
        """The values of all ranks, the first of each, then the second of each: as rows are dealt to ranks.
        Plain Python values only."""
        if self.ranks == 1:
            return list(values)
        parts = gather(self.accelerator, values)
        return [part[i] for i in range(max(map(len, parts))) for part in parts if i < len(part)]

    def gather_and_clear(self, values: list[Any]) -> list[Any]:
        """`gather` of what a plug-in has recorded since the last call; the list is emptied. Called in
        `end_step`, which runs on every rank."""
        recorded = values[:]
        del values[: len(recorded)]
        return self.gather(recorded)

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        """The sum over ranks."""
        return self.accelerator.reduce(tensor, "sum") if self.ranks > 1 else tensor

    def mean(self, total: float, count: float) -> float:
        """All ranks' totals over all ranks' counts, 0 where the count is 0."""
        parts = self.gather([(total, count)])
        return sum(total for total, _ in parts) / max(sum(count for _, count in parts), 1.0)

    def batch(self, groups: Sequence[Group]) -> TokenBatch:
        """The groups as the input of `policy.forward`, which honours the autograd mode. Raises ValueError for
        an empty completion."""
        return make_batch(groups, self.policy.pad_id, self.policy.device)

    def micro_batches(self, groups: Sequence[Group]) -> list[list[Group]]:
        """The groups in pieces of `micro_batch_tokens`, one `batch` each. Ranks may have different numbers of
        them."""
        run: Any = self
        return split_micro_batches(groups, self.settings.micro_batch_tokens, partial(cost, run))

    def score(self, groups: Sequence[Group]) -> None:
        """Rewards before the rollout strategy is done: fills `rewards`, `reward`, `outcome` and `correct`;
        drops rollouts on which a reward raised.

        A reward that scores rollouts one by one is not called again for a rollout that has its score; a
        rollout that changes afterwards must lose its `rewards`. Rewards that compare siblings score the
        finished group anew.
        """
        from vlrl.trainer.step.scoring import score

        run: Any = self
        score(groups, run)

    def episodes(self, counted: bool = True) -> RunEpisodes:
        """A pool of episodes of the run's environment. Leaving it closes them all. Without `counted` the
        run's statistics are left alone."""
        from vlrl.trainer.step.episode_pool import RunEpisodes

        run: Any = self
        return RunEpisodes(run, counted)

    def accuracy(self) -> dict[str, float]:
        """The held-out accuracy by task, now."""
        from vlrl.eval.heldout import accuracy

        run: Any = self
        return accuracy(run)

    @property
    def suites(self) -> ModuleType:
        """Benchmark suites drawn with the run's engine: `check(options)`, `evaluate(options, run)`."""
        from vlrl.eval import training

        return training
