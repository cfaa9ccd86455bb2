"""Opens the model and the engine of an evaluation from the names that a user gives."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vlrl.config import folders, load
from vlrl.config.model_folder import check_cached, check_model, config_of, located
from vlrl.plugins.registry import ConfigError, build, suggest
from vlrl.plugins.stages import Engine
from vlrl.policy.family import Family, family_of

log = logging.getLogger("vlrl")

DTYPES = ("", "float32", "bfloat16", "float16")  # "": the model's own


@dataclass
class ServedModel:
    """A model with its engine. Has the attributes of a run that an engine's `setup` reads, so that no
    training run is needed.

    With several processes each serves a whole model of its own, hence one rank.
    """

    policy: Any
    engine: Any
    seed: int = 0
    description: dict[str, Any] = field(default_factory=dict)
    rank: int = 0
    ranks: int = 1
    params_sharded: bool = False
    state_sharded: bool = False

    def warn(self, message: str) -> None:
        """Logs a warning."""
        log.warning(message)

    def close(self) -> None:
        """Frees the engine's resources."""
        self.engine.close()


def policy_spec(model: str) -> dict[str, Any]:
    """The `policy` mapping of a model: a config (name or file), the folder of a run or of a checkpoint, a
    model folder, a hub id, or `fetched:NAME`.

    Raises ConfigError where it is none of these.
    """
    path = Path(located(model, "--model")).expanduser()
    if (path / "config.yaml").is_file() and not (path / "config.json").is_file():
        return _spec_of_run(path)
    if (path / "config.json").is_file():
        return {
            "name": family_of(config_of(str(path)), f"--model {model}:"),
            "model": str(path),
        }
    for name in (model, f"models/{model}", f"models/{model.replace('-', '_').replace('.', '_').lower()}"):
        try:
            tree = load([name]).tree
        except ConfigError:
            continue
        if "policy" in tree:
            return dict(tree["policy"])
    if path.exists() or "/" not in model:
        known = {file.stem for folder in folders() for file in (folder / "models").glob("*.yaml")}
        raise ConfigError(
            f"--model {model}: no config, no model folder and no hub id of that name.{suggest(model, known)}"
        )
    return _spec_of_hub(model)


def check_named(model: str, engine: Mapping[str, Any], dtype: str = "") -> None:
    """Raise ConfigError for a model, engine or type that is not there, before torch is imported. A hub id is
    looked up later."""
    if not getattr(build(Engine, dict(engine), "engine"), "needs_policy", True):
        return
    if dtype not in DTYPES:
        raise ConfigError(f"--dtype: {dtype!r} is none of {', '.join(DTYPES[1:])}")
    path = Path(located(model, "--model")).expanduser()
    if (path / "config.json").is_file():
        check_model(str(path), False, "--model")
    elif path.exists() or "/" not in model:
        policy_spec(model)
    else:
        check_cached(model, "--model")


def _spec_of_run(folder: Path) -> dict[str, Any]:
    """The policy of a training run, with the weights of its newest checkpoint."""
    tree = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    checkpoints = sorted(folder.glob("checkpoints/step-*/**/config.json"), key=lambda file: file.parts)
    if not checkpoints:
        raise ConfigError(
            f"--model {folder}: this run has no checkpoint with a model in it; train it first, or give a "
            "model folder"
        )
    newest = checkpoints[-1].parent
    log.info("evaluating %s", newest)
    return {**tree["policy"], "tiny": None, "model": str(newest)}


def threads_of(model: str) -> int:
    """`threads` of the run that a folder is, or that a checkpoint stands in; 0 for another model."""
    path = Path(model).expanduser().resolve()
    for folder in (path, *path.parents[:2]):
        file = folder / "config.yaml"
        if file.is_file() and (folder == path or path.parent == folder / "checkpoints"):
            tree = yaml.safe_load(file.read_text(encoding="utf-8"))
            threads = tree.get("threads") if isinstance(tree, dict) else 0
            return threads if isinstance(threads, int) else 0
    return 0


def _spec_of_hub(model: str) -> dict[str, Any]:
    from transformers import PreTrainedConfig

    try:
        config, _ = PreTrainedConfig.get_config_dict(model)
    except OSError as error:
        raise ConfigError(
            f"--model {model}: cannot be read from the hub ({str(error).splitlines()[0][:160]})"
        ) from None
    return {"name": family_of(config, f"--model {model}:"), "model": model}


def engine_spec(engine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The config mapping of an engine and its fields."""
    return {"name": engine, **options}


def open_model(
    model: str, engine: Mapping[str, Any], seed: int = 0, dtype: str = "", device: str = ""
) -> ServedModel:
    """Loads the policy (unless the engine needs none) and sets up the engine. Raises ConfigError."""
    built = build(Engine, dict(engine), "engine")
    description = {"model": model, "engine": dict(engine), "seed": seed}
    policy = None
    if getattr(built, "needs_policy", True):
        import torch

        spec = policy_spec(model) | ({"dtype": dtype} if dtype else {})
        default = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
        from vlrl.policy.policy import Policy  # imports torch

        policy = Policy(build(Family, spec, "policy"), device=device or default, seed=seed)
        description["policy"] = spec
        if threads := threads_of(model):
            torch.set_num_threads(threads)
    served = ServedModel(policy, built, seed, description=description)
    built.check(served)
    built.setup(served)
    return served
