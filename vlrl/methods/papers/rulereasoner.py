"""Domains are drawn the more often, the further their reward is from its target."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.methods.common.row_order import Mixture
from vlrl.methods.core.prompt_sampler import score
from vlrl.registry import ConfigError, register
from vlrl.stages import PromptSampler
from vlrl.types import Row

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("rulereasoner")
@dataclass(frozen=True)
class Rulereasoner(PromptSampler):
    """w_d = exp(v_d / tau) / sum_k exp(v_k / tau),  v_d = max(0, target - r_d),  r_d <- (1 - decay) r_d + decay mean reward of d.

    Paper: RuleReasoner, arXiv:2506.08672, sec. 3.2 (domain-aware dynamic sampling). Domains are the sources under `data.train`.
    Deviates: the decayed mean is an exponential one (the release offers harmonic and geometric weights too), and starts at the first mean seen;
    a domain that was never seen counts as r = 0; the paper's eps, added to every v_d, cancels and is left out. `floor` keeps every domain at that
    share at least. `slot` names the reward looked at. Edge: one domain: all rows are its. Reads `run.rows` (by source). State: means, positions.
    """

    target: float = 1.0
    tau: float = 0.5
    decay: float = 0.5
    floor: float = 0.0
    slot: str = ""
    _state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.tau <= 0 or not 0 < self.decay <= 1 or not 0 <= self.floor < 1:
            raise ConfigError(f"prompt_sampler: tau={self.tau} must be above 0, decay={self.decay} in (0, 1], floor={self.floor} in [0, 1)")

    def setup(self, run: RunContext) -> None:
        names = list(run.rows)
        if self.floor * len(names) > 1:
            raise ConfigError(f"sampler.floor: {self.floor} for each of {len(names)} domains is more than 1 in all")
        self._state.setdefault("means", {})
        self._state.setdefault("positions", dict.fromkeys(names, 0))
        self._state.setdefault("drawn", 0)
        mixtures = {name: Mixture({name: run.rows[name]}, {}, run.seed) for name in names}
        self._state.update(mixtures=mixtures, seed=run.seed, served={})

    def weights(self) -> dict[str, float]:
        """The share of each domain now; they sum to 1."""
        names, means = list(self._state["mixtures"]), self._state["means"]
        gaps = {name: max(0.0, self.target - means.get(name, 0.0)) for name in names}
        most = max(gaps.values())
        raw = {name: math.exp((gap - most) / self.tau) for name, gap in gaps.items()}
        total = sum(raw.values())
        return {name: self.floor + (1 - self.floor * len(names)) * value / total for name, value in raw.items()}

    def __call__(self, n: int) -> list[Row]:
        state, weights = self._state, self.weights()
        rows = []
        for _ in range(n):
            rng = random.Random(f"{state['seed']}|domains|{state['drawn']}")
            state["drawn"] += 1
            name = rng.choices(list(weights), list(weights.values()))[0]
            row = state["mixtures"][name].row(state["positions"][name])
            state["positions"][name] += 1
            state["served"][row.id] = name
            rows.append(row)
        return rows

    def end_step(self, run: RunContext) -> None:
        groups = run.answered_groups
        found: dict[str, list[float]] = {}
        for group in groups:
            if group.row.id in self._state["served"]:
                found.setdefault(self._state["served"][group.row.id], []).append(score(group, self.slot))
        means = self._state["means"]
        for name, values in found.items():
            new = sum(values) / len(values)
            means[name] = new if name not in means else (1 - self.decay) * means[name] + self.decay * new
        self._state["served"].clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            key: dict(value) if isinstance(value, dict) else value for key, value in self._state.items() if key in ("means", "positions", "drawn")
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state.update({key: dict(value) if isinstance(value, dict) else value for key, value in state.items()})

    def metrics(self) -> dict[str, float]:
        return {f"data/weight/{name}": weight for name, weight in self.weights().items()}
