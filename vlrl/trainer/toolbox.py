"""What a run does for its plug-ins, which import no part of the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vlrl.trainer.batch import make_batch, split_micros
from vlrl.trainer.distributed import gather, params_sharded, state_sharded
from vlrl.types import Group, TokenBatch

if TYPE_CHECKING:
    from types import ModuleType


class Toolbox:
    """The tools of a run. `gather`, `drained`, `summed`, `mean` and `accuracy` are collectives: every rank calls them, or none does."""

    accelerator: Any = None

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
        """Whether weights or optimizer states are spread over ranks (FSDP, DeepSpeed): none has a whole copy of both."""
        return state_sharded(self.accelerator)

    @property
    def params_sharded(self) -> bool:
        """Whether the weights themselves are (FSDP, ZeRO-3)."""
        return params_sharded(self.accelerator)

    def gather(self, values: Sequence[Any]) -> list[Any]:
        """The values of all ranks, the first of each, then the second of each: as rows are dealt to ranks. Plain Python values only."""
        if self.ranks == 1:
            return list(values)
        parts = gather(self.accelerator, values)
        return [part[i] for i in range(max(map(len, parts))) for part in parts if i < len(part)]

    def gather_and_clear(self, values: list[Any]) -> list[Any]:
        """`gather` of what a plug-in noted since the last call (in its `metrics`, which every rank calls once per step); the list is emptied."""
        taken = values[:]
        del values[: len(taken)]
        return self.gather(taken)

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        """Its sum over ranks."""
        return self.accelerator.reduce(tensor, "sum") if self.ranks > 1 else tensor

    def mean(self, total: float, count: float) -> float:
        """All ranks' totals over all ranks' counts; 0 of nothing."""
        parts = self.gather([(total, count)])
        return sum(total for total, _ in parts) / max(sum(count for _, count in parts), 1.0)

    def batch(self, groups: Sequence[Group]) -> TokenBatch:
        """Whole groups as what `policy.forward` takes, which honours the autograd mode. Raises ValueError for an empty completion."""
        return make_batch(groups, self.policy.pad_id, self.policy.device)  # type: ignore[attr-defined]

    def micro_batches(self, groups: Sequence[Group]) -> list[list[Group]]:
        """The groups in pieces of `micro_tokens`, as the policy itself takes them: one `batch` each. Ranks may have different numbers of them."""
        from vlrl.trainer.loss_inputs import cost

        return split_micros(groups, self.settings.micro_batch_tokens, partial(cost, self))  # type: ignore[attr-defined,arg-type]

    def score(self, groups: Sequence[Group]) -> None:
        """Rewards before the strategy is done: fills `rollout.rewards` and `rollout.reward`, drops what a reward raised on.

        What a rollout has of a reward that looks at it alone is not asked for again; a rollout that is changed afterwards must lose its `rewards`.
        Rewards that look at siblings score the finished group anew.
        """
        from vlrl.trainer.scoring import score

        score(groups, self)  # type: ignore[arg-type]

    def accuracy(self) -> dict[str, float]:
        """The held-out accuracy by task, now."""
        from vlrl.eval.heldout import accuracy

        return accuracy(self)  # type: ignore[arg-type]

    @property
    def suites(self) -> ModuleType:
        """Benchmark suites drawn with the run's engine: `check(options)`, `evaluate(options, run)`."""
        from vlrl.eval import training

        return training
