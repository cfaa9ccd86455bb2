"""Speed and memory of the loader: opening and reading many rows, loading as a share of a training step,
pictures per second against `datasets`.

    python -m benchmarks.data [--rows 10000000] [--kind parquet ...] [--pictures 64] [--side 640] [--json]

`rows` rows are written as JSON lines, as 100 parquet files and as tar files (one of rows / 10 records under
ten names), opened twice and read in shuffled order, each in a process of its own. `share` trains a small
Qwen2.5-VL on pictures of 1 megapixel, and on videos, and tells what loading takes of a step without sampling.
The plain path is what a trainer does that repeats a prompt's row G times in its sampler (TRL 1.16:
`RepeatSampler`, PIL columns, the image processor on every repeated row, for the rollouts and again for the
training forward, re-reading the batch on each of A accumulation steps). Here a step needs each picture once.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image
from vlrl_data.lab import shipped_images
from vlrl_data.media.images import DECODED
from vlrl_data.media.video import encode

from benchmarks import cli
from vlrl.plugins.registry import build
from vlrl.plugins.stages import PromptSampler, Source

SHARDS = 100


def megabytes(field: str = "VmRSS") -> float:
    """Memory of this process: resident now, or the most so far (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 2**10


def sampler_over(rows: Any, **options: Any) -> PromptSampler:
    """The default sampler over one source."""
    sampler: PromptSampler = build(PromptSampler, {"name": "shuffle", **options})
    run: Any = SimpleNamespace(rows={"bench": rows}, source_weights={}, seed=0, rank=0, ranks=1)
    sampler.setup(run)
    return sampler


def records(first: int, last: int) -> Iterator[dict[str, str]]:
    """Sums, as records."""
    return (
        {"id": f"r{i}", "problem": f"What is {i} + {i % 97}?", "answer": str(i + i % 97)}
        for i in range(first, last)
    )


def write_jsonl(folder: Path, count: int) -> None:
    """One file of JSON lines."""
    with (folder / "many.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records(0, count))


def write_parquet(folder: Path, count: int) -> None:
    """`SHARDS` files with row groups of 25,000 rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for shard in range(SHARDS):
        rows = list(records(shard * count // SHARDS, (shard + 1) * count // SHARDS))
        pq.write_table(
            pa.Table.from_pylist(rows), folder / f"part-{shard:03d}.parquet", row_group_size=25_000
        )


def write_tars(folder: Path, count: int) -> None:
    """One file of count / 10 records under ten names (hard links: 1 KB a record on disk)."""
    with tarfile.open(folder / "shard-0.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, record in enumerate(records(0, count // 10)):
            data = json.dumps(record).encode()
            member = tarfile.TarInfo(f"{number:08d}.json")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    for name in range(1, 10):
        os.link(folder / "shard-0.tar", folder / f"shard-{name}.tar")


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "jsonl": write_jsonl,
    "parquet": write_parquet,
    "webdataset": write_tars,
}


def read_many(kind: str, folder: str, blocks: int) -> dict[str, float]:
    """Open the rows, draw a batch, then read 20,000 rows and 20,000 more in shuffled order."""
    before, clock, cpu = megabytes(), time.perf_counter(), time.process_time()
    rows = build(Source, {"name": "webdataset" if kind == "webdataset" else "files", "path": folder})()
    sampler = sampler_over(rows, blocks=blocks)
    sampler(8)
    told = {
        "wall s to the first batch": time.perf_counter() - clock,
        "CPU s to the first batch": time.process_time() - cpu,
    }
    told["MB opened"] = megabytes() - before
    for name in ("first", "next"):
        cpu = time.process_time()
        for _ in range(20):
            sampler(1000)
        told[f"CPU us per row, {name} 20,000"] = (time.process_time() - cpu) / 20_000 * 1e6
    return told | {"MB at most": megabytes("VmHWM") - before, "rows": len(rows)}


def many_rows(kind: str, count: int) -> dict[str, dict[str, float]]:
    """`read_many` for the first time, again, and (parquet) for the first time with blocks, each in a process
    of its own."""
    told = {}
    with tempfile.TemporaryDirectory() as name:
        (data := Path(name) / "data").mkdir()
        WRITERS[kind](data, count)
        for case, blocks in (
            ("first", 0),
            ("again", 0),
            *([("first, blocks: 4", 4)] if kind == "parquet" else []),
        ):
            os.environ["VLRL_CACHE"] = f"{name}/cache{blocks}"
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                told[f"{kind}, {case}"] = pool.submit(read_many, kind, str(data), blocks).result()
            cached = sum(
                file.stat().st_size for file in Path(os.environ["VLRL_CACHE"]).rglob("*") if file.is_file()
            )
            told[f"{kind}, {case}"] |= {"MB of the cache": cached / 2**20}
    return told


def write_megapixels(folder: Path, count: int, video: bool) -> None:
    """A tar file of JPEGs of 1024 x 1024 pixels, or of mp4 files of 8 seconds, 24 frames per second and 640 x
    368 pixels."""
    rng = random.Random(0)
    with tarfile.open(folder / "shard.tar", "w") as tar:
        for number in range(count):
            name, box = shipped_images.random_crop(rng, "train", ())
            image, data = shipped_images.crop(name, box, 1024, 1024).convert("RGB"), io.BytesIO()
            if video:
                wide = np.asarray(image.resize((832, 368)))
                data.write(encode([wide[:, shift : shift + 640] for shift in range(192)], 24.0))
            else:
                image.save(data, "JPEG", quality=90)
            mark = "video" if video else "image"
            for suffix, content in (
                ("mp4" if video else "jpg", data.getvalue()),
                ("json", json.dumps({"problem": f"<{mark}>?", "answer": "1"}).encode()),
            ):
                member = tarfile.TarInfo(f"{number:04d}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def share_of_a_step(video: bool, workers: int, prompts: int, steps: int) -> dict[str, float]:
    """What loading takes of a step: rows of a tar file, decoded in `workers` threads (0: when they are
    needed), and the training half of a step of `prompts` x 8 completions on a picture of 1 megapixel. Seconds
    are of the main thread: its CPU, and its wall clock from asking for rows to holding their pixels."""
    import torch

    from benchmarks.cases import Case, make_groups
    from benchmarks.ours import Ours
    from benchmarks.step import SIZES
    from vlrl.policy import Family, Policy

    torch.set_num_threads(1)
    policy = Policy(build(Family, {"name": "qwen2_5_vl", "tiny": SIZES}), device="cpu")
    trained = Ours(policy, make_groups(Case(pixels=1008, images=1, prompts=prompts), 200))
    loading, waiting, step_cpu, step_wall = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        write_megapixels(Path(folder), prompts * (steps + 2), video)
        os.environ["VLRL_CACHE"] = f"{folder}/cache"
        sampler = sampler_over(
            build(Source, {"name": "webdataset", "path": folder, "check_level": "rows"})(), workers=workers
        )
        for _ in range(steps + 1):
            cpu, clock = time.thread_time(), time.perf_counter()
            for row in sampler(prompts):
                row.media[0].load()
            loading.append(time.thread_time() - cpu)
            waiting.append(time.perf_counter() - clock)
            cpu, clock = time.thread_time(), time.perf_counter()
            trained.step()
            step_cpu.append(time.thread_time() - cpu)
            step_wall.append(time.perf_counter() - clock)
    cpu, wall = sum(loading[1:]), sum(waiting[1:])
    return {
        "loading, CPU ms a prompt": cpu / steps / prompts * 1e3,
        "step, CPU s": sum(step_cpu[1:]) / steps,
        "share of CPU": cpu / (cpu + sum(step_cpu[1:])),
        "share of wall clock": wall / (wall + sum(step_wall[1:])),
    }


def write_pictures(folder: Path, count: int, side: int) -> Path:
    """JPEG files and a JSONL file that names them."""
    rng = random.Random(0)
    with (folder / "pictures.jsonl").open("w", encoding="utf-8") as file:
        for i in range(count):
            name, box = shipped_images.random_crop(rng, "train", ())
            shipped_images.crop(name, box, side, side).save(folder / f"{i}.jpg", quality=90)
            file.write(
                json.dumps(
                    {"problem": f"<image>What is number {i}?", "answer": str(i), "images": [f"{i}.jpg"]}
                )
                + "\n"
            )
    return folder / "pictures.jsonl"


def ours(path: Path, processor: Any, prompts: int, workers: int, steps: int) -> dict[str, float]:
    """Each picture of a step decoded and processed once."""
    rows = build(Source, {"name": "files", "path": str(path), "check_level": "headers"})()
    sampler = sampler_over(rows, workers=workers)
    sampler(prompts)  # threads start
    decoded, clock = DECODED["count"], time.perf_counter()
    for _ in range(steps):
        for row in sampler(prompts):
            processor(images=row.images[0].load(), return_tensors="np")
    seconds = time.perf_counter() - clock
    decodes = DECODED["count"] - decoded
    return {
        "pictures per second": steps * prompts / seconds,
        "decodes per picture and step": decodes / (steps * prompts),
    }


class Counted:
    """A `datasets` row store whose decodes are counted."""

    def __init__(self, path: Path) -> None:
        from datasets import Dataset, Features, Value
        from datasets import Image as Feature

        rows = [json.loads(line) for line in path.read_text().splitlines()]
        columns = {
            "image": [str(path.parent / row["images"][0]) for row in rows],
            "problem": [row["problem"] for row in rows],
        }
        self.dataset = Dataset.from_dict(
            columns, features=Features({"image": Feature(), "problem": Value("string")})
        )
        self.decodes = 0

    def picture(self, index: int) -> Image.Image:
        """The decoded picture of a row."""
        self.decodes += 1
        return self.dataset[index]["image"].convert("RGB")


def plain(
    path: Path, processor: Any, prompts: int, group: int, accumulation: int, steps: int
) -> dict[str, float]:
    """Rows repeated `group` times, read on every accumulation step, processed for the rollouts and for the
    training forward."""
    store = Counted(path)
    clock = time.perf_counter()
    for step in range(steps):
        for part in range(accumulation):
            batch = [
                store.picture((step * prompts + i) % len(store.dataset))
                for i in range(prompts)
                for _ in range(group)
            ]
            for _ in range(2 if part == 0 else 0):
                processor(images=batch, return_tensors="np")
    seconds = time.perf_counter() - clock
    return {
        "pictures per second": steps * prompts / seconds,
        "decodes per picture and step": store.decodes / (steps * prompts),
    }


def pictures_per_second(
    pictures: int, side: int, prompts: int, group: int, accumulation: int, workers: int
) -> dict[str, dict[str, float]]:
    """Ours and the plain path on the same JPEG files."""
    from transformers import Qwen2VLImageProcessor

    processor = Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=28 * 28 * 256)
    told = {}
    with tempfile.TemporaryDirectory() as name:
        path = write_pictures(Path(name), pictures, side)
        steps = pictures // prompts
        told["plain"] = plain(path, processor, prompts, group, accumulation, max(1, steps // 8))
        told["vlrl, in process"] = ours(path, processor, prompts, 0, steps)
        told[f"vlrl, {workers} thread"] = ours(path, processor, prompts, workers, steps)
    return told


def main(
    rows: int = 1_000_000,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Of many rows: jsonl, parquet, webdataset; all of them unless named."),
    ] = None,
    share: Annotated[bool, typer.Option(help="Loading as a share of a step at 1 megapixel.")] = True,
    against: Annotated[bool, typer.Option(help="Pictures per second against `datasets`.")] = True,
    steps: Annotated[int, typer.Option(help="Counted steps of the share.")] = 3,
    pictures: int = 64,
    side: int = 640,
    prompts: int = 4,
    group: int = 8,
    accumulation: int = 4,
    workers: int = 1,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Run it and print the figures."""
    cli.known("kind", kind or (), WRITERS)
    told: dict[str, dict[str, float]] = {}
    for one in kind or WRITERS if rows else ():
        told |= many_rows(one, rows)
    for threads in (0, 2) if share else ():
        for name in ("pictures", "videos"):
            told[f"share of a step, {name}, workers: {threads}"] = share_of_a_step(
                name == "videos", threads, prompts, steps
            )
    told |= pictures_per_second(pictures, side, prompts, group, accumulation, workers) if against else {}
    if as_json:
        typer.echo(json.dumps(told))
        return
    for part, figures in told.items():
        typer.echo(f"{part}: " + ", ".join(f"{key} {value:,.3f}" for key, value in figures.items()))


if __name__ == "__main__":
    cli.run(main, __doc__)
