"""Writes a task (rows, environment, rewards of a config) as a package that verifiers loads, by its 0.1 and
its 0.4 interface."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlrl.interop.verifiers_task import FILE, KEPT, ExportedTask, Play, data_url
from vlrl.methods.common.conversation import with_opening
from vlrl.plugins.episodes import Picture
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import Reward
from vlrl.policy.tool_template import tools_as_text
from vlrl.trainer.phase import PhasePlan, applies, with_own_rewards
from vlrl.trainer.plan import one_phase
from vlrl.types import Prompt, Row
from vlrl.version import __version__

if TYPE_CHECKING:
    from vlrl.config import Config

MODULE = '''"""The task {name!r} of vlrl {version} as an environment of verifiers: `load_environment` for 0.1,
`VlrlTaskset` and `VlrlEnv` for 0.4."""

from pathlib import Path

import verifiers

HERE = Path(__file__).parent

if hasattr(verifiers, "load_environment"):
    from vlrl.interop.verifiers_task import environment_01

    def load_environment(split="train", **options):
        """The environment, with the rows of a split."""
        return environment_01(HERE, split, **options)
else:
    from vlrl.interop.verifiers_task import taskset_04

    __all__ = ["VlrlEnv", "VlrlTaskset"]
    VlrlTaskset, VlrlEnv = taskset_04(HERE)
'''  # noqa: E501

PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{project}"
version = "0.1.0"
description = "The task {name} of vlrl."
dependencies = ["verifiers", "vlrl>={version}"]

[tool.hatch.build.targets.wheel]
packages = ["{module}"]
"""


@dataclass(frozen=True)
class ExportedPackage:
    """What was written: its folder, the module's name, and the number of rows by split."""

    folder: Path
    module: str
    rows: Mapping[str, int]


def export_task(config: Config, to: str | Path, name: str = "", count: int = 1000) -> ExportedPackage:
    """Write the task of a config's last phase as a package for verifiers.

    Args:
        config: Its `data`, `prompt_template`, `environment` and `rewards` are the task.
        to: The folder to write; it must be empty or missing.
        name: The name of the module; by default that of the folder.
        count: The most rows of each split.

    Raises:
        ConfigError: For a folder that holds files, a name that is no module's, rows that JSON cannot hold
            (videos), and rewards that compare siblings or need a run.
    """
    target = Path(to)
    module = re.sub(r"[-. ]", "_", name or target.name)
    if not module.isidentifier() or module != module.lower():
        raise ConfigError(
            f"--name: {module!r} is no name of a module; use small letters, digits and underscores"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"--to: {str(target)!r} exists and is not empty; give another folder")
    phase = one_phase(config, list(config.phases)[-1])
    specs = _rewards(phase)
    package = target / module
    package.mkdir(parents=True)
    try:
        environment = phase.tree.get("environment") if phase.environment is not None else None
        turns = int(getattr(phase.rollout, "max_turns", 1)) if environment else 1
        settings = {
            "name": module,
            "vlrl": __version__,
            "rewards": specs,
            "environment": environment,
            "max_turns": turns,
        }
        (package / FILE).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        (package / "__init__.py").write_text(
            MODULE.format(name=module, version=__version__), encoding="utf-8"
        )
        (target / "pyproject.toml").write_text(
            PROJECT.format(project=module.replace("_", "-"), name=module, version=__version__, module=module),
            encoding="utf-8",
        )
        written = {}
        for split in ("train", "heldout"):
            lines = list(itertools.islice(_lines(phase, split), count))
            if lines:
                (package / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
                written[split] = len(lines)
        _try(ExportedTask(package))
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return ExportedPackage(target, module, written)


def _rewards(phase: PhasePlan) -> dict[str, Any]:
    """The reward slots of a phase as they can be built again. Raises ConfigError for rewards that a single
    text cannot be scored by."""
    sources = {
        f"data.{split}.{slot}": source
        for split in ("train", "heldout")
        for slot, source in getattr(phase, split).items()
    }
    specs = with_own_rewards(phase.tree.get("rewards"), sources)
    for slot, reward in phase.rewards.items():
        if type(reward).score_group is not Reward.score_group:
            raise ConfigError(
                f"rewards.{slot}: {reward.name!r} compares the rollouts of a group; verifiers scores each "
                "by itself. Drop it"
            )
    return {slot: dict(spec) if isinstance(spec, Mapping) else {"name": spec} for slot, spec in specs.items()}


def _lines(phase: PhasePlan, split: str) -> Iterator[str]:
    """The rows of a split that a reward scores, as lines of JSON."""
    for slot, source in getattr(phase, split).items():
        for row in source():
            if any(applies(name, reward.tasks, row) for name, reward in phase.rewards.items()):
                yield json.dumps(_task_row(phase, row, f"data.{split}.{slot}"), ensure_ascii=False) + "\n"


def _task_row(phase: PhasePlan, row: Row, where: str) -> dict[str, Any]:
    """One row: its opening messages in OpenAI's form, and its fields. Raises ConfigError where JSON cannot
    hold them."""
    prompt: Prompt = phase.prompt_template(row)
    environment = phase.environment
    if prompt.prefix:
        raise ConfigError(
            f"prompt_template: a prompt that opens the answer ({prompt.prefix!r}) cannot be sent as a "
            "chat; choose another style"
        )
    if environment is not None:
        episode = environment.episode()
        try:
            opening = episode.reset(row, int(row.meta.get("seed", 0)))
        finally:
            episode.close()
        prompt = prompt if opening.empty else with_opening(prompt, opening)
    if prompt.videos or prompt.audios:
        kind = "a video" if prompt.videos else "audio"
        raise ConfigError(f"{where}: row {row.id!r} has {kind}, which cannot be sent as a chat message")
    images = iter(prompt.images)
    messages: list[Any] = [
        {"role": message["role"], "content": _content(message["content"], images)}
        for message in prompt.messages
    ]
    tools = list(environment.tools()) if environment is not None else []
    fields = {**{name: getattr(row, name) for name in KEPT}, "meta": dict(row.meta)}
    pixels: list[Any] = [image.load() for image in row.images]
    kept = [base64.b64encode(Picture.of(image).data).decode() for image in pixels]
    made = {
        "messages": tools_as_text(messages, tools) if tools else messages,
        "row": {**fields, "images": kept},
    }
    try:
        json.dumps(made, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: row {row.id!r} has a value that JSON cannot hold: {error}") from None
    return made


def _content(content: Any, images: Iterator[Any]) -> Any:
    """A message's content in OpenAI's form; a text alone is a string."""
    if isinstance(content, str):
        return content
    parts: list[Any] = []
    for part in content:
        text = part["type"] == "text"
        parts.append(
            {"type": "text", "text": part["text"]}
            if text
            else {"type": "image_url", "image_url": {"url": data_url(next(images))}}
        )
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _try(task: ExportedTask) -> None:
    """Play one turn of the first row and score it. Raises ConfigError for a reward that needs a run."""
    import asyncio

    play = Play(task, task.rows("train")[0])
    try:
        play.begin()
        play.step("no answer")
        play.end = "length"  # of an episode that was cut: what the environment did not pay is no error
        asyncio.run(play.scores())
    except RuntimeError as error:
        raise ConfigError(f"rewards: one of them needs a run and cannot be exported: {error}") from None
    finally:
        play.close()
