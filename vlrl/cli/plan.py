"""`vlrl plan`."""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from vlrl.cli.words import ConfigWords, load_words
from vlrl.plan.gpus import gpu as gpu_named
from vlrl.plan.plan import Ask, make_plan
from vlrl.plan.report import as_lines, as_page, as_values
from vlrl.plan.setup import Assumed
from vlrl.plan.step import Speed
from vlrl.plugins.registry import ConfigError
from vlrl.services.files import write_whole

OPTIONS = (
    "--gpu", "--count", "--price", "--sharding", "--phase", "--text-tokens", "--completion", "--pictures",
    "--picture", "--utilisation",
    "--decoding", "--network", "--json", "--page", "--help",
)  # fmt: skip


def plan(
    configs: ConfigWords,
    gpu: Annotated[str, typer.Option("--gpu", help="The GPU, for instance h200, h100, a100, l4.")] = "h200",
    count: Annotated[int, typer.Option("--count", help="How many of them.")] = 8,
    price: Annotated[float, typer.Option("--price", help="Price of one GPU for one hour.")] = 0.0,
    sharding: Annotated[
        str,
        typer.Option(
            "--sharding", help="Layout: single, ddp, zero1, zero2, zero3, fsdp2; all of them by default."
        ),
    ] = "",
    phase: Annotated[str, typer.Option("--phase", help="Phase of the config; the last by default.")] = "",
    text_tokens: Annotated[int, typer.Option("--text-tokens", help="Mean tokens of a prompt's text.")] = 256,
    completion: Annotated[
        float,
        typer.Option("--completion", help="Mean tokens of a completion; 0: 60% of sampling.max_tokens."),
    ] = 0.0,
    pictures: Annotated[
        int, typer.Option("--pictures", help="Pictures in a prompt, for models with a vision tower.")
    ] = 1,
    picture: Annotated[str, typer.Option("--picture", help="Their size in pixels.")] = "1024x768",
    utilisation: Annotated[
        float, typer.Option("--utilisation", help="Share of the peak FLOP/s in training.")
    ] = 0.4,
    decoding: Annotated[
        float, typer.Option("--decoding", help="Share of the memory bandwidth in decoding.")
    ] = 0.6,
    network: Annotated[float, typer.Option("--network", help="GB/s of a GPU to other machines.")] = 50.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON and nothing else.")] = False,
    page: Annotated[
        Path | None, typer.Option("--page", help="Write an HTML page of it, which needs no network.")
    ] = None,
) -> None:
    """Parameters, memory per rank, FLOPs, time and cost of a config on given GPUs, from the model's public
    shape: nothing is loaded."""
    config = load_words(configs, options=OPTIONS)
    wide, times, high = picture.partition("x")
    if not (times and wide.isdecimal() and high.isdecimal()):
        raise ConfigError(f"--picture: expected WIDTHxHEIGHT in pixels, like 1024x768, got {picture!r}")
    for name, share in (("--utilisation", utilisation), ("--decoding", decoding)):
        if not 0 < share <= 1:
            raise ConfigError(f"{name}: a share above 0 and at most 1, got {share}")
    if network <= 0:
        raise ConfigError(f"--network: GB/s above 0, got {network}")
    with redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assumed = Assumed(text_tokens, completion, pictures, int(wide), int(high))
        speed = Speed(training=utilisation, decoding=decoding, network=network * 1e9)
        made = make_plan(config, configs, Ask(gpu_named(gpu), count, price, sharding, phase, assumed, speed))
    if page:
        write_whole(page, as_page(made, " ".join(word for word in configs if "=" not in word)))
    typer.echo(json.dumps(as_values(made), indent=2) if as_json else "\n".join(as_lines(made)))
