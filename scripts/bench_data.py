"""Speed and memory of the loader: pictures per second against the plain `datasets` + processor path, start-up and memory over many rows.

    python scripts/bench_data.py [--rows 10000000] [--pictures 64] [--side 640] [--json]

The plain path is what a trainer does that repeats a prompt's row G times in its sampler (TRL 1.16: `RepeatSampler`, PIL columns, the image
processor on every repeated row, for the rollouts and again for the training forward, re-reading the batch on each of A accumulation steps).
Here a step needs each picture once.
"""

from __future__ import annotations

import json
import random
import resource
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer
from PIL import Image
from vlrl_data.lab import shipped_images
from vlrl_data.media.images import DECODED

from vlrl.registry import build
from vlrl.stages import PromptSampler, Source


def megabytes() -> float:
    """Resident memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def sampler_over(rows: Any, **options: Any) -> PromptSampler:
    """The default sampler over one source."""
    sampler: PromptSampler = build(PromptSampler, {"name": "shuffle", **options})
    run: Any = SimpleNamespace(rows={"bench": rows}, source_weights={}, seed=0, accelerator=None)
    sampler.setup(run)
    return sampler


def many_rows(folder: Path, count: int) -> dict[str, float]:
    """Start-up and memory for a JSONL file of `count` rows, then reading 100,000 of them in shuffled order."""
    path = folder / "many.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, count, 100_000):
            lines = (
                f'{{"id": "r{i}", "problem": "What is {i} + {i % 97}?", "answer": "{i + i % 97}"}}\n'
                for i in range(start, min(start + 100_000, count))
            )
            file.writelines(lines)
    before, clock = megabytes(), time.perf_counter()
    sampler = sampler_over(build(Source, {"name": "files", "path": str(path)})())
    sampler(8)
    started = time.perf_counter() - clock
    opened, clock = megabytes(), time.perf_counter()
    peaks = []
    for _ in range(100):
        sampler(1000)
        peaks.append(megabytes())
    rate = 100_000 / (time.perf_counter() - clock)
    told = {"rows": count, "file MB": path.stat().st_size / 2**20, "seconds to first batch": started, "MB for the index": opened - before}
    return told | {"rows per second": rate, "MB after 10,000 rows": peaks[9] - opened, "MB after 100,000 rows": peaks[-1] - opened}


def write_pictures(folder: Path, count: int, side: int) -> Path:
    """JPEG files and a JSONL file that names them."""
    rng = random.Random(0)
    with (folder / "pictures.jsonl").open("w", encoding="utf-8") as file:
        for i in range(count):
            name, box = shipped_images.random_crop(rng, "train", ())
            shipped_images.crop(name, box, side, side).save(folder / f"{i}.jpg", quality=90)
            file.write(json.dumps({"problem": f"<image>What is number {i}?", "answer": str(i), "images": [f"{i}.jpg"]}) + "\n")
    return folder / "pictures.jsonl"


def ours(path: Path, processor: Any, prompts: int, workers: int, steps: int) -> dict[str, float]:
    """Each picture of a step decoded and processed once."""
    rows = build(Source, {"name": "files", "path": str(path), "check_level": "headers"})()
    sampler = sampler_over(rows, workers=workers)
    sampler(prompts)  # workers start
    DECODED["count"], clock = 0, time.perf_counter()
    for _ in range(steps):
        for row in sampler(prompts):
            processor(images=row.images[0].load(), return_tensors="np")
    seconds = time.perf_counter() - clock
    decodes = DECODED["count"] if not workers else steps * prompts
    return {"pictures per second": steps * prompts / seconds, "decodes per picture and step": decodes / (steps * prompts)}


class Counted:
    """A `datasets` row store whose decodes are counted."""

    def __init__(self, path: Path) -> None:
        from datasets import Dataset, Features, Value
        from datasets import Image as Feature

        rows = [json.loads(line) for line in path.read_text().splitlines()]
        columns = {"image": [str(path.parent / row["images"][0]) for row in rows], "problem": [row["problem"] for row in rows]}
        self.dataset = Dataset.from_dict(columns, features=Features({"image": Feature(), "problem": Value("string")}))
        self.decodes = 0

    def picture(self, index: int) -> Image.Image:
        """The decoded picture of a row."""
        self.decodes += 1
        return self.dataset[index]["image"].convert("RGB")


def plain(path: Path, processor: Any, prompts: int, group: int, accumulation: int, steps: int) -> dict[str, float]:
    """Rows repeated `group` times, read on every accumulation step, processed for the rollouts and for the training forward."""
    store = Counted(path)
    clock = time.perf_counter()
    for step in range(steps):
        for part in range(accumulation):
            batch = [store.picture((step * prompts + i) % len(store.dataset)) for i in range(prompts) for _ in range(group)]
            for _ in range(2 if part == 0 else 0):
                processor(images=batch, return_tensors="np")
    seconds = time.perf_counter() - clock
    return {"pictures per second": steps * prompts / seconds, "decodes per picture and step": store.decodes / (steps * prompts)}


def main(
    rows: int = 1_000_000,
    pictures: int = 64,
    side: int = 640,
    prompts: int = 4,
    group: int = 8,
    accumulation: int = 4,
    workers: int = 1,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Run it and print the figures."""
    from transformers import Qwen2VLImageProcessor

    processor = Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=28 * 28 * 256)
    told: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        told["many rows"] = many_rows(Path(name), rows)
        path = write_pictures(Path(name), pictures, side)
        steps = pictures // prompts
        told["plain"] = plain(path, processor, prompts, group, accumulation, max(1, steps // 8))
        told["vlrl, in process"] = ours(path, processor, prompts, 0, steps)
        told[f"vlrl, {workers} worker"] = ours(path, processor, prompts, workers, steps)
    if as_json:
        typer.echo(json.dumps(told))
        return
    for part, figures in told.items():
        typer.echo(f"{part}: " + ", ".join(f"{key} {value:,.2f}" for key, value in figures.items()))


if __name__ == "__main__":
    typer.run(main)
