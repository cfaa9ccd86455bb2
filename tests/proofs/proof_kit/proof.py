"""What a proof states (tests/proofs/<id>.yaml), and the configs of its runs.

observe: mixed_groups            # an observable of this kit, "slot/figure" of the activity report,
                                 # "log/metric", or one with an argument: "advantage_of/PATTERN"
direction: up                    # of the observable with the mechanism on: up, down or changes
also: {log/kl: down}             # further observables, where a preset has several mechanisms
off: [group_filters.mixed=null]  # overrides that switch the mechanism off
on: [policy_loss.share=0.1]      # overrides of the side with the mechanism
reversed: [group_filters.mixed]  # overrides that turn the mechanism round, or slots (reversal.py), or none
why: speed has no opposite       # with `reversed: none`, the reason
with: [engine.skill=0.3]         # overrides of all sides: sizes, and what the scripted policy writes
against: methods/grpo            # what "off" must equal, with the trainer's settings of the preset
                                 # (trainer_settings); else the last preset that it extends, or methods/grpo
base: [rewards.x={name: exact}]  # overrides of that alone
steps: 3
scaled: {rollout.rate: reason}   # values of the preset that the proof does not keep (test_shipped_values.py)
phase: rl                        # the phase to look at; else the last one
engine: hf                       # who samples: scripted (the default), or the tiny model
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from proof_kit.observables import OBSERVABLES
from proof_kit.row_observables import NAMED_OBSERVABLES
from vlrl.activity.check import whole_batches
from vlrl.config import Config, folders, load, own_tree
from vlrl.config.config import SLOTS
from vlrl.config.yaml import read_file
from vlrl.plugins.registry import ConfigError, make, suggest

FOLDER = Path(__file__).parents[1]
KINDS = ("method", "recipe", "probe")
DIRECTIONS = ("up", "down", "changes")
TRAINER_SETTINGS = (  # what a trainer (configs/base/trainers) and its script set
    "num_minibatches", "ppo_epochs", "logp_temperature", "sampling.temperature", "sampling.top_p",
    "sampling.top_k", "reward_shaping.kl", "advantage.eps", "advantage.unbiased", "advantage.scale",
    "policy_loss", "loss_terms.kl", "loss_terms.entropy", "loss_aggregation", "optimizer.weight_decay",
    "optimizer.betas", "optimizer.eps", "optimizer.min_lr_share", "optimizer.max_grad_norm",
)  # fmt: skip
PLAIN = {"advantage": ("grpo",), "policy_loss": ("ppo_clip", "policy_gradient")}  # others are mechanisms


@dataclass(frozen=True)
class Proof:
    """What a preset's mechanism changes."""

    observe: str
    off: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    base: tuple[str, ...] = ()
    reversed: tuple[str, ...] = ()
    why: str = ""
    direction: Literal["up", "down", "changes"] = "changes"
    against: str = ""
    steps: int = 3
    phase: str = ""
    with_: tuple[str, ...] = field(default=())
    engine: str = "scripted"
    also: Mapping[str, str] = field(default_factory=dict)
    scaled: Mapping[str, str] = field(default_factory=dict)

    def observables(self) -> dict[str, str]:
        """All observables with their directions, the main one first."""
        return {self.observe: self.direction, **self.also}


def presets() -> list[str]:
    """All presets of `methods/`."""
    return sorted(f"methods/{path.stem}" for path in (folders()[-1] / "methods").glob("*.yaml"))


def parse(stated: Mapping[str, Any], place: str) -> Proof:
    """A proof from what a file states. Raises ConfigError for unknown or missing keys."""
    values = {"with_" if key == "with" else key: value for key, value in stated.items()}
    if ("why" in values) is not (values.get("reversed") == "none"):
        raise ConfigError(f"{place}: `why` gives the reason of `reversed: none`, and that needs one")
    if values.get("reversed") == "none":
        values["reversed"] = []
    for key in ("off", "on", "base", "with_", "reversed"):
        if isinstance(values.get(key), str):
            values[key] = [values[key]]
    proof = make(Proof, values, place)
    for name, direction in proof.observables().items():
        kind = name.partition("/")[0].partition(".")[0]
        known = {*NAMED_OBSERVABLES, "log", *SLOTS} if "/" in name else OBSERVABLES
        if kind not in known:
            raise ConfigError(f"{place}: no observable {name!r}.{suggest(kind, known)}")
        if direction not in DIRECTIONS:
            raise ConfigError(
                f"{place}: direction {direction!r} of {name!r} is not one of {', '.join(DIRECTIONS)}"
            )
    return proof


@cache
def proof_of(preset: str) -> Proof | None:
    """The proof of a preset, None where there is none. Raises ConfigError."""
    path = FOLDER / f"{preset.removeprefix('methods/')}.yaml"
    return parse(read_file(path)[0] or {}, path.name) if path.is_file() else None


@cache
def model_of(task: str) -> str:
    """The tiny model that can read a task's rows, and the pictures that its environment answers with: text,
    pictures and videos, or sounds."""
    from vlrl.plugins.episodes import PICTURE_REPLIES
    from vlrl.trainer.plan import Plan

    phase = Plan.of(load(["base/rl", "models/tiny_qwen2_5_vl", f"tasks/{task}"])).phases[0]
    rows = next(iter(phase.rows("train").values()))
    if rows[0].audios:
        return "models/tiny_qwen2_5_omni"
    return "models/tiny_qwen2_5_vl" if rows[0].media or phase.has(PICTURE_REPLIES) else "models/tiny_text"


def proof_config(
    preset: str,
    task: str,
    proof: Proof | None,
    overrides: Sequence[str] = (),
    trainer: Sequence[str] = (),
) -> Config:
    """A preset on its task, with the scripted policy (or what the proof names) and small batches. `trainer`:
    overrides below those of the proof (`trainer_settings`)."""
    engine = [f"engine={{name: {proof.engine}}}"] if proof is not None and proof.engine != "scripted" else []
    both = proof.with_ if proof is not None else ()
    model = next((value.partition("=")[2] for value in both if value.startswith("model=")), model_of(task))
    values = [value for value in both if not value.startswith("model=")]
    return load(
        ["base/rl", model, f"tasks/{task}", preset, "base/scripted"], [*engine, *trainer, *values, *overrides]
    )


def trainer_settings(preset: str, proof: Proof) -> list[str]:
    """What both sides of a proof have of the preset's trainer and script, as overrides of the base: no
    mechanism is in them. Without what the proof's `off` sets itself."""
    tree, base = load([preset]).tree, load([base_of(preset, proof)]).tree
    set_off = [text.partition("=")[0] for text in proof.off]
    found = []
    for path in TRAINER_SETTINGS:
        if any(path == off or path.startswith(f"{off}.") or off.startswith(f"{path}.") for off in set_off):
            continue
        slot, _, key = path.partition(".")
        value, before = ((side.get(slot) or {}).get(key) if key else side.get(slot) for side in (tree, base))
        if slot == "sampling" and (tree.get(slot) or {}).get("name", "plain") != "plain":
            continue
        if slot in PLAIN and (tree.get(slot) or {}).get("name", PLAIN[slot][0]) not in PLAIN[slot]:
            continue
        if value is not None:
            found.append(f"{path}={json.dumps(value)}")
        elif before is not None and slot in ("loss_terms", "reward_shaping"):
            found.append(f"{path}=null")
    return found


def shipped_config(preset: str, all_values: bool = False) -> Config:
    """A preset on its own task as it is shipped, in small batches, with the proof's script of the policy (its
    `engine.*`).

    `all_values`: with all of the proof's `with` and `on`: values made for few steps, and what the preset
    leaves to its user, such as a teacher.
    """
    proof, task = proof_of(preset), task_of(preset)
    script = [value for value in (proof.with_ if proof else ()) if value.startswith("engine.")]
    if all_values and proof is not None:
        return proof_config(preset, task, proof, proof.on)
    config = proof_config(preset, task, None, script)
    return proof_config(preset, task, None, [*script, *whole_batches(config)])


def about_of(preset: str) -> dict[str, Any]:
    """A preset's own `about`, and what it inherits of `paper` and `fidelity`."""
    inherited = load([preset]).tree.get("about") or {}
    own = own_tree(preset).get("about") or {}
    return {**{key: inherited[key] for key in ("paper", "fidelity") if key in inherited}, **own}


def task_of(preset: str) -> str:
    """The config of `tasks/` on which a preset is shown. Raises ConfigError for a preset that names none."""
    if not (task := about_of(preset).get("task")):
        raise ConfigError(f"{preset}: about.task is not set")
    return str(task)


def base_of(preset: str, proof: Proof) -> str:
    """What a preset with its mechanism off must equal."""
    if proof.against:
        return proof.against
    extends = own_tree(preset).get("extends") or []
    extends = [extends] if isinstance(extends, str) else extends
    return next((name for name in reversed(extends) if name.startswith("methods/")), "methods/grpo")
