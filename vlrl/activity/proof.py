"""Proofs of presets: a preset states in `about` what its mechanism changes; `prove` runs it with the
mechanism on and off and compares.

about:
  kind: method                        # method, recipe (values and data only) or probe (measures only)
  task: lab_chains                    # config of tasks/ on which it is shown
  proof:
    observe: mixed_groups             # an observable (vlrl/activity/observables.py), "slot/figure" of the
    activity report, "log/metric", or
                                      # one with an argument (vlrl/activity/row_observables.py):
                                      "advantage_of/PATTERN", "rows_of/knights"
    direction: up                     # of the observable with the mechanism on: up, down or changes
    also: {log/kl: down}              # further observables with their directions, where a preset has several
    mechanisms off: [group_filters.mixed=null]   # overrides that switch the mechanism off
    on: [policy_loss.share=0.1]       # overrides of the side with the mechanism: values that are made for
    larger batches or longer runs with: [engine.skill=0.3]          # overrides of both sides: sizes, and what
    the scripted policy writes
    against: methods/grpo             # what "off" must equal; else the last preset that it extends, else
    methods/grpo base: [rewards.x={name: exact}]   # overrides of that alone: a plain reward where the task's
    own is the mechanism
    steps: 3
    phase: rl                         # the phase to look at; else the last one; likewise where the run
    without the mechanism has no such phase engine: hf                        # who samples: the scripted
    policy (`scripted`, the default) or the tiny model
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from vlrl.activity.check import PhaseCheck, check, whole_batches
from vlrl.activity.figures import Finding
from vlrl.activity.observables import OBSERVABLES, Record, StepRecord
from vlrl.activity.row_observables import NAMED_OBSERVABLES
from vlrl.config import Config, load, own_tree
from vlrl.plugins.contexts import RunContext
from vlrl.plugins.registry import ConfigError, make, suggest

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("method", "recipe", "probe")
DIRECTIONS = ("up", "down", "changes")
ROWS = 16  # of each source that a proof validates: it trains on few
TIMES = ("seconds", "per_second", "memory")  # parts of metric names that differ between equal runs


@dataclass(frozen=True)
class Proof:
    """What a preset's mechanism changes, as stated in `about.proof`."""

    observe: str
    off: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    base: tuple[str, ...] = ()
    direction: Literal["up", "down", "changes"] = "changes"
    against: str = ""
    steps: int = 3
    phase: str = ""
    with_: tuple[str, ...] = field(default=())
    engine: str = "scripted"
    also: Mapping[str, str] = field(default_factory=dict)

    def observables(self) -> dict[str, str]:
        """All observables with their directions, the main one first."""
        return {self.observe: self.direction, **self.also}


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
    """The comparison: the observable on and off, whether the direction holds, and whether off equals what it
    was compared with."""

    preset: str
    observe: str
    on: float | None
    off: float | None
    holds: bool
    off_is_base: bool
    bad: tuple[Finding, ...]
    against_it: tuple[str, ...] = ()  # observables that did not move as stated

    def __str__(self) -> str:
        def text(value: float | None) -> str:
            return "absent" if value is None else f"{value:.4g}"

        problems = (
            [] if self.holds else [f"the stated direction does not hold ({', '.join(self.against_it)})"]
        )
        problems += [] if self.off_is_base else ["switched off, it is not what it extends"]
        problems += [str(finding) for finding in self.bad]
        return (
            f"{self.preset}: {self.observe} off {text(self.off)}, on "
            f"{text(self.on)}{': ' + '; '.join(problems) if problems else ''}"
        )


def proof_of(about: Mapping[str, Any], preset: str) -> Proof | None:
    """The proof that a preset states, None without one. Raises ConfigError for unknown or missing keys."""
    stated = about.get("proof")
    if stated is None:
        return None
    if not isinstance(stated, Mapping):
        raise ConfigError(
            f"{preset}: about.proof: expected a mapping with observe, direction and off, got {stated!r}"
        )
    values = {"with_" if key == "with" else key: value for key, value in stated.items()}
    for key in ("off", "on", "base", "with_"):
        if isinstance(values.get(key), str):
            values[key] = [values[key]]
    proof = make(Proof, values, f"{preset}: about.proof")
    for name, direction in proof.observables().items():
        if "/" not in name and name not in OBSERVABLES:
            raise ConfigError(f"{preset}: about.proof: no observable {name!r}.{suggest(name, OBSERVABLES)}")
        if direction not in DIRECTIONS:
            raise ConfigError(
                f"{preset}: about.proof: direction {direction!r} of {name!r} is not one of "
                f"{', '.join(DIRECTIONS)}"
            )
    return proof


@cache
def model_of(task: str) -> str:
    """The tiny model that can read a task's rows, and the pictures that its environment answers with: text,
    or pictures and videos."""
    from vlrl.methods.common.conversation import PICTURE_REPLIES
    from vlrl.trainer.data.rows import read_rows
    from vlrl.trainer.run import Run

    run = Run(load(["base/rl", "models/tiny_qwen2_5_vl", f"tasks/{task}"]))
    rows = next(iter(read_rows(run, "train").values()))
    return "models/tiny_qwen2_5_vl" if rows[0].media or run.has(PICTURE_REPLIES) else "models/tiny_text"


def proof_config(preset: str, task: str, proof: Proof | None, overrides: Sequence[str] = ()) -> Config:
    """A preset on its task, with the scripted policy (or what the proof names) and small batches."""
    engine = [f"engine={{name: {proof.engine}}}"] if proof is not None and proof.engine != "scripted" else []
    both = proof.with_ if proof is not None else ()
    model = next((value.partition("=")[2] for value in both if value.startswith("model=")), model_of(task))
    values = [value for value in both if not value.startswith("model=")]
    return load(["base/rl", model, f"tasks/{task}", preset, "base/scripted"], [*engine, *values, *overrides])


def shipped_config(preset: str, all_values: bool = False) -> Config:
    """A preset on its own task as it is shipped, in small batches, with the proof's script of the policy (its
    `engine.*`).

    `all_values`: with all of the proof's `with` and `on`: values made for few steps, and what the preset
    leaves to its user, such as a teacher. Raises ConfigError for a preset without a task.
    """
    about = about_of(preset)
    if not about.get("task"):
        raise ConfigError(f"{preset}: about.task is not set")
    proof = proof_of(about, preset)
    script = [value for value in (proof.with_ if proof else ()) if value.startswith("engine.")]
    if all_values and proof is not None:
        return proof_config(preset, str(about["task"]), proof, proof.on)
    config = proof_config(preset, str(about["task"]), None, script)
    return proof_config(preset, str(about["task"]), None, [*script, *whole_batches(config)])


OBSERVED: dict[str, Observed] = {}


def observe(config: Config, steps: int) -> Observed:
    """Train a config for some steps; equal configs are trained once per process."""
    key = json.dumps([_essence(config), steps], sort_keys=True, default=str)
    if key not in OBSERVED:
        records: dict[str, Record] = {}
        weights: dict[str, list[Tensor]] = {}  # of the last step, by phase

        def after_step(run: RunContext) -> None:
            gradients = dict(run.activity.gradients)
            now = [p.detach().clone() for p in run.policy.model.parameters()]
            changed = changed_share(weights[run.phase], now) if run.phase in weights else None
            weights[run.phase] = now
            records.setdefault(run.phase, Record()).steps.append(
                StepRecord(list(run.sampled_groups), list(run.trained_groups), gradients, changed)
            )

        checks = check(config, steps, after_step, keep_gradients=True, rows=ROWS)
        OBSERVED[key] = Observed(
            checks, {result.phase: records.get(result.phase, Record()) for result in checks}
        )
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


def about_of(preset: str) -> dict[str, Any]:
    """A preset's own `about`, and what it inherits of `paper` and `fidelity`."""
    inherited = load([preset]).tree.get("about") or {}
    own = own_tree(preset).get("about") or {}
    return {**{key: inherited[key] for key in ("paper", "fidelity") if key in inherited}, **own}


def base_of(preset: str, proof: Proof) -> str:
    """What a preset with its mechanism off must equal."""
    if proof.against:
        return proof.against
    extends = own_tree(preset).get("extends") or []
    extends = [extends] if isinstance(extends, str) else extends
    return next((name for name in reversed(extends) if name.startswith("methods/")), "methods/grpo")


def prove(preset: str) -> Verdict:
    """Run a preset's proof. Raises ConfigError for a preset that states none."""
    about = about_of(preset)
    proof = proof_of(about, preset)
    if proof is None or not about.get("task"):
        raise ConfigError(f"{preset}: about.task and about.proof are not set")
    task = str(about["task"])
    on_config = proof_config(preset, task, proof, proof.on)
    off_config = proof_config(preset, task, proof, proof.off)
    base_config = proof_config(base_of(preset, proof), task, proof, proof.base)
    on, off = observe(on_config, proof.steps), observe(off_config, proof.steps)
    same = _essence(off_config) == _essence(base_config) or off.log == observe(base_config, proof.steps).log
    phase = proof.phase if proof.phase in off.records else ""
    values = {name: (on.number(name, proof.phase), off.number(name, phase)) for name in proof.observables()}
    against = tuple(
        name for name, direction in proof.observables().items() if not holds(*values[name], direction)
    )
    return Verdict(preset, proof.observe, *values[proof.observe], not against, same, tuple(on.bad), against)


def holds(on: float | None, off: float | None, direction: str) -> bool:
    """Whether the observable moved in the stated direction; a slot or metric that is absent with the
    mechanism off counts as 0 there."""
    if on is None:
        return False
    before = 0.0 if off is None else off
    return {"up": on > before, "down": on < before, "changes": on != before}[direction]
