"""`vlrl export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlrl.interop.card import CARD, auto_class, model_card
from vlrl.interop.export import checkpoint_folder, run_of, step_of
from vlrl.interop.export import export as write
from vlrl.interop.push import check_repo, list_files, push
from vlrl.plugins.registry import ConfigError
from vlrl.services.files import write_whole


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or of one of its checkpoints.")],
    to: Annotated[Path, typer.Option("--to", help="The folder to write; empty or missing.")],
    checkpoint: Annotated[
        int | None, typer.Option("--checkpoint", help="The step of the checkpoint. Default: the newest one.")
    ] = None,
    merge_lora: Annotated[
        bool,
        typer.Option("--merge-lora", help="Merge the adapter into its base. Default: the adapter alone."),
    ] = False,
    push_to_hub: Annotated[
        str, typer.Option("--push-to-hub", help="OWNER/NAME on the hub: upload the folder, private.")
    ] = "",
    public: Annotated[bool, typer.Option("--public", help="With --push-to-hub: for everybody.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --push-to-hub: write the folder, list what would go.")
    ] = False,
    card_only: Annotated[
        bool, typer.Option("--card-only", help="Write the model card (README.md) and nothing else.")
    ] = False,
    evaluation: Annotated[
        list[Path] | None,
        typer.Option("--eval", help="A folder of `vlrl eval` whose results the card shows; repeatable."),
    ] = None,
) -> None:
    """Write a run's model with its model card as a folder that plain transformers loads, and print how."""
    if push_to_hub:
        check_repo(push_to_hub)
    elif public or dry_run:
        raise ConfigError("--public and --dry-run belong to --push-to-hub OWNER/NAME")
    evaluations = evaluation or []
    if card_only:
        if push_to_hub:
            raise ConfigError("--card-only writes a card and uploads nothing; leave out --push-to-hub")
        source = checkpoint_folder(run, checkpoint)
        text = model_card(run_of(source), step_of(source), source, evaluations=evaluations)
        to.mkdir(parents=True, exist_ok=True)
        write_whole(to / CARD, text)
        return typer.echo(f"wrote the model card of step {step_of(source)} to {to / CARD}")
    done = write(run, to, checkpoint, merge_lora, evaluations, push_to_hub)
    what = "the adapter, which names its base model" if done.is_adapter else "the model"
    typer.echo(f"wrote {what} and the processor of step {done.step} to {done.folder}")
    auto = auto_class(done.folder)
    typer.echo(f'load it:  from transformers import {auto}; {auto}.from_pretrained("{done.folder}")')
    if push_to_hub:
        _push(done.folder, push_to_hub, public, dry_run, done.step)


def _push(folder: Path, repo: str, public: bool, dry_run: bool, step: int) -> None:
    files = list_files(folder)
    if dry_run:
        size = sum(file.size for file in files)
        typer.echo(f"would upload {len(files)} files, {size / 1e6:.1f} MB, to {repo}:")
        return typer.echo("\n".join(f"  {file.path}  {file.size}" for file in files))
    typer.echo(f"uploaded: {push(folder, repo, public, f'Step {step} of a run of vlrl')}")
