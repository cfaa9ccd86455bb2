"""Generalisation of RLVR within and across levels of causal queries.

`causalrlvr` is a callback. Paper: Lu et al. 2025, arXiv:2512.20760.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from vlrl.functional.exact import mean
from vlrl.methods.core.base_comparison import BaseComparison
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.finding import PaperFinding, RunNumbers, nothing
from vlrl.plugins.registry import build, register
from vlrl.plugins.stages import Source
from vlrl.types import Row


@register("causalrlvr")
@dataclass(frozen=True, kw_only=True)
class Causalrlvr(BaseComparison):
    """Pass@1 of the base and of the trained model by level ("base/LEVEL", "now/LEVEL"), on `prompts` rows of
    `source`; "trained/LEVEL" is 1 for a level of the training rows. A row's level is `meta.level`.

    One run is a row of the paper's matrix of levels. Its finding: training raises its own levels (within) and
    others (across), where the base model is able enough: its pass@1 on the trained levels is `least` or more.
    Paper: Lu et al. 2025, arXiv:2512.20760 (there "able enough" is told by the size of the model; the number
    is ours). Edge: levels without rows are left out.

    Attributes:
        source: Where the rows that are asked come from; not those that are trained on.
        least: See above.
    """

    source: Mapping[str, Any] = field(default_factory=dict)
    least: float = 0.1

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        build(Source, self.source, "callbacks: 'causalrlvr' source")

    def rows(self, run: StageContext) -> list[Row]:
        return list(islice(build(Source, self.source)(), self.prompts))

    def compare(
        self, run: StageContext, base: Mapping[str, Sequence[float]], now: Mapping[str, Sequence[float]]
    ) -> dict[str, float]:
        level_of = {row.id: level(row) for row in self.rows(run)}
        trained = levels(row for rows in run.rows.values() for row in islice(rows, self.prompts))
        out: dict[str, float] = {}
        for name in sorted(set(level_of.values())):
            for side, counts in (("base", base), ("now", now)):
                rates = [row[1] / row[0] for key, row in counts.items() if level_of.get(key) == name]
                out |= {f"{side}/{name}": mean(rates)} if rates else {}
            out[f"trained/{name}"] = float(name in trained)
        return out

    def finding(self, numbers: RunNumbers) -> PaperFinding | None:
        rates: dict[str, tuple[float, float]] = {}
        for name in (key.partition("/")[2] for key in numbers.names() if key.startswith("trained/")):
            before, after = numbers.last(f"base/{name}"), numbers.last(f"now/{name}")
            if before is not None and after is not None:
                rates[name] = (before, after)
        within = {name: pair for name, pair in rates.items() if numbers.last(f"trained/{name}")}
        across = {name: pair for name, pair in rates.items() if name not in within}
        if not within:
            return nothing("no level of the training rows was asked")
        able = mean([before for before, _ in within.values()]) >= self.least
        gains = {
            kind: mean([after - before for before, after in pairs.values()])
            for kind, pairs in (("within", within), ("across", across))
            if pairs
        }
        gained = ", ".join(f"{kind} {gain:+.3f}" for kind, gain in gains.items())
        told = ", ".join(
            f"{name}{' (trained)' if name in within else ''} {before:.3f} -> {after:.3f}"
            for name, (before, after) in rates.items()
        )
        return PaperFinding(
            f"pass@1 by level: {told}; gain {gained}; the base model is {'' if able else 'not '}"
            f"able enough (threshold {self.least:g}). The paper: "
            "gains within and across levels, and only from a base model that is able enough.",
            None if not across else all(gain > 0 for gain in gains.values()) == able,
        )


def level(row: Row) -> str:
    """The row's level."""
    return str(row.meta.get("level", "none"))


def levels(rows: Iterable[Row]) -> set[str]:
    """The levels of rows."""
    return {level(row) for row in rows}
