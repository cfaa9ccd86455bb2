"""Prompt samplers: which rows the next step trains on.

shuffle                every row once per epoch, in a new order each time
shuffle_with_history   the same, and records the accuracy of every visit of a row
by_history             the rows that an earlier phase's record singles out (LIMR, 1-shot RLVR)
levels                 sources of rising difficulty, one after the other
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vlrl.methods.common.correctness import success_rate
from vlrl.methods.common.prefetch import Prefetcher, with_decoded_media
from vlrl.methods.common.row_order import Mixture, permute
from vlrl.plugins.contexts import StageContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import PromptSampler, State, transient
from vlrl.types import MediaError, Row, RowError

LOG = logging.getLogger("vlrl.data")
KEY = "accuracies"  # of a row's memory in the run's history: the accuracy of each visit, in order
MAX_PREFETCHED = 256  # media that are decoded ahead
MAX_FAILURES = 10_000  # unusable rows in a row that end the run

Series = Mapping[str, Sequence[float]]  # row id -> the accuracies of its visits, in order


@dataclass
class ShuffleState(State):
    """`position`: rows of the global order that were passed; `skipped`: unusable ones among them. The rest is
    made by `setup`."""

    position: int = 0
    skipped: int = 0
    mixture: Any = transient()  # the Mixture of the run's rows
    prefetcher: Prefetcher | None = transient()


@register("shuffle")
@dataclass(frozen=True)
class Shuffle(PromptSampler):
    """Every row once per epoch, in a new random order each epoch: row(position) = rows[permutation(seed,
    epoch)(position mod n)].

    `sampler(n)` gives the next n rows of one global order: every rank calls it with the same n and takes its
    share, so a run that is resumed on another number of ranks neither loses nor repeats a row. Memory is
    constant in the number of rows. vlrl original. State: the position. Reads `run.rows` (by source). Edge: a
    source of weight 0 gives all its rows once per epoch, whatever the weights of the others; an unusable row
    (RowError, or MediaError with `verify`) is skipped, logged and counted, on every rank alike.

    Attributes:
        temperature: T mixes sources without weights in proportion to size ** (1 / T).
        shuffle: false keeps the rows in the order of their sources.
        blocks: 0 shuffles all rows alike. k > 0, for data that is slow to read at random or larger than the
            disk cache: the blocks of a source (parquet row groups, tar files, other files) come in random
            order, and rows are shuffled among k successive blocks. Every row still comes once.
        workers: Threads that read the rows of the `ahead` next calls and decode their media while a step runs
            (0: when the policy asks for them).
        verify: Decodes every row's media before the row is given (on every rank), for datasets that were not
            checked before training.
    """

    state_class = ShuffleState
    temperature: float = 1.0
    shuffle: bool = True
    blocks: int = 0
    workers: int = 0
    ahead: int = 1
    verify: bool = False

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ConfigError(
                f"prompt_sampler.temperature: {self.temperature} is not above 0; 1 mixes by size, larger "
                "values more evenly"
            )
        if self.workers < 0 or self.blocks < 0 or self.ahead < 1:
            raise ConfigError(
                f"prompt_sampler: workers={self.workers} and blocks={self.blocks} must not be negative, "
                f"and ahead={self.ahead} must be at least 1"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.mixture = Mixture(
            run.rows, run.source_weights, run.seed, self.temperature, self.shuffle, self.blocks
        )
        if self.state.prefetcher is not None:  # of an earlier phase, with its rows
            self.state.prefetcher.close()
        self.state.prefetcher = Prefetcher(self.read, self.workers, MAX_PREFETCHED) if self.workers else None

    def __call__(self, n: int) -> list[Row]:
        state: ShuffleState = self.state
        rows: list[Row] = []
        failures = 0
        while len(rows) < n:
            row = self.usable_row(state.position)
            state.position += 1
            failures = 0 if row is not None else failures + 1
            if row is not None:
                rows.append(row)
            elif failures >= min(
                MAX_FAILURES, 2 * len(state.mixture)
            ):  # epochs have orders of their own: fewer failures may hold no whole one
                raise ConfigError(
                    f"prompt_sampler: {failures} rows in succession without a usable row; see "
                    "quarantine.jsonl for the reasons"
                )
        self._prefetch(n)
        return rows

    def read(self, position: int) -> Row:
        """The row at a position of the global order. Raises RowError if it cannot be used."""
        row: Row = self.state.mixture.row(position)
        return row

    def usable_row(self, position: int) -> Row | None:
        """The row at a position of the global order; None if it cannot be used."""
        state: ShuffleState = self.state
        try:
            row = self.read(position) if state.prefetcher is None else state.prefetcher.take(position)
            return with_decoded_media(row) if self.verify else row
        except (RowError, MediaError) as error:
            LOG.warning("the row at position %d is skipped: %s", position, error)
            state.skipped += 1
            return None

    def _prefetch(self, n: int) -> None:
        """Start reading the rows of the next `ahead` calls, and decoding this rank's share of them (all, with
        `verify`)."""
        state: ShuffleState = self.state
        if state.prefetcher is not None:
            first, ranks = state.position, self.run.ranks
            state.prefetcher.start(
                range(first, first + n * self.ahead),
                lambda place: self.verify or (place - first) % n % ranks == self.run.rank,
            )

    def metrics(self) -> dict[str, float]:
        epoch = {"data/epoch": self.state.position / len(self.state.mixture)}
        return epoch | ({"data/skipped": float(self.state.skipped)} if self.state.skipped else {})


@register("shuffle_with_history")
@dataclass(frozen=True)
class ShuffleWithHistory(Shuffle):
    """As `shuffle`; records the accuracy of each visit of a row (the share of correct rollouts) in the run's
    history, for sampler `by_history`.

    `visits_per_row` k: where the phase is too short to draw every row k times, only the first steps *
    prompts_per_step // k rows of the order are drawn, each k times, in whole epochs, with a warning; a score
    that compares visits needs at least two. 0: all rows, however often the phase reaches them. vlrl original
    (LIMR and 1-shot RLVR write such a log). All ranks see all sampled groups, also those that a group filter
    dropped, so their records are equal. Memory: one number per row and visit.
    """

    visits_per_row: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.visits_per_row < 0:
            raise ConfigError(
                f"prompt_sampler.visits_per_row: {self.visits_per_row} must not be negative; 2 or more "
                "lets `by_history` compare visits"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if self.visited_rows < len(self.state.mixture):
            needed = math.ceil(self.visits_per_row * len(self.state.mixture) / run.settings.prompts_per_step)
            run.warn(
                f"prompt_sampler: {run.settings.steps} steps cannot visit {len(self.state.mixture)} rows "
                f"{self.visits_per_row} times; "
                f"{self.visited_rows} are visited, the others never. All of them need steps: {needed}"
            )

    @property
    def visited_rows(self) -> int:
        """The number of rows that the phase draws."""
        rows = len(self.state.mixture)
        drawn = self.run.settings.steps * self.run.settings.prompts_per_step if self.visits_per_row else 0
        return (
            max(1, drawn // self.visits_per_row)
            if self.visits_per_row and drawn < self.visits_per_row * rows
            else rows
        )

    def read(self, position: int) -> Row:
        rows = self.visited_rows
        if rows < len(self.state.mixture):
            position = permute(position % rows, rows, f"{self.run.seed}|visit {position // rows}")
        return super().read(position)

    def end_step(self, run: StepContext) -> None:
        for group in run.answered_groups:
            if len(group):
                run.history.setdefault(group.row.id, {}).setdefault(KEY, []).append(
                    success_rate(group.rollouts)
                )


def first_visits(series: Series) -> dict[str, list[float]]:
    """The first K accuracies of every row, K being the smallest number of visits. Rows with one visit are
    left out where any row has more."""
    visited = {row: list(values) for row, values in series.items() if values}
    visited = {row: values for row, values in visited.items() if len(values) > 1} or visited
    fewest = min(map(len, visited.values()), default=0)
    return {row: values[:fewest] for row, values in visited.items()}


def alignment(series: Series) -> dict[str, float]:
    """LIMR's score of learning impact: s_i = 1 - sum_k (r_ik - m_k)^2 / sum_k (1 - m_k)^2 over the
    `first_visits`, m_k the mean over rows.

    1 for all rows where every m_k is 1.
    """
    visits = first_visits(series)
    mean_K = [sum(column) / len(column) for column in zip(*visits.values())]
    largest = sum((1 - mean) ** 2 for mean in mean_K)
    return {
        row: 1 - sum((r - m) ** 2 for r, m in zip(values, mean_K)) / largest if largest else 1.0
        for row, values in visits.items()
    }


def spread(series: Series) -> dict[str, float]:
    """The population standard deviation over all of a row's visits. Rows with one visit are left out where
    any row has more."""
    out = {}
    several = any(len(values) > 1 for values in series.values())
    for row, values in series.items():
        if len(values) > several:
            mean = sum(values) / len(values)
            out[row] = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return out


def accuracy(series: Series) -> dict[str, float]:
    """The mean over a row's visits."""
    return {row: sum(values) / len(values) for row, values in series.items() if values}


SCORES = {"alignment": alignment, "spread": spread, "accuracy": accuracy}
COMPARES_VISITS = ("alignment", "spread")  # scores that say nothing about a single visit


@dataclass
class ByHistoryState(State):
    """`chosen`: (source, index) of each row of a round, with copies, empty before the first call; `place`:
    rows that were drawn."""

    chosen: list[Any] = field(default_factory=list)
    place: int = 0


@register("by_history")
@dataclass(frozen=True)
class ByHistory(PromptSampler):
    """LIMR's and 1-shot RLVR's selection: rows with low <= s <= high, at most the `top` best by s (0: all); s
    is a score of a row's past accuracies.

    Rounds have new orders. Paper: Li et al. 2025 (LIMR), arXiv:2502.11886: alignment, s >= 0.6
    (lim_selection.py); Wang et al. 2025 (1-shot RLVR), arXiv:2504.20571: spread, the top one
    (data_selection.py). Deviates: a curve has the visits that every row had. Edge: of equal rows the smaller
    id is first; without a row within the bounds the nearest are taken, without two visits of any row, where a
    score needs them, all visited rows, with a warning. Raises ConfigError where none was visited. Reads
    records of sampler `shuffle_with_history`. State: choice, place.

    Attributes:
        score: alignment (1 - sum_k (r_k - m_k)^2 / sum_k (1 - m_k)^2, m the mean curve over rows), spread
            (standard deviation over visits) or accuracy (mean).
        favour: Rows with s at least this come `copies` times a round.
    """

    state_class = ByHistoryState
    unbounded: ClassVar[str] = "low high favour"
    score: Literal["alignment", "spread", "accuracy"] = "alignment"
    low: float = -math.inf
    high: float = math.inf
    top: int = 0
    favour: float = math.inf
    copies: int = 1

    def __post_init__(self) -> None:
        if self.score not in SCORES or self.top < 0 or self.copies < 1 or self.low > self.high:
            raise ConfigError(
                f"prompt_sampler: score={self.score!r} must be one of {', '.join(SCORES)}, top={self.top} "
                f"at least 0, copies={self.copies} at least "
                f"1 and low={self.low} not above high={self.high}"
            )

    def choose(self, series: Series) -> dict[str, float]:
        """Ids and scores of the chosen rows, the best first. Raises ConfigError where none fits."""
        scores = SCORES[self.score](series)
        fitting = sorted(
            ((row, s) for row, s in scores.items() if self.low <= s <= self.high),
            key=lambda pair: (-pair[1], pair[0]),
        )
        if not fitting:
            found = "no row was visited"
            if scores:
                found = (
                    f"{len(scores)} rows have scores from {min(scores.values()):.3f} to "
                    f"{max(scores.values()):.3f}"
                )
            raise ConfigError(
                f"prompt_sampler: by_history finds no row with a score ({self.score}) from {self.low} to "
                f"{self.high}; {found}; record visits with "
                "prompt_sampler: {name: shuffle_with_history} in an earlier phase, or choose other bounds"
            )
        return dict(fitting[: self.top or None])

    def choose_or_nearest(self, series: Series) -> dict[str, float]:
        """As `choose`; where no visited row is within the bounds, all rows whose score is nearest to them."""
        scores = SCORES[self.score](series)
        if scores and self.score in COMPARES_VISITS and max(map(len, series.values())) < 2:
            self.run.warn(
                f"prompt_sampler: by_history: the score {self.score} compares visits, and no row was "
                "visited twice: it says nothing, and the visited "
                "rows are taken; set prompt_sampler: {name: shuffle_with_history, visits_per_row: 2} in "
                "the phase that records, or score: accuracy"
            )
            return dict.fromkeys(sorted(scores)[: self.top or None], 0.0)
        if not scores or any(self.low <= s <= self.high for s in scores.values()):
            return self.choose(series)
        distance = {row: max(self.low - s, s - self.high) for row, s in scores.items()}
        nearest = {
            row: scores[row] for row in sorted(scores) if distance[row] <= min(distance.values()) + 1e-9
        }
        self.run.warn(
            f"prompt_sampler: by_history: no row has a score ({self.score}) from {self.low} to "
            f"{self.high}; the {len(nearest)} nearest are taken, at "
            f"{next(iter(nearest.values())):.3f}"
        )
        return dict(list(nearest.items())[: self.top or None])

    def _choose_rows(self) -> None:
        series = {row: memory[KEY] for row, memory in self.run.history.items() if KEY in memory}
        chosen = self.choose_or_nearest(series)
        rows = (
            (source, index, row.id)
            for source, part in self.run.rows.items()
            for index, row in enumerate(part)
        )
        known = [([source, index], chosen[row]) for source, index, row in rows if row in chosen]
        self.state.chosen = [
            place for place, s in known for _ in range(self.copies if s >= self.favour else 1)
        ]
        if not self.state.chosen:
            raise ConfigError(
                f"prompt_sampler: by_history: the {len(chosen)} chosen rows are not among this phase's; "
                "train on the same data.train as before"
            )

    def __call__(self, n: int) -> list[Row]:
        state: ByHistoryState = self.state
        if not state.chosen:
            self._choose_rows()
        rows = []
        for _ in range(n):
            lap, place = divmod(state.place, len(state.chosen))
            source, index = state.chosen[
                permute(place, len(state.chosen), f"{self.run.seed}|by_history {lap}")
            ]
            state.place += 1
            rows.append(self.run.rows[source][index])
        return rows

    def metrics(self) -> dict[str, float]:
        return {"data/chosen": float(len(self.state.chosen))}


@dataclass
class LevelsState(State):
    """`level` in training; `drawn` rows of all levels; `finished` groups of this level; their last
    accuracies; `positions` (rows drawn) by level.

    `mixtures` are the levels' row orders, `served` is the level of each row that was drawn in this step.
    """

    level: int = 0
    drawn: int = 0
    finished: int = 0
    recent: list[float] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    mixtures: list[Mixture] = transient(factory=list)
    served: dict[str, int] = transient(factory=dict)


@register("levels")
@dataclass(frozen=True)
class Levels(PromptSampler):
    """SATURN's curriculum: the level rises when the mean accuracy of its last `window` groups reaches
    `threshold`, or after `max_groups` groups.

    The sources under `data.train` are the levels, in their order. Accuracy is the share of correct rollouts.
    Paper: SATURN, arXiv:2505.16368, sec. 3.4 (its scripts, gtxygyzb/Saturn-code 2cc9d746, train one pass over
    each level); Ariadne, arXiv:2511.00710 (mazes grow with accuracy); Jigsaw-R1, arXiv:2505.23590 (stages
    after so many prompts: a threshold above 1, `max_groups` set). Deviates: the accuracy is that of the
    training groups, not of a held-out set of the level. Edge: the last level stays. Reads `run.rows` (by
    source). State: level, recent accuracies, positions.

    Attributes:
        max_groups: 0: no bound.
        equal: Bounds every level by its equal part of the phase's steps.
        epochs: Bounds every level by as many passes over its rows (0: no bound).
        review: Share of rows that are drawn from mastered levels.
    """

    state_class = LevelsState
    threshold: float = 0.75
    window: int = 32
    max_groups: int = 0
    review: float = 0.0
    equal: bool = False
    epochs: int = 0

    def __post_init__(self) -> None:
        if self.window < 1 or min(self.max_groups, self.epochs) < 0 or not 0 <= self.review < 1:
            raise ConfigError(
                f"prompt_sampler: window={self.window} must be at least 1, max_groups={self.max_groups} "
                f"and epochs={self.epochs} at least 0, "
                f"review={self.review} in [0, 1)"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.mixtures = [Mixture({name: rows}, {}, run.seed) for name, rows in run.rows.items()]
        self.state.positions = self.state.positions or [0] * len(self.state.mixtures)
        self.state.served = {}

    def __call__(self, n: int) -> list[Row]:
        return [self._next() for _ in range(n)]

    def _next(self) -> Row:
        state: LevelsState = self.state
        rng = random.Random(f"{self.run.seed}|levels|{state.drawn}")
        state.drawn += 1
        level = state.level
        if level and rng.random() < self.review:
            level = rng.randrange(level)
        row = state.mixtures[level].row(state.positions[level])
        state.positions[level] += 1
        state.served[row.id] = level
        return row

    def end_step(self, run: StepContext) -> None:
        state: LevelsState = self.state
        accuracies = [
            success_rate(group.rollouts)
            for group in run.answered_groups
            if state.served.get(group.row.id) == state.level
        ]
        state.served.clear()
        state.finished += len(accuracies)
        state.recent = (state.recent + accuracies)[-self.window :]
        mastered = len(state.recent) == self.window and sum(state.recent) / self.window >= self.threshold
        over = self.equal and (state.level + 1) * run.settings.steps <= (run.phase_step + 1) * len(
            state.mixtures
        )
        passed = (
            0 < self.max_groups <= state.finished
            or 0 < self.epochs * len(state.mixtures[state.level]) <= state.finished
        )
        if state.level + 1 < len(state.mixtures) and (mastered or over or passed):
            state.level, state.finished, state.recent = state.level + 1, 0, []

    def metrics(self) -> dict[str, float]:
        recent = self.state.recent
        return {
            "data/level": float(self.state.level),
            "data/level_accuracy": sum(recent) / len(recent) if recent else 0.0,
        }
