"""The runs of a comparison: one cold start per seed, then one run per preset and seed, each a resolved config
in a folder of its own.

With a cold start of 0 steps there is none: all runs start from the task's own model, which must be a
pretrained one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vlrl.config import Config, at, find, load
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan as RunPlan

TEXT_TASKS = ("arithmetic", "chains", "knights")


@dataclass(frozen=True)
class Plan:
    """A comparison. `steps` are a run's, `cold_steps` those of the common cold start; then `samples`
    completions per held-out row are scored.

    With `cold_steps` 0 the runs start from the model of `model`, or of the task's config, as it is.
    """

    presets: tuple[str, ...]
    task: str
    seeds: int
    output: Path
    steps: int = 100
    cold_steps: int = 60
    samples: int = 8
    model: str = ""
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.presets)) < len(self.presets) or not self.presets:
            raise ConfigError(f"compare: name each preset once, got {', '.join(self.presets) or 'none'}")
        if min(self.seeds, self.steps, self.samples) < 1 or self.cold_steps < 0:
            raise ConfigError(
                "compare: seeds, steps and k must be at least 1, and cold-start at least 0 (0: from the "
                "pretrained model as it is)"
            )

    @property
    def bases(self) -> list[str]:
        """The configs that all runs share."""
        task = self.task if "/" in self.task or self.task.endswith(".yaml") else f"tasks/lab_{self.task}"
        if not self.cold_steps:
            return ["base/rl", task, *([self.model] if self.model else [])]
        model = self.model or (
            "models/tiny_text" if self.task.rpartition("lab_")[2] in TEXT_TASKS else "models/tiny_qwen2_5_vl"
        )
        return ["base/rl", "base/lab", model, task]

    @property
    def pretrained(self) -> str:
        """The model that all runs start from where there is no cold start. Raises ConfigError where the
        configs name none."""
        config = load(self.bases, self.overrides)
        if len(config.phases) > 1:
            raise ConfigError(
                f"compare: --cold-start 0 takes a task of one phase, and {self.task!r} has "
                f"{', '.join(config.phases)}"
            )
        model = str((config.tree.get("policy") or {}).get("model") or "")
        if not model:
            raise ConfigError(
                f"compare: --cold-start 0 needs a pretrained model, and {self.task!r} names none; give "
                "--model models/smollm2_135m"
            )
        return model

    def cold(self, seed: int) -> Path:
        """The folder of a seed's cold start."""
        return self.output / "cold" / f"seed-{seed}"

    def cell(self, preset: str, seed: int) -> Path:
        """The folder of a run."""
        return self.output / preset.replace("/", "_") / f"seed-{seed}"

    def cold_config(self, seed: int) -> Config:
        """The cold start alone: the lab's first phase, the model made from the seed."""
        config = load(self.bases, self.overrides)
        tree = config.phase(config.phases[0])
        return load_tree(
            tree, self.cold(seed), [f"seed={seed}", f"steps={self.cold_steps}", "optimizer.schedule=constant"]
        )

    def config(self, preset: str, seed: int, weights: Path | str) -> Config:
        """A run of a preset from the cold start's weights: the last phase (of the lab, or the task's only
        one), then the preset, then the overrides.

        An override of one of the lab's phases (`phases.rl.sampling.temperature=1`) is for that phase alone.
        One of the task's data changes the task: a phase of the preset may have other data, or no held-out
        rows. All presets train at the task's learning rate: theirs are those of larger models.
        """
        phases = load(self.bases).phases
        theirs = [
            text for text in self.overrides if text.startswith(tuple(f"phases.{phase}." for phase in phases))
        ]
        plain_task, with_preset = load(self.bases).tree, load([*self.bases, preset_file(preset)]).tree
        theirs += [text for text in self.overrides if is_of_task(text, plain_task, with_preset)]
        config = load(self.bases, theirs)
        tree = config.phase(phases[-1])
        folder = self.cell(preset, seed)
        folder.mkdir(parents=True, exist_ok=True)
        base = folder / "base.yaml"
        base.write_text(yaml.safe_dump(plain(tree), sort_keys=False), encoding="utf-8")
        words = [
            f"seed={seed}",
            f"steps={self.steps}",
            f"policy.model={weights}",
            f"output={folder}",
            "watch.checkpoint_every=0",
            "watch.rollouts_every=0",
            *(f"optimizer.{key}={tree['optimizer'][key]}" for key in ("lr", "schedule", "warmup")),
        ]
        return load(
            [base, preset_file(preset)], [*words, *(text for text in self.overrides if text not in theirs)]
        )

    def with_other_rows(self) -> list[str]:
        """Presets that are measured on other held-out rows than the first one: a preset can bring its own.
        Their accuracies do not compare."""

        def heldout(preset: str) -> Any:
            config = self.config(preset, 0, "")
            return plain(config.phase(config.phases[-1])).get("data", {}).get("heldout")

        return [preset for preset in self.presets[1:] if heldout(preset) != heldout(self.presets[0])]

    def claim(self) -> None:
        """Record the comparison in the output folder, so that a later call can only add presets and seeds to
        it.

        Raises ConfigError where the folder holds runs of another task, length or override.
        """
        path = self.output / "plan.json"
        ours = {
            "task": self.task,
            "steps": self.steps,
            "cold_start": self.cold_steps,
            "k": self.samples,
            "model": self.model,
        }
        ours["set"] = list(self.overrides)
        theirs = json.loads(path.read_text()) if path.is_file() else ours
        differ = [
            f"{name} {theirs.get(name)!r} there, {value!r} here"
            for name, value in ours.items()
            if theirs.get(name) != value
        ]
        if differ:
            raise ConfigError(
                f"compare: {str(self.output)!r} holds another comparison ({'; '.join(differ)}); give "
                "another --output"
            )
        self.output.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(ours), encoding="utf-8")

    def cells(self) -> list[tuple[str, int]]:
        """(preset, seed), seeds outermost, so that early results compare all presets."""
        return [(preset, seed) for seed in range(self.seeds) for preset in self.presets]


def preset_file(preset: str) -> Path:
    """`methods/NAME`, or any config by its name or path."""
    if "/" in preset or preset.endswith(".yaml"):
        return find(preset)
    return find(f"methods/{preset}")


def check_plugins(plan: RunPlan, preset: str) -> None:
    """Every plug-in of a run comes with vlrl or from a file that its own config names, not from one that
    another config has loaded.

    Raises ConfigError. The runs of a comparison are processes of their own, where nothing else is loaded.
    """
    named = {str(Path(path).resolve()) for path in plan.config.tree.get("plugins") or []}
    plugins = [
        ("policy", plan.family),
        ("engine", plan.engine),
        *(item for phase in plan.phases for item in phase.plugins()),
    ]
    for slot, plugin in plugins:
        module = type(plugin).__module__
        file = str(Path(str(getattr(sys.modules.get(module), "__file__", ""))).resolve())
        if module.partition(".")[0] not in ("vlrl", "vlrl_rewards", "vlrl_data") and file not in named:
            raise ConfigError(
                f"{preset}: {slot}: {plugin.name!r} is of {file}, which its config does not name; add "
                f"`plugins: [{file}]` to it"
            )


def is_of_task(override: str, task: Any, with_preset: Any) -> bool:
    """Whether an override is of a source of the task: of data that the preset, outside its phases, leaves as
    they are."""
    path = override.partition("=")[0].strip()
    source = ".".join(path.split(".")[:3])
    return path.startswith("data.") and at(task, source) == at(with_preset, source)


def plain(tree: Any) -> Any:
    """The tree without phases, which a run of one phase has none of."""
    return {key: value for key, value in tree.items() if key != "phases"}


def load_tree(tree: dict[str, Any], folder: Path, words: Sequence[str]) -> Config:
    """A config from a resolved tree, written to its folder before it is loaded from there."""
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / "base.yaml"
    base.write_text(yaml.safe_dump(plain(tree), sort_keys=False), encoding="utf-8")
    return load([base], [*words, f"output={folder}", "watch.checkpoint_every=0", "watch.rollouts_every=0"])
