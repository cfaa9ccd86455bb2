"""Every config in configs/ loads and builds, alone or on the base it is made for."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from task_kit import MODELS, OWN_TASKS, params

from vlrl.config import folders, load
from vlrl.trainer.phase import MAPS
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session

ROOT = folders()[0]
ALL = sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.rglob("*.yaml"))
TASK = ["models/tiny_qwen2_5_vl", "tasks/lab_digits"]
EPISODES = ["models/tiny_text", "tasks/gen_lookup"]  # a task with an environment


def base_stack(name: str) -> list[str]:
    """What a config of base/ is shown with: a trainer's defaults with text."""
    if name.startswith("base/trainers/"):
        return ["models/tiny_text", "tasks/lab_arithmetic", name]
    return [name, *(EPISODES if name == "base/lab_episodes" else TASK)]


# what a config of each folder is put on
STACKS = {
    "base": lambda name: ["base/rl", *base_stack(name)],
    "models": lambda name: ["base/rl", "tasks/lab_arithmetic", name],
    "tasks": lambda name: ["base/rl", "models/tiny_qwen2_5_vl", name],
    "methods": lambda name: ["base/rl", *TASK, *OWN_TASKS.get(name, ()), name],
    "tune": lambda name: ["base/rl", "tasks/lab_digits", "models/qwen2_5_vl_3b", name],
    "datasets": lambda name: ["base/rl", "models/tiny_qwen2_5_vl", f"methods/{name.partition('/')[2]}", name],
    "experiments": lambda name: [name],
    "quickstart": lambda name: [name],
}


def test_something_is_there():
    assert "quickstart" in ALL and len(ALL) > 20


@pytest.mark.sweep
@pytest.mark.parametrize("name", params(name for name in ALL if name.partition("/")[0] in STACKS))
def test_config_builds(name):
    if name == "tasks/reasoning_gym":
        pytest.importorskip("reasoning_gym")
    config = load(STACKS[name.partition("/")[0]](name), MODELS.get(name.removeprefix("methods/"), ()))
    if find_spec("vllm") is None and str(config.tree["engine"]["name"]).startswith("vllm"):
        config.tree["engine"] = {"name": "hf"}  # vLLM refuses to be named where it is not installed
    run = Session(Plan.of(config))
    assert [phase.phase for phase in run.phases] == config.phases
    for phase in run.phases:
        assert phase.train and phase.objective.policy_loss is not None


def nameless(tree: Mapping[str, Any]) -> Iterator[str]:
    """The plug-ins of `tree`'s maps that nothing names."""
    for slot in (*MAPS, "data"):
        halves = (tree.get(slot) or {}).values() if slot == "data" else [tree.get(slot)]
        for members in halves:
            yield from (f"{slot}.{key}" for key, spec in (members or {}).items() if unnamed(spec))


def unnamed(spec: Any) -> bool:
    return isinstance(spec, Mapping) and "name" not in spec


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name in ALL if name.startswith("methods/")])
def test_method_presets_stand_on_a_task_of_the_users_own(name):
    own = ["data.train.mine.name=jsonl", "rewards.mine.name=verify"]
    config = load(["base/rl", *OWN_TASKS.get(name, ()), name], own)
    assert not {slot for phase in config.phases for slot in nameless(config.phase(phase))}


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name in ALL if name.startswith("methods/")])
def test_method_presets_say_where_they_come_from(name):
    about = load([name]).tree.get("about", {})
    assert about.get("fidelity") in ("code", "paper", "approximate"), f"{name}: about.fidelity"
    text = str(about.get("paper", ""))
    assert "arXiv:" in text or "http" in text or "doi:" in text or "vlrl original" in text, (
        f"{name}: about.paper"
    )
    assert Path(ROOT / f"{name}.yaml").read_text().count("#") >= 1, (
        f"{name}: quote where the numbers come from"
    )
