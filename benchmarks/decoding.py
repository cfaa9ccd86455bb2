"""Decoding of engine `hf` on one CPU thread: tokens per CPU-second of 64 rollouts of geometric length, with
and without n-gram drafts, or of a real model that copies text.

    python -m benchmarks.decoding                          # both shapes, a Markdown table
    python -m benchmarks.decoding small --lookup 0 --lookup 4 --repeats 3
    vlrl fetch smollm2 && python -m benchmarks.decoding --copy FOLDER --lookup 0 --lookup 4

Lengths are drawn once and given as `max_tokens`, so that every version and every option does the same work;
nothing else ends a completion.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
import typer

from benchmarks import cli
from benchmarks.limit import SHAPES, Load
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Engine
from vlrl.policy import Family, Policy
from vlrl.types import Prompt, Request, Row, Sampling

WORDS = (
    "river stone yellow window seven market carry winter bread silver music garden follow letter quiet "
    "engine ocean paper bridge morning"
)


def lengths(count: int = 64, mean: int = 200, longest: int = 1000, seed: int = 0) -> list[int]:
    """Tokens of each completion: geometric with this mean, cut at `longest`."""
    rng = random.Random(seed)
    return [min(longest, 1 + int(-mean * math.log(1 - rng.random()))) for _ in range(count)]


def decode(
    shape: str, mean: int = 200, repeats: int = 1, lookup_tokens: Sequence[int] = (0,)
) -> dict[int, dict[str, Any]]:
    """{lookup_tokens: {"tokens", "steps", "cpu_seconds", "tokens_per_cpu_second"}} on a random model of
    `SHAPES`; runs of the options interleaved."""
    load = Load(SHAPES[shape])
    per_prompt = 64 // len(load.prompts)
    requests = [
        Request(load.prompts[i // per_prompt], Sampling(max_tokens=n, temperature=1.0), 1, seed=i)
        for i, n in enumerate(lengths(64, mean))
    ]
    return measured(load.policy, requests, repeats, lookup_tokens)


def copy_text(
    model: str,
    rollouts: int = 8,
    temperature: float = 1.0,
    repeats: int = 1,
    lookup_tokens: Sequence[int] = (0,),
) -> dict[int, Any]:
    """The same of a real model (a folder) that is asked to repeat passages of 60 words: text that n-gram
    lookup finds in the prompt."""
    policy = Policy(build(Family, {"name": "text", "model": model}))
    rng, requests = random.Random(0), []
    for i in range(rollouts):
        passage = " ".join(rng.choice(WORDS.split()) for _ in range(60))
        messages = (
            {
                "role": "user",
                "content": f"Repeat the following text word for word, and write nothing else.\n\n{passage}",
            },
        )
        requests.append(
            Request(
                Prompt(Row(str(i), passage), messages),
                Sampling(max_tokens=96, temperature=temperature),
                1,
                seed=i,
            )
        )
    return measured(policy, requests, repeats, lookup_tokens)


def measured(
    policy: Policy, requests: Sequence[Request], repeats: int, lookup_tokens: Sequence[int]
) -> dict[int, dict[str, Any]]:
    """Medians of the runs of each option; every option gets the same requests."""
    engines = {
        count: build(Engine, {"name": "hf", "lookup_tokens": count}).attach(policy) for count in lookup_tokens
    }
    runs: dict[int, list[dict[str, Any]]] = {count: [] for count in lookup_tokens}
    first = {request.prompt.key: request for request in requests}.values()
    list(
        engines[lookup_tokens[0]].generate(
            [replace(r, sampling=Sampling(max_tokens=2, temperature=1.0), n=2, seed=0) for r in first]
        )
    )
    for _ in range(repeats):
        for count, engine in engines.items():
            before, begun = Counter(engine.counters), time.process_time()
            tokens = sum(len(c.ids) for c in engine.generate(requests))
            spent = time.process_time() - begun
            counts = {
                name: engine.counters[name] - before[name] for name in ("decode_steps", "drafted", "accepted")
            }
            accepted = counts["accepted"] / counts["drafted"] if counts["drafted"] else 0.0
            rates = {"tokens_per_cpu_second": tokens / spent, "accepted": accepted}
            runs[count].append(
                {"tokens": tokens, "steps": counts["decode_steps"], "cpu_seconds": spent, **rates}
            )
    return {
        count: {key: statistics.median(run[key] for run in found) for key in found[0]}
        for count, found in runs.items()
    }


def main(
    shapes: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(SHAPES)}; all by default.")
    ] = None,
    mean: Annotated[int, typer.Option(help="Mean number of tokens of a rollout.")] = 200,
    lookup: Annotated[
        list[int] | None, typer.Option(help="Values of `lookup_tokens`, interleaved; 0 by default.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each.")] = 1,
    copy: Annotated[
        str, typer.Option(help="A model's folder: it repeats given texts, in place of the shapes.")
    ] = "",
    rollouts: Annotated[int, typer.Option(help="With --copy: sequences that decode together.")] = 8,
    temperature: Annotated[float, typer.Option(help="With --copy.")] = 1.0,
) -> None:
    """Measure and print."""
    cli.known("shape", shapes or (), SHAPES)
    torch.set_num_threads(1)
    typer.echo(
        "| shape | lookup_tokens | tokens | steps | accepted | CPU s | tokens per CPU-second "
        "|\n|---|---|---|---|---|---|---|"
    )
    counts = lookup or [0]
    for shape in ["copy"] if copy else shapes or SHAPES:
        found = (
            copy_text(copy, rollouts, temperature, repeats, counts)
            if copy
            else decode(shape, mean, repeats, counts)
        )
        for count, r in found.items():
            spent = f"{r['accepted']:.2f} | {r['cpu_seconds']:.1f} | {r['tokens_per_cpu_second']:.0f}"
            typer.echo(f"| `{shape}` | {count} | {r['tokens']:,.0f} | {r['steps']:,.0f} | {spent} |")


if __name__ == "__main__":
    cli.run(main, __doc__)
