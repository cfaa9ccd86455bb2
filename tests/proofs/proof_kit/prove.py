"""`prove`: a preset's runs with its mechanism on, off and reversed, and what they say."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proof_kit import credit_observables  # noqa: F401  (registers)
from proof_kit.observables import OBSERVABLES, Record, StepRecord
from proof_kit.proof import Proof, base_of, proof_config, proof_of, task_of, trainer_settings
from proof_kit.reversal import reversed_config
from proof_kit.row_observables import NAMED_OBSERVABLES
from vlrl.activity.check import PhaseCheck, check
from vlrl.activity.figures import Finding
from vlrl.activity.observer import Activity
from vlrl.config import Config
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.session import Session
from vlrl.trainer.step.step import Step

if TYPE_CHECKING:
    from torch import Tensor

KEPT = 8  # observed runs: those of a proof, and what the next ones share with it
ROWS = 16  # of each source that a proof validates: it trains on few
TIMES = ("seconds", "per_second", "memory")  # parts of metric names that differ between equal runs


@dataclass
class Observed:
    """One observed run: its phases' checks and records."""

    checks: list[PhaseCheck]
    records: dict[str, Record]

    def number(self, name: str, phase: str) -> float | None:
        """An observable of a phase ("" is the last one); None where the slot or metric is not there. Raises
        KeyError for an unknown phase."""
        known = [result.phase for result in self.checks]
        if phase and phase not in known:
            raise KeyError(f"no phase {phase!r}; there are {known}")
        result = self.checks[known.index(phase) if phase else -1]
        if name in OBSERVABLES:
            return OBSERVABLES[name](self.records[result.phase])
        kind, _, rest = name.partition("/")
        if kind in NAMED_OBSERVABLES:
            return NAMED_OBSERVABLES[kind](self.records[result.phase], rest)
        if kind == "log":
            values = [step[rest] for step in result.log if rest in step]
            return sum(values) / len(values) if values else None
        slot = name.rpartition("/")[0]
        if slot not in result.figures:
            return None
        return result.figures.value(name)

    @property
    def log(self) -> list[dict[str, float]]:
        """The metrics of all steps without timings."""
        return [
            {k: v for k, v in step.items() if not any(part in k for part in TIMES)}
            for result in self.checks
            for step in result.log
        ]

    @property
    def bad(self) -> list[Finding]:
        """Dead and contradictory slots of all phases."""
        return [finding for result in self.checks for finding in result.bad]


@dataclass(frozen=True)
class Verdict:
    """The comparison: the main observable on, off and reversed; the observables that did not move as stated;
    whether off equals what it was compared with; whether the main observable fails in the reversed run (None:
    not run)."""

    preset: str
    observe: str
    on: float | None
    off: float | None
    failed: tuple[str, ...]
    off_is_base: bool
    bad: tuple[Finding, ...]
    turned: float | None = None
    reversed_fails: bool | None = None

    @property
    def holds(self) -> bool:
        """Whether all observables moved as stated."""
        return not self.failed

    @property
    def proven(self) -> bool:
        """Whether nothing speaks against the proof."""
        return self.holds and self.off_is_base and not self.bad and self.reversed_fails is not False

    def __str__(self) -> str:
        problems = [] if self.holds else [f"the stated direction does not hold ({', '.join(self.failed)})"]
        problems += [] if self.off_is_base else ["switched off, it is not what it extends"]
        problems += ["the reversed run passes too"] if self.reversed_fails is False else []
        problems += [str(finding) for finding in self.bad]
        turned = "" if self.reversed_fails is None else f", reversed {text(self.turned)}"
        values = f"off {text(self.off)}, on {text(self.on)}{turned}"
        return f"{self.preset}: {self.observe} {values}{': ' + '; '.join(problems) if problems else ''}"


def text(value: float | None) -> str:
    """A figure of the table."""
    return "absent" if value is None else f"{value:.4g}"


OBSERVED: dict[str, Observed] = {}


def observe(config: Config, steps: int) -> Observed:
    """Train a config for some steps; one that equals one of the last `KEPT` is not trained again."""
    key = json.dumps([_essence(config), steps], sort_keys=True, default=str)
    if key not in OBSERVED:
        records: dict[str, Record] = {}
        weights: dict[str, list[Tensor]] = {}  # of the last step, by phase

        def after_step(session: Session, step: Step, activity: Activity) -> None:
            phase = session.phase
            now = [p.detach().clone() for p in session.policy.model.parameters()]
            changed = changed_share(weights[phase], now) if phase in weights else None
            weights[phase] = now
            records.setdefault(phase, Record()).steps.append(
                StepRecord(
                    list(step.sampled_groups),
                    list(step.trained_groups),
                    dict(activity.gradients),
                    changed,
                    dict(activity.tensors),
                )
            )

        checks = check(config, steps, after_step, keep_gradients=True, rows=ROWS)
        OBSERVED[key] = Observed(
            checks, {result.phase: records.get(result.phase, Record()) for result in checks}
        )
        if len(OBSERVED) > KEPT:  # records hold all tensors of a run
            OBSERVED.pop(next(iter(OBSERVED)))
    return OBSERVED[key]


def changed_share(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Share of the numbers that differ."""
    return sum(int((a != b).sum()) for a, b in zip(before, after, strict=True)) / max(
        sum(a.numel() for a in after), 1
    )


def _essence(config: Config) -> dict[str, Any]:
    """The config without what changes no number."""
    tree = copy.deepcopy(config.tree)
    return {
        key: value
        for key, value in tree.items()
        if key not in ("about", "output", "watch", "eval") and value not in ({}, None)
    }


def prove(preset: str, turn: bool = False) -> Verdict:
    """Run a preset's proof; `turn`: with the reversed run, where one is stated. Raises ConfigError for a
    preset without a proof."""
    proof, task = proof_of(preset), task_of(preset)
    if proof is None:
        raise ConfigError(f"{preset}: no proof; state one in tests/proofs")
    on_config = proof_config(preset, task, proof, proof.on)
    off_config = proof_config(preset, task, proof, proof.off)
    base_config = proof_config(
        base_of(preset, proof), task, proof, proof.base, trainer_settings(preset, proof)
    )
    on, off = observe(on_config, proof.steps), observe(off_config, proof.steps)
    same = _essence(off_config) == _essence(base_config) or off.log == observe(base_config, proof.steps).log
    failed = moved_otherwise(proof, on, off)
    turned = None
    if turn and proof.reversed:
        turned = observe(reversed_config(preset, task, proof, on_config, off_config), proof.steps)
    return Verdict(
        preset,
        proof.observe,
        on.number(proof.observe, proof.phase),
        off.number(proof.observe, proof.phase if proof.phase in off.records else ""),
        failed,
        same,
        tuple(on.bad),
        turned.number(proof.observe, proof.phase) if turned else None,
        proof.observe in moved_otherwise(proof, turned, off) if turned else None,
    )


def moved_otherwise(proof: Proof, on: Observed, off: Observed) -> tuple[str, ...]:
    """The observables that did not move as stated, from `off` to `on`."""
    phase = proof.phase if proof.phase in off.records else ""
    return tuple(
        name
        for name, direction in proof.observables().items()
        if not holds(on.number(name, proof.phase), off.number(name, phase), direction)
    )


def holds(on: float | None, off: float | None, direction: str) -> bool:
    """Whether the observable moved in the stated direction; a slot or metric that is absent with the
    mechanism off counts as 0 there."""
    if on is None:
        return False
    before = 0.0 if off is None else off
    if math.isclose(on, before, rel_tol=1e-5):  # the order of a sum moves as much
        return False
    return {"up": on > before, "down": on < before, "changes": on != before}[direction]
