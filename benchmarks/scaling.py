"""How parts of a step scale alone, on one machine: weights to an engine by size, the verifier by processes,
requests by engines.

    python -m benchmarks.scaling              # the three tables of docs/scaling.md, about two CPU-minutes
    python -m benchmarks.scaling transfer verify requests --json

- transfer: `policy.save` to a folder, and safetensors' reading of it: what engine `vllm_server` does with
  `transfer: folder`, once per step and once per step and replica;
- verify: `vlrl_rewards.verify` on long mathematical answers in 1, 2 and 4 processes;
- requests: engine `vllm_server` with 1 to 4 replicas that only wait: what this side of the wire costs per
  request, and the share of the replicas' capacity that it keeps busy.

CPU seconds are those of the processes that do the work, so other load does not show in them; wall seconds are
told beside them and do.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks import cli
from benchmarks.verify import ours_math
from benchmarks.waiting_server import SECONDS, SLOTS
from vlrl.engine.vllm.server import VLLMServer
from vlrl.plugins.registry import build
from vlrl.policy import Family, Policy
from vlrl.types import Prompt, Request, Row, Sampling

Table = list[dict[str, Any]]
WIDTHS = (256, 512, 1024)
TINY = {"hidden": 32, "layers": 1}
REQUESTS = 64  # per engine


def text_policy(tiny: dict[str, Any]) -> Policy:
    """A random text model."""
    return Policy(build(Family, {"name": "text", "tiny": tiny}))


def timed(work: Callable[..., Any], *given: Any) -> tuple[float, float]:
    """(CPU, wall) seconds of a call in this process."""
    cpu, wall = time.process_time(), time.perf_counter()
    work(*given)
    return time.process_time() - cpu, time.perf_counter() - wall


def read(files: list[Path]) -> None:
    """Read all tensors of safetensors files; the copies keep them from staying mapped to the file."""
    from safetensors.torch import load_file

    for file in files:
        for tensor in load_file(file).values():
            tensor.clone()


def transfer() -> Table:
    """Saving and reading by the size of the model, least CPU seconds of three."""
    rows = []
    for width in WIDTHS:
        policy = text_policy(
            {
                "hidden": width,
                "layers": 8,
                "heads": width // 64,
                "kv_heads": width // 128,
                "intermediate": 4 * width,
            }
        )
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            saving = min(timed(policy.save, folder) for _ in range(3))
            files = sorted(folder.glob("*.safetensors"))
            size = sum(file.stat().st_size for file in files) / 1e6
            reading = min(timed(read, files) for _ in range(3))
        weights = sum(p.numel() for p in policy.model.parameters()) / 1e6
        rows.append({
            "weights, M": weights, "MB": size, "saving, CPU s": saving[0],
            "saving, MB per CPU s": size / saving[0],
            "reading, CPU s": reading[0], "reading, MB per CPU s": size / reading[0],
        })  # fmt: skip
    return rows


def verifying(counts: tuple[int, ...] = (1, 2, 4), answers: int = 4000) -> Table:
    """The same number of answers in each number of processes."""
    rows = []
    for count in counts:
        with ProcessPoolExecutor(count) as pool:
            list(pool.map(ours_math, range(count), [50] * count))  # imports, caches
            began, share = time.perf_counter(), answers // count
            used = sum(pool.map(ours_math, [10**6 + i * share for i in range(count)], [share] * count))
            wall = time.perf_counter() - began
        rows.append(
            {"processes": count, "answers per CPU s": answers / used, "answers per s, wall": answers / wall}
        )
    return rows


class Waiting(VLLMServer):
    """The engine with replicas that answer a request after `SECONDS`, `SLOTS` at a time each."""

    def command(self, port: int, host: str = "") -> list[str]:
        return [sys.executable, "-m", "benchmarks.waiting_server", str(port)]


def requests() -> Table:
    """Requests of one prompt and eight completions, `REQUESTS` for each engine."""
    policy, rows = text_policy(TINY), []
    for replicas in (1, 2, 3, 4):
        with tempfile.TemporaryDirectory() as folder:
            engine = Waiting(replicas=replicas, parallel=2 * SLOTS, folder=folder).attach(policy)
            try:
                prompts = [
                    Prompt(Row(str(i), "q"), ({"role": "user", "content": f"Question {i}"},))
                    for i in range(replicas * REQUESTS)
                ]
                asked = [Request(prompt, Sampling(max_tokens=64), n=8) for prompt in prompts]
                list(engine.generate(asked[: 2 * SLOTS * replicas]))  # connections
                cpu, wall = timed(list, engine.generate(asked))
            finally:
                engine.close()
        ideal = REQUESTS / SLOTS * SECONDS
        rows.append({
            "engines": replicas, "requests": len(asked), "CPU ms per request": 1000 * cpu / len(asked),
            "requests per s": len(asked) / wall,
            "share of the engines' capacity": ideal / wall,
        })  # fmt: skip
    return rows


PARTS: dict[str, Callable[[], Table]] = {"transfer": transfer, "verify": verifying, "requests": requests}


def main(
    parts: Annotated[list[str] | None, typer.Argument(help=f"Parts to measure: {', '.join(PARTS)}.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure and print."""
    cli.known("part", parts or (), PARTS)
    torch.set_num_threads(1)
    for name in parts or PARTS:
        rows = PARTS[name]()
        if as_json:
            typer.echo(json.dumps({name: rows}))
            continue
        typer.echo(f"\n| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
        for row in rows:
            cells = (f"{v:,.3g}" if isinstance(v, float) and v < 1000 else f"{v:,.0f}" for v in row.values())
            typer.echo(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    cli.run(main, __doc__)
