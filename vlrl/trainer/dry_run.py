"""What a run would fetch and read, from its plan alone: `vlrl train ... --dry-run`. No torch, no download."""

from __future__ import annotations

from collections.abc import Iterator

from vlrl.config import Config
from vlrl.config.model_folder import is_cached
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Engine
from vlrl.trainer.phase import PhasePlan
from vlrl.trainer.plan import Plan


def dry_run(config: Config) -> list[str]:
    """Lines that name the model, the engine, every source and every phase.

    Sources read at most a few records of files that are here. Raises ConfigError as a run would, and where a
    file, a picture or a column does not exist.
    """
    engine = _engine(config)
    plan = Plan.of(config)
    lines = [f"model   {_model(plan)}", f"engine  {engine}"]
    seen: set[str] = set()
    for phase in plan.phases:
        for line in _sources(phase):
            lines += [line] if line not in seen else []
            seen.add(line)
    return [*lines, *map(_steps, plan.phases), f"output  {plan.output}"]


def _engine(config: Config) -> str:
    """The engine's name; one that is not installed here is replaced in the config, since a dry run samples
    nothing."""
    wanted = config.tree.get("engine") or {"name": "hf"}
    try:
        build(Engine, wanted, "engine")
    except ConfigError as error:
        if "not installed" not in str(error):
            raise
        config.tree["engine"] = {"name": "fake"}
        return f"{wanted['name']}: not installed here"
    return str(wanted["name"])


def _model(plan: Plan) -> str:
    name = plan.family.model
    if not name:
        return f"{plan.family.name}, built at random"
    return f"{name}: {'here' if is_cached(name) else 'fetched from the hub (size unknown)'}"


def _sources(phase: PhasePlan) -> Iterator[str]:
    for split, sources in (("train", phase.train), ("heldout", phase.heldout)):
        for slot, source in sources.items():
            where = f"data.{split}.{slot}"
            try:
                yield f"data    {split}.{slot}: {source.look()}"
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from None


def _steps(phase: PhasePlan) -> str:
    settings = phase.settings
    return (
        f"phase   {phase.phase}: {settings.steps} steps of {settings.prompts_per_step} prompts x "
        f"{settings.group_size}, {settings.num_minibatches} updates"
    )
