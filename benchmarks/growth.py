"""How cost grows with group size, prompt, answer and picture size, ranks, rewards, dataset rows and run
length: CPU seconds and fitted exponents.

    python -m benchmarks.growth                      # all curves, a Markdown table
    python -m benchmarks.growth --plot growth.svg    # and a picture of them
    python -m benchmarks.growth "recorded steps" --json

One thread, a text model of width 64. The exponent is the slope of log seconds over log size by least squares
(1 is linear, 0 constant, 2 quadratic); the last column is that of the two largest fitted sizes.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, cast

import torch
import typer

from benchmarks import cli
from benchmarks.cases import Case, make_groups
from benchmarks.growth_plot import plot
from vlrl.logging.recorder import METRICS, TIMINGS, Recorder
from vlrl.logging.report import render_report
from vlrl.plugins.registry import build
from vlrl.plugins.stages import PromptSampler, Reward, Source
from vlrl.types import Group, Rollout

TINY = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 176}


@dataclass(frozen=True)
class Curve:
    """Seconds of a piece of work by its size; `work` prepares a size and returns what is timed, or with
    `own_clock` what returns its CPU seconds.

    The exponent is of the sizes in `fitted`; () means all.
    """

    sizes: tuple[int, ...]
    work: Callable[[int], Callable[[], Any]]
    repeats: int = 3
    own_clock: bool = False
    fitted: tuple[int, ...] = ()


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Slope of log y over log x by least squares. Raises ValueError for fewer than two sizes."""
    if len({x for x, _ in points}) < 2:
        raise ValueError(f"an exponent needs at least two sizes, there are {len(points)} points")
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x, mean_y = (sum(column) / len(logs) for column in zip(*logs))
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


def measure(curve: Curve) -> dict[str, Any]:
    """{"seconds": {size: least CPU seconds of the repeats}, "fitted": sizes, "exponent": of these,
    "exponent_at_end": of the two largest of them}."""
    seconds = {}
    for size in curve.sizes:
        work = curve.work(size)
        if not curve.own_clock:
            work()  # allocates, fills caches that a run has too
        times = []
        for _ in range(curve.repeats):
            begun = time.process_time()
            told = work()
            times.append(told if curve.own_clock else time.process_time() - begun)
        seconds[size] = min(times)
    fitted = curve.fitted or curve.sizes
    points = [(size, seconds[size]) for size in fitted]
    return {
        "seconds": seconds,
        "fitted": list(fitted),
        "exponent": exponent(points),
        "exponent_at_end": exponent(points[-2:]),
    }


def training(case: Case, exact: int) -> Callable[[], Any]:
    """A training step on a group whose answers all have `exact` tokens."""
    from benchmarks.ours import Ours
    from vlrl.policy import Family, Policy

    policy = Policy(build(Family, {"name": "text", "tiny": TINY}))
    groups = make_groups(case, 200)
    rng = random.Random(0)
    for group in groups:
        for rollout in group:
            rollout.ids[:] = [rng.randrange(200) for _ in range(exact)]
    return Ours(policy, groups, micro_tokens=1 << 20).step


def seeing(pixels: int) -> Callable[[], Any]:
    """A training step of one prompt with a picture of `pixels` x `pixels`, 8 answers of about 20 tokens;
    everything is trained."""
    from benchmarks.ours import Ours
    from vlrl.policy import Family, Policy

    tower = {"vision_hidden": 64, "vision_layers": 2, "vision_heads": 4}
    policy = Policy(build(Family, {"name": "qwen2_5_vl", "tiny": TINY | tower}))
    return Ours(policy, make_groups(Case(pixels=pixels, images=1, prompts=1), 200), micro_tokens=1 << 20).step


def exchanging(ranks: int) -> Callable[[], float]:
    """CPU seconds, of all ranks together, of what a step sends between them over gloo: 4 groups of 8 rollouts
    of each rank, and ten sums."""
    from torch import multiprocessing

    def work() -> float:
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(exchange, (ranks, folder), nprocs=ranks)
            return sum(float(path.read_text()) for path in Path(folder).glob("*.seconds"))

    return work


def exchange(rank: int, ranks: int, folder: str, steps: int = 20) -> None:
    """One rank of `exchanging`: writes the CPU seconds of a step, the least of `steps`."""
    import torch
    from torch import distributed

    from vlrl.trainer.ranks.collectives import all_groups, sum_over_ranks

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    accelerator: Any = SimpleNamespace(num_processes=ranks, process_index=rank)
    groups = make_groups(Case(text=30, prompts=4, mean=200, longest=1000), 200)
    times = []
    for _ in range(steps):
        begun = time.process_time()
        all_groups(accelerator, groups)
        for _ in range(10):
            sum_over_ranks(accelerator, [1.0] * 8)
        times.append(time.process_time() - begun)
    (Path(folder) / f"{rank}.seconds").write_text(str(min(times)))
    distributed.destroy_process_group()


def scoring(count: int) -> Callable[[], Any]:
    """`count` rewards on 64 rollouts."""
    from vlrl.trainer.step.scoring import run_rewards

    groups = make_groups(Case(text=30, prompts=8), 200)
    texts = [
        Group(g.prompt, [Rollout(g.prompt, r.ids, "<think>because</think><answer>7</answer>") for r in g])
        for g in groups
    ]
    rewards = {f"r{i}": build(Reward, "tag_count") for i in range(count)}
    return lambda: [run_rewards(texts, rewards) for _ in range(5)]


def loading(count: int) -> Callable[[], Any]:
    """Open a JSONL file of `count` rows and draw the first batch in shuffled order."""
    path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(
            json.dumps({"id": str(i), "problem": f"What is {i} + 1?", "answer": str(i + 1)}) + "\n"
            for i in range(count)
        )

    def work() -> Any:
        sampler: Any = build(PromptSampler, "shuffle")
        rows = build(Source, {"name": "files", "path": str(path)})()
        sampler.setup(
            cast(Any, SimpleNamespace(rows={"growth": rows}, source_weights={}, seed=0, accelerator=None))
        )
        return sampler(8)

    return work


def recording(steps: int) -> Callable[[], Any]:
    """Record `steps` steps of 32 metrics, without rollouts."""

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(folder, {})
            for step in range(steps):
                recorder.step(step, "main", numbers(step), {"step": 1.0, "learn": 0.5})
            recorder.close()

    return work


def reporting(steps: int) -> Callable[[], Any]:
    """Render the report of a run of `steps` steps of 32 metrics."""
    folder = Path(tempfile.mkdtemp())
    with (
        (folder / METRICS).open("w", encoding="utf-8") as metrics,
        (folder / TIMINGS).open("w", encoding="utf-8") as timings,
    ):
        for step in range(steps):
            metrics.write(json.dumps({"step": step, "phase": "main", **numbers(step)}) + "\n")
            timings.write(
                json.dumps({"step": step, "phase": "main", "seconds": {"step": 1.0, "learn": 0.5}}) + "\n"
            )
    return lambda: render_report(folder)


def numbers(step: int) -> dict[str, float]:
    """Metrics of a step."""
    return {f"reward/r{i}": math.sin(step * (i + 1)) for i in range(30)} | {
        "loss": 1 / (step + 1),
        "tokens": 100.0,
    }


CURVES = {
    "group size, 64 tokens each": Curve(
        (4, 8, 16, 32), lambda g: training(Case(text=30, prompts=1, group=g), 64)
    ),
    "prompt length in words": Curve((128, 256, 512, 1024), lambda n: training(Case(text=n, prompts=1), 16)),
    "answer length, 8 answers": Curve(
        (256, 512, 1024, 2048), lambda n: training(Case(text=30, prompts=1), n), repeats=2
    ),
    "picture side in pixels": Curve((112, 224, 448, 896), seeing, repeats=1),
    "ranks": Curve((1, 2, 4), exchanging, repeats=1, own_clock=True, fitted=(2, 4)),  # one rank sends nothing
    "rewards per rollout": Curve((1, 2, 4, 8, 16), scoring),
    "dataset rows, until the first batch": Curve(  # above 100,000 rows the first 2,000 are checked
        (1_000, 10_000, 100_000, 1_000_000), loading, repeats=1, fitted=(1_000, 10_000, 100_000)
    ),
    "recorded steps": Curve((1_000, 4_000, 16_000), recording, repeats=1),
    "report of a run, in steps": Curve((1_000, 10_000, 100_000), reporting, repeats=1),
}


def main(
    curves: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(CURVES)}; all by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    picture: Annotated[
        Path | None, typer.Option("--plot", help="Write the curves as an SVG picture.")
    ] = None,
) -> None:
    """Measure, print and draw."""
    torch.set_num_threads(1)
    cli.known("curve", curves or (), CURVES)
    if not as_json:
        typer.echo("| cost against | sizes | CPU s | exponent | at the end |\n|---|---|---|---|---|")
    result = {}
    for name in curves or CURVES:
        result[name] = found = measure(CURVES[name])
        if not as_json:
            seconds = ", ".join(f"{value:.3g}" for value in found["seconds"].values())
            sizes = ", ".join(f"{size:,}" for size in found["seconds"])
            typer.echo(
                f"| {name} | {sizes} | {seconds} | {found['exponent']:.2f} | {found['exponent_at_end']:.2f} |"
            )
    if as_json:
        typer.echo(json.dumps(result))
    if picture:
        picture.write_text(plot(result), encoding="utf-8")


if __name__ == "__main__":
    cli.run(main, __doc__)
