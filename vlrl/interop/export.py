"""Exports the model of a run: a folder that transformers loads without this project."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlrl.config.model_folder import located
from vlrl.interop.card import CARD, model_card
from vlrl.logging.recorder import METRICS
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.checkpoints.files import faults, folders, newest_intact

ADAPTER = "adapter"  # in a checkpoint: the adapter; the checkpoint itself is the merged model
_TRAINER = "trainer"  # in a checkpoint: the trainer's state
_NOTE = "vlrl_export.json"


@dataclass(frozen=True)
class Exported:
    """What was written: the folder, the step of its checkpoint, and whether it is an adapter alone."""

    folder: Path
    step: int
    is_adapter: bool


def export(
    run: str | Path,
    to: str | Path,
    checkpoint: int | None = None,
    merge_lora: bool = False,
    evaluations: Sequence[Path] = (),
    title: str = "",
) -> Exported:
    """Write the model of a run's checkpoint as a transformers folder, with its model card.

    Args:
        run: The folder of a run, or of one checkpoint.
        to: The folder to write; it must be empty or missing.
        checkpoint: The step of the checkpoint; None: the newest intact one.
        merge_lora: Write the merged weights of a run with adapters (float32). Without it, the folder holds
            the adapter, which names its base model (`AutoModel...from_pretrained` and PEFT load both), and
            the processor. Runs without adapters are always whole models.
        evaluations: Folders of `vlrl eval` whose results the card shows.
        title: The card's heading; the run's name by default.

    Raises:
        ConfigError: Where there is no such checkpoint, it is damaged, the target holds files, or an adapter
            has a base that nothing can load.
    """
    source = checkpoint_folder(Path(run), checkpoint)
    target = Path(to)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"--to: {str(target)!r} exists and is not empty; give another folder")
    is_adapter = (source / ADAPTER).is_dir() and not merge_lora
    scratch = target.with_name(f".{target.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        _copy_adapter(source, scratch, target) if is_adapter else _copy_model(source, scratch)
        step = step_of(source)
        write_card(source, scratch, is_adapter, evaluations, title)
        (scratch / _NOTE).write_text(
            json.dumps({"run": Path(run).name, "step": step, "adapter": is_adapter}) + "\n", encoding="utf-8"
        )
        if target.exists():
            target.rmdir()
        os.replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Exported(target, step, is_adapter)


def checkpoint_folder(run: Path, step: int | None = None) -> Path:
    """The folder of an intact checkpoint: that of `step`, or the newest one; `run` may be a checkpoint
    itself. Raises ConfigError."""
    if not run.is_dir():
        raise ConfigError(
            f"{str(run)!r} is no folder; give the folder of a run that has trained, for instance "
            "runs/quickstart"
        )
    if (run / "config.json").is_file():
        chosen = run
    else:
        known = {int(folder.name[5:]): folder for folder in folders(run)}
        if not known:
            raise ConfigError(
                f"{str(run)!r} holds no checkpoint; give the folder of a run that has trained, for "
                "instance runs/quickstart"
            )
        if step is not None and step not in known:
            raise ConfigError(
                f"--checkpoint: {str(run)!r} has none of step {step}; it has "
                f"{', '.join(map(str, sorted(known)))}"
            )
        newest = newest_intact(run)[0] if step is None else known[step]
        assert newest is not None
        chosen = newest
    wrong = faults(chosen) if (chosen / _TRAINER).is_dir() else []
    if wrong:
        raise ConfigError(
            f"checkpoint {str(chosen)!r} is damaged: {'; '.join(wrong[:3])}; export another one with "
            "--checkpoint N"
        )
    return chosen


def _copy_model(source: Path, target: Path) -> None:
    shutil.copytree(
        source,
        target,
        ignore=lambda folder, names: [_TRAINER, ADAPTER, "base"] if Path(folder) == source else [],
    )


def _copy_adapter(source: Path, scratch: Path, target: Path) -> None:
    """The adapter, the processor, and the base where it is on no hub. The base's place is written into
    adapter_config.json."""
    origin = json.loads((source / ADAPTER / "base.json").read_text(encoding="utf-8"))
    model = located(origin["family"]["model"], "the adapter's base") if origin is not None else ""
    if origin is not None and not model:
        raise ConfigError(
            f"{str(source)!r}: the base of this adapter was built at random, so no file holds it; export "
            "with --merge-lora"
        )
    shutil.copytree(source / ADAPTER, scratch, ignore=shutil.ignore_patterns("base.json", "README.md"))
    for file in source.iterdir():
        if file.is_file() and not re.match(
            r"config\.json|generation_config\.json|model|.*\.safetensors|.*\.index\.json", file.name
        ):
            shutil.copy2(file, scratch / file.name)
    if origin is None:
        shutil.copytree(source / "base", scratch / "base")
        model = str((target / "base").resolve())
    config = json.loads((scratch / "adapter_config.json").read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = str(Path(model).resolve()) if Path(model).is_dir() else model
    if origin is not None and origin["family"].get("revision") not in (None, "", "main"):
        config["revision"] = origin["family"]["revision"]
    (scratch / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def step_of(checkpoint: Path) -> int:
    """The step of a checkpoint."""
    state = checkpoint / _TRAINER / "state.json"
    return int(json.loads(state.read_text(encoding="utf-8")).get("step", 0)) if state.is_file() else 0


def run_of(checkpoint: Path) -> Path:
    """The folder of the run that a checkpoint belongs to. Raises ConfigError for a checkpoint that was moved
    out of it."""
    run = checkpoint.resolve().parent.parent
    if not (run / "config.yaml").is_file():
        raise ConfigError(
            f"{str(checkpoint)!r} stands in no run's folder, so there is nothing to write a model card from; "
            "give the run's folder"
        )
    return run


def write_card(
    checkpoint: Path, folder: Path, is_adapter: bool, evaluations: Sequence[Path], title: str
) -> None:
    """Write the model card of a checkpoint; none for one that was moved out of its run's folder."""
    run = checkpoint.resolve().parent.parent
    if (run / METRICS).is_file() and (run / "config.yaml").is_file():
        text = model_card(run, step_of(checkpoint), folder, is_adapter, evaluations, title)
        (folder / CARD).write_text(text, encoding="utf-8")
