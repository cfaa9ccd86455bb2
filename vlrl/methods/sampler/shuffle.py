"""Rows in an order that depends on nothing but the seed and the position."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.registry import ConfigError, register
from vlrl.stages import Sampler
from vlrl.types import MediaError, Row, RowError

from ._order import Mixture
from ._prefetch import Prefetcher, hold

if TYPE_CHECKING:
    from vlrl.run import Run

LOG = logging.getLogger("vlrl.data")


@register("shuffle")
@dataclass(frozen=True)
class Shuffle(Sampler):
    """row(position) = rows[permutation(seed, epoch)(position mod n)]: every row once per epoch, sources mixed by weight.

    vlrl original. `sampler(n)` gives the next n rows of the one global order: every rank calls it with the same n and takes its share, so a
    run resumed on another number of ranks neither loses nor repeats a row. `temperature` T mixes sources without weights in proportion to
    size ** (1 / T). `shuffle` false keeps the rows in the order of their sources. `workers` processes decode the media of the `ahead` next
    calls while a step runs (0: media are decoded when the policy asks for them). State: the position. Memory: constant in the number of rows.
    `verify` decodes every row's media before it is given (on every rank), for datasets that were not looked at closely before training.
    Edge: a source of weight 0 gives all its rows once per epoch, whatever the others weigh; a row that turns out to be unusable (RowError, or
    with `verify` MediaError) is skipped, logged and counted, on every rank alike. Reads `run.rows` (by source).
    """

    temperature: float = 1.0
    shuffle: bool = True
    workers: int = 0
    ahead: int = 1
    verify: bool = False
    _state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ConfigError(f"sampler.temperature: {self.temperature} is not above 0; 1 mixes by size, larger values more evenly")
        if self.workers < 0 or self.ahead < 1:
            raise ConfigError(f"sampler: workers={self.workers} must not be negative, and ahead={self.ahead} at least 1")

    def setup(self, run: Run) -> None:
        self._state["mixture"] = Mixture(run.rows, run.source_weights, run.seed, self.temperature, self.shuffle)
        self._state.setdefault("position", 0)
        self._state.setdefault("skipped", 0)
        if self.workers and "prefetch" not in self._state:
            self._state["prefetch"] = Prefetcher(self.workers, room=256)
        accelerator = getattr(run, "accelerator", None)
        self._state["rank"] = (accelerator.process_index, accelerator.num_processes) if accelerator is not None else (0, 1)

    def __call__(self, n: int) -> list[Row]:
        mixture, found = self._state["mixture"], []
        tries = 0
        while len(found) < n:
            row = self._try(self._state["position"])
            self._state["position"] += 1
            tries = 0 if row is not None else tries + 1
            if row is not None:
                found.append(row)
            elif tries > len(mixture):
                raise ConfigError("sampler: a whole epoch without a usable row; see quarantine.jsonl for the reasons")
        self._foresee(n)
        return found

    def _try(self, position: int) -> Row | None:
        prefetch = self._state.get("prefetch")
        try:
            row = self._state["mixture"].row(position)
            row = row if prefetch is None else prefetch.take(position, row)
            return hold(row) if self.verify else row
        except (RowError, MediaError) as error:
            LOG.warning("the row at position %d is skipped: %s", position, error)
            self._state["skipped"] += 1
            return None

    def _foresee(self, n: int) -> None:
        prefetch = self._state.get("prefetch")
        if prefetch is None:
            return
        rank, world = self._state["rank"]
        start = self._state["position"]
        coming = []
        for position in range(start + rank, start + n * self.ahead, world):
            try:
                coming.append((position, self._state["mixture"].row(position)))
            except RowError:
                continue
        prefetch.foresee(coming)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._state.get("position", 0), "skipped": self._state.get("skipped", 0)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state["position"] = int(state["position"])
        self._state["skipped"] = int(state.get("skipped", 0))

    def metrics(self) -> dict[str, float]:
        epoch = {"data/epoch": self._state["position"] / len(self._state["mixture"])}
        return epoch | ({"data/skipped": float(self._state["skipped"])} if self._state["skipped"] else {})
