"""Rows in an order that depends on nothing but the seed and the position."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.registry import ConfigError, register
from vlrl.stages import Sampler
from vlrl.types import Row

from ._order import Mixture

if TYPE_CHECKING:
    from vlrl.run import Run


@register("shuffle")
@dataclass(frozen=True)
class Shuffle(Sampler):
    """row(position) = rows[permutation(seed, epoch)(position mod n)]: every row once per epoch, sources mixed by weight.

    vlrl original. `sampler(n)` gives the next n rows of the one global order: every rank calls it with the same n and takes its share, so a
    run resumed on another number of ranks neither loses nor repeats a row. `temperature` T mixes sources without weights in proportion to
    size ** (1 / T).
    `shuffle` false keeps the rows in the order of their sources. State: the position. Memory: constant in the number of rows.
    Edge: a source of weight 0 gives all its rows once per epoch, whatever the others weigh. Reads `run.rows` (by source).
    """

    temperature: float = 1.0
    shuffle: bool = True
    _state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ConfigError(f"sampler.temperature: {self.temperature} is not above 0; 1 mixes by size, larger values more evenly")

    def setup(self, run: Run) -> None:
        self._state["mixture"] = Mixture(run.rows, run.source_weights, run.seed, self.temperature, self.shuffle)
        self._state.setdefault("position", 0)

    def __call__(self, n: int) -> list[Row]:
        start = self._state["position"]
        self._state["position"] = start + n
        return [self._state["mixture"].row(position) for position in range(start, start + n)]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._state.get("position", 0)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state["position"] = int(state["position"])

    def metrics(self) -> dict[str, float]:
        return {"data/epoch": self._state["position"] / len(self._state["mixture"])}
