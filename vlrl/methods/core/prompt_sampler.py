"""Levels of difficulty, one after the other: the next begins when the last one is mastered.

Rows in an order that depends on nothing but the seed and the position.

Rows chosen by what an earlier phase saw of them.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from vlrl.methods.common.correctness import accuracies, slots_of
from vlrl.methods.common.prefetch import Prefetcher, hold
from vlrl.methods.common.row_order import Mixture, permute
from vlrl.methods.common.row_scores import SCORES, Series
from vlrl.registry import ConfigError, register
from vlrl.stages import PromptSampler
from vlrl.types import Group, MediaError, Row, RowError

if TYPE_CHECKING:
    from vlrl.context import RunContext


def score(group: Group, slot: str) -> float:
    """Mean reward of a group's rollouts: of one slot (0 where it did not score), or the total."""
    values = [rollout.rewards.get(slot, 0.0) if slot else rollout.reward for rollout in group]
    return sum(values) / len(values) if values else 0.0


@register("levels")
@dataclass(frozen=True)
class Levels(PromptSampler):
    """level + 1 when mean reward over the level's last `window` groups >= threshold, or after `most` groups of it (0: never).

    Paper: SATURN, arXiv:2505.16368, sec. 3.4 (difficulty rises when pass@1 at the current level passes a threshold); Ariadne, arXiv:2511.00710
    (mazes grow with accuracy); Jigsaw-R1, arXiv:2505.23590 (stages after so many prompts: threshold above 1, `most` set).
    Deviates: accuracy is that of the training groups, not of a held-out set of the level. The sources under `data.train` are the levels, in their
    order. `slot` names the reward that is looked at (default: the total). `review`: the share of rows drawn from mastered levels.
    Edge: the last level stays. Reads `run.rows` (by source). State: level, recent scores, positions.
    """

    threshold: float = 0.75
    window: int = 32
    most: int = 0
    slot: str = ""
    review: float = 0.0
    _state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.window < 1 or self.most < 0 or not 0 <= self.review < 1:
            raise ConfigError(f"prompt_sampler: window={self.window} must be at least 1, most={self.most} at least 0, review={self.review} in [0, 1)")

    def setup(self, run: RunContext) -> None:
        mixtures = [Mixture({name: rows}, {}, run.seed) for name, rows in run.rows.items()]
        start = {"level": 0, "drawn": 0, "seen": 0, "recent": [], "positions": [0] * len(mixtures)}
        self._state.update({key: value for key, value in start.items() if key not in self._state})
        self._state.update(mixtures=mixtures, names=list(run.rows), seed=run.seed, served={})

    def __call__(self, n: int) -> list[Row]:
        return [self._next() for _ in range(n)]

    def _next(self) -> Row:
        state = self._state
        rng = random.Random(f"{state['seed']}|levels|{state['drawn']}")
        state["drawn"] += 1
        level = state["level"]
        if level and rng.random() < self.review:
            level = rng.randrange(level)
        row = state["mixtures"][level].row(state["positions"][level])
        state["positions"][level] += 1
        state["served"][row.id] = level
        return row

    def end_step(self, run: RunContext) -> None:
        groups = run.answered_groups
        state = self._state
        own = [score(group, self.slot) for group in groups if state["served"].get(group.row.id) == state["level"]]
        state["served"].clear()
        state["seen"] += len(own)
        state["recent"] = (state["recent"] + own)[-self.window :]
        full = len(state["recent"]) == self.window
        mastered = full and sum(state["recent"]) / self.window >= self.threshold
        if state["level"] + 1 < len(state["mixtures"]) and (mastered or 0 < self.most <= state["seen"]):
            state.update(level=state["level"] + 1, seen=0, recent=[])

    def state_dict(self) -> dict[str, Any]:
        return {key: self._state[key] for key in ("level", "drawn", "seen", "recent", "positions") if key in self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state.update({key: list(value) if isinstance(value, list) else value for key, value in state.items()})

    def metrics(self) -> dict[str, float]:
        recent = self._state["recent"]
        return {"data/level": float(self._state["level"]), "data/level_score": sum(recent) / len(recent) if recent else 0.0}


LOG = logging.getLogger("vlrl.data")


@register("shuffle")
@dataclass(frozen=True)
class Shuffle(PromptSampler):
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
            raise ConfigError(f"prompt_sampler: workers={self.workers} must not be negative, and ahead={self.ahead} at least 1")

    def setup(self, run: RunContext) -> None:
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
                raise ConfigError("prompt_sampler: a whole epoch without a usable row; see quarantine.jsonl for the reasons")
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


KEY = "accuracies"


@register("shuffle_with_history")
@dataclass(frozen=True)
class ShuffleWithHistory(Shuffle):
    """As `shuffle`; the mean accuracy of each visit of a row joins the row's memory in the run's history, for sampler `by_history`.

    `slot` is the accuracy (empty: the first reward with a weight that scored the row). vlrl original (LIMR and 1-shot RLVR write such a log).
    All ranks see all sampled groups, also those that a gate refused, so their memories are equal. Memory: one number per row and visit.
    """

    slot: str = ""
    memory: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def setup(self, run: RunContext) -> None:
        super().setup(run)
        self.memory.update(history=run.history, slots=slots_of(run))

    def end_step(self, run: RunContext) -> None:
        groups = run.answered_groups
        for group in groups:
            if len(group):
                values = accuracies(group, self.slot, self.memory["slots"])
                self.memory["history"].setdefault(group.row.id, {}).setdefault(KEY, []).append(sum(values) / len(values))


@register("by_history")
@dataclass(frozen=True)
class ByHistory(PromptSampler):
    """The rows with least <= s <= most, at most the `top` best by s (0: all), in rounds of a new order each; s is made of a row's past accuracies.

    `score`: alignment (1 - sum_k (r_k - m_k)^2 / sum_k (1 - m_k)^2, m the mean curve over rows), spread (standard deviation over visits) or accuracy
    (mean). Rows with s >= `favour` come `copies` times a round.
    Paper: Li et al. 2025 (LIMR), arXiv:2502.11886: alignment, rows with s >= 0.6; Wang et al. 2025 (1-shot RLVR), arXiv:2504.20571: spread, the top
    one, as often as a batch needs. Both scores checked against the releases (lim_selection.py, data_selection.py). Deviates: a curve has the visits
    that every row had (as 1-shot RLVR's file; LIMR fills gaps with the next epoch and drops rows without a last one).
    Edge: of equal rows the one with the smaller id is first; rows that were never visited are out. Raises ConfigError where nothing is left.
    Reads what sampler `recorded` kept; equal on all ranks. `choose` is what `vlrl data select` asks. State: the choice and the place in it.
    """

    score: Literal["alignment", "spread", "accuracy"] = "alignment"
    least: float = -math.inf
    most: float = math.inf
    top: int = 0
    favour: float = math.inf
    copies: int = 1
    _state: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.score not in SCORES or self.top < 0 or self.copies < 1 or self.least > self.most:
            raise ConfigError(
                f"prompt_sampler: score={self.score!r} must be one of {', '.join(SCORES)}, top={self.top} at least 0, copies={self.copies} at least 1 and "
                f"least={self.least} not above most={self.most}"
            )

    def choose(self, series: Series) -> dict[str, float]:
        """Ids and scores of the chosen rows, the best first. Raises ConfigError where none is."""
        scores = SCORES[self.score](series)
        fit = sorted(((row, s) for row, s in scores.items() if self.least <= s <= self.most), key=lambda pair: (-pair[1], pair[0]))
        if not fit:
            found = (
                f"{len(scores)} rows have scores from {min(scores.values()):.3f} to {max(scores.values()):.3f}" if scores else "no row was visited"
            )
            raise ConfigError(f"sampler by_history: no row has a score ({self.score}) from {self.least} to {self.most}; {found}; record visits with "
                              "sampler recorded in an earlier phase, or choose other bounds")  # fmt: skip
        return dict(fit[: self.top or None])

    def setup(self, run: RunContext) -> None:
        self._state.update(rows=run.rows, history=run.history, seed=run.seed)

    def _choose(self) -> None:
        history: Mapping[str, Mapping[str, Any]] = self._state["history"]
        chosen = self.choose({row: memory[KEY] for row, memory in history.items() if KEY in memory})
        rows = ((source, index, row.id) for source, part in self._state["rows"].items() for index, row in enumerate(part))
        known = [([source, index], chosen[row]) for source, index, row in rows if row in chosen]
        places = [place for place, s in known for _ in range(self.copies if s >= self.favour else 1)]
        if not places:
            raise ConfigError(f"sampler by_history: the {len(chosen)} chosen rows are not among this phase's; train on the same data.train as before")
        self._state.update(chosen=places, place=0)

    def __call__(self, n: int) -> list[Row]:
        if "chosen" not in self._state:
            self._choose()
        state, out = self._state, []
        for _ in range(n):
            lap, place = divmod(state["place"], len(state["chosen"]))
            source, index = state["chosen"][permute(place, len(state["chosen"]), f"{state['seed']}|by_history {lap}")]
            state["place"] += 1
            out.append(state["rows"][source][index])
        return out

    def state_dict(self) -> dict[str, Any]:
        return {key: self._state[key] for key in ("chosen", "place") if key in self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state.update(state)

    def metrics(self) -> dict[str, float]:
        return {"data/chosen": float(len(self._state.get("chosen", ())))}
