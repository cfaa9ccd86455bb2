"""How cost grows with group size, prompt and answer length, rewards per rollout, dataset rows and run length: CPU seconds and fitted exponents.

The exponent of a curve is the slope of log seconds over log size by least squares: 1 is linear, 0 constant, 2 quadratic.
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
from typing import Any, cast

from vlrl.bench.cases import Case, make_groups
from vlrl.logging.recorder import METRICS, TIMINGS, Recorder
from vlrl.logging.report import render_report
from vlrl.registry import build
from vlrl.stages import PromptSampler, Reward, Source
from vlrl.types import Group, Rollout

TINY = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 176}


@dataclass(frozen=True)
class Curve:
    """Seconds of a piece of work by its size; `work` prepares a size and returns what is timed."""

    sizes: tuple[int, ...]
    work: Callable[[int], Callable[[], Any]]
    repeats: int = 3


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Slope of log y over log x by least squares. Raises ValueError for fewer than two sizes."""
    if len({x for x, _ in points}) < 2:
        raise ValueError(f"an exponent needs at least two sizes, there are {len(points)} points")
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x, mean_y = (sum(column) / len(logs) for column in zip(*logs))
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


def measure(curve: Curve) -> dict[str, Any]:
    """{"seconds": {size: least CPU seconds of the repeats}, "exponent": of all sizes, "exponent_at_end": of the two largest}."""
    seconds = {}
    for size in curve.sizes:
        work = curve.work(size)
        work()  # allocates, fills caches that a run has too
        times = []
        for _ in range(curve.repeats):
            begun = time.process_time()
            work()
            times.append(time.process_time() - begun)
        seconds[size] = min(times)
    points = list(seconds.items())
    return {"seconds": seconds, "exponent": exponent(points), "exponent_at_end": exponent(points[-2:])}


def training(case: Case, exact: int) -> Callable[[], Any]:
    """A training step on a group whose answers all have `exact` tokens."""
    from vlrl.bench.ours import Ours
    from vlrl.policy import Family, Policy

    policy = Policy(build(Family, {"name": "text", "tiny": TINY}))
    groups = make_groups(case, 200)
    rng = random.Random(0)
    for group in groups:
        for rollout in group:
            rollout.ids[:] = [rng.randrange(200) for _ in range(exact)]
    return Ours(policy, groups, micro_tokens=1 << 20).step


def scoring(count: int) -> Callable[[], Any]:
    """`count` rewards on 64 rollouts."""
    from vlrl.trainer.scoring import run_rewards

    groups = make_groups(Case(text=30, prompts=8), 200)
    texts = [Group(g.prompt, [Rollout(g.prompt, r.ids, "<think>because</think><answer>7</answer>") for r in g]) for g in groups]
    rewards = {f"r{i}": build(Reward, "tag_count") for i in range(count)}
    return lambda: [run_rewards(texts, rewards) for _ in range(5)]


def loading(count: int) -> Callable[[], Any]:
    """Open a JSONL file of `count` rows and draw the first batch in shuffled order."""
    path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": str(i), "problem": f"What is {i} + 1?", "answer": str(i + 1)}) + "\n" for i in range(count))

    def work() -> Any:
        sampler: Any = build(PromptSampler, "shuffle")
        rows = build(Source, {"name": "files", "path": str(path)})()
        sampler.setup(cast(Any, SimpleNamespace(rows={"growth": rows}, source_weights={}, seed=0, accelerator=None)))
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
    with (folder / METRICS).open("w", encoding="utf-8") as metrics, (folder / TIMINGS).open("w", encoding="utf-8") as timings:
        for step in range(steps):
            metrics.write(json.dumps({"step": step, "phase": "main", **numbers(step)}) + "\n")
            timings.write(json.dumps({"step": step, "phase": "main", "seconds": {"step": 1.0, "learn": 0.5}}) + "\n")
    return lambda: render_report(folder)


def numbers(step: int) -> dict[str, float]:
    """Metrics of a step."""
    return {f"reward/r{i}": math.sin(step * (i + 1)) for i in range(30)} | {"loss": 1 / (step + 1), "tokens": 100.0}


CURVES = {
    "group size, 64 tokens each": Curve((4, 8, 16, 32), lambda g: training(Case(text=30, prompts=1, group=g), 64)),
    "prompt length in words": Curve((128, 256, 512, 1024), lambda n: training(Case(text=n, prompts=1), 16)),
    "answer length, 8 answers": Curve((256, 512, 1024, 2048), lambda n: training(Case(text=30, prompts=1), n), repeats=2),
    "rewards per rollout": Curve((1, 2, 4, 8, 16), scoring),
    "dataset rows, until the first batch": Curve((1_000, 10_000, 100_000), loading),
    "recorded steps": Curve((1_000, 4_000, 16_000), recording, repeats=1),
    "report of a run, in steps": Curve((1_000, 10_000, 100_000), reporting, repeats=1),
}
