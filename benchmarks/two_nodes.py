"""Two "machines" of two ranks each on this one: `vlrl train --nodes 2` twice, against one process.

    python -m benchmarks.two_nodes                     # ZeRO-3 and FSDP2
    python -m benchmarks.two_nodes ddp zero2 --steps 3 --ranks 1
    python -m benchmarks.two_nodes zero3 --servers 2   # sampling by two vLLM servers that all ranks share

Each is a launcher of its own (`accelerate launch` with its machine rank) that reaches the first at 127.0.0.1;
ranks are CPU processes over gloo. Printed are the gradient norms of each step beside those of one process
that trains the same groups. Rewards are hashes of the tokens. Ends with status 1 where a machine fails or a
norm differs by more than 1e-3 (relative).
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import cli

ROOT = Path(__file__).parents[1]
WORDS = (
    "base/rl", "methods/grpo", "tasks/lab_arithmetic", "sampling.max_tokens=6", "prompts_per_step=4",
    "group_size=4", "optimizer.lr=1e-3",
    "policy={name: text, tiny: {hidden: 64, layers: 2, heads: 4, kv_heads: 2, intermediate: 128}}",
    "rewards={any: {name: hash_of_tokens, weight: 1.0}}",
    f"plugins=[{ROOT / 'tests' / 'distributed' / 'hash_reward.py'}]",
    "watch.checkpoint_every=0", "watch.live=false",
)  # fmt: skip


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


SERVED = (
    # vLLM's CPU build takes heads of 32
    "policy={name: text, tiny: {hidden: 128, layers: 2, heads: 4, kv_heads: 2, intermediate: 256}}",
    (
        "engine={name: vllm_server, max_model_len: 256, arguments: ['--max-num-seqs', '16', "
        "'--distributed-executor-backend', 'uni']}"
    ),
)


def train(
    folder: Path,
    steps: int,
    layout: str = "",
    ranks: int = 1,
    node: int = 0,
    head: str = "",
    servers: int = 0,
) -> subprocess.Popen[str]:
    """Start one machine (or, without `layout`, one process); its output goes to a file beside the run's
    folder."""
    engine = [*SERVED, f"engine.replicas={servers}"] if servers else []
    launch = (
        [
            "--processes",
            str(2 * ranks),
            "--nodes",
            "2",
            "--node-rank",
            str(node),
            "--head",
            head,
            "--sharding",
            layout,
        ]
        if layout
        else []
    )
    command = [
        sys.executable,
        "-m",
        "vlrl",
        "train",
        *WORDS,
        *engine,
        f"steps={steps}",
        f"output={folder}",
        *launch,
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with (folder.parent / f"{folder.name}-{node}.log").open("w", encoding="utf-8") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True
        )


def finish(machines: list[subprocess.Popen[str]], seconds: float = 1500.0) -> list[int]:
    """Exit codes; once one machine has failed, the others are ended."""
    until = time.monotonic() + seconds
    while any(one.poll() is None for one in machines):
        if time.monotonic() > until or any(one.poll() for one in machines):
            for one in machines:
                one.terminate()
        time.sleep(0.5)
    return [one.wait() for one in machines]


def norms(folder: Path) -> list[float]:
    """The gradient norms in a run's log. Losses say little here: on-policy, with completions of one length,
    they are 0."""
    return [
        float(json.loads(line)["grad_norm"])
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def main(
    layouts: Annotated[
        list[str] | None, typer.Argument(help="Files of configs/accelerate; zero3 and fsdp2 by default.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of the run.")] = 2,
    ranks: Annotated[int, typer.Option(help="Ranks of each machine.")] = 2,
    servers: Annotated[
        int, typer.Option(help="vLLM servers that sample for all ranks; 0: each rank samples by itself.")
    ] = 0,
) -> None:
    """Run and compare."""
    cli.known("layout", layouts or (), cli.configs("accelerate"))
    failed = False
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        if any(finish([train(root / "alone", steps, servers=servers)])):
            typer.echo((root / "alone-0.log").read_text(encoding="utf-8")[-3000:], err=True)
            raise typer.Exit(1)
        alone = norms(root / "alone")
        typer.echo(f"one process: gradient norms {', '.join(f'{norm:.6f}' for norm in alone)}")
        for layout in layouts or ["zero3", "fsdp2"]:
            begun, head = time.monotonic(), f"127.0.0.1:{free_port()}"
            codes = finish(
                [train(root / layout, steps, layout, ranks, node, head, servers) for node in (0, 1)]
            )
            if any(codes):
                failed = True
                logs = "\n".join(
                    (root / f"{layout}-{node}.log").read_text(encoding="utf-8")[-3000:] for node in (0, 1)
                )
                typer.echo(f"{layout}: the machines ended with {codes}\n{logs}", err=True)
                continue
            found = norms(root / layout)
            alike = len(found) == len(alone) and all(
                math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-6) for a, b in zip(found, alone)
            )
            failed |= not alike
            shown = ", ".join(f"{norm:.6f}" for norm in found)
            typer.echo(
                f"{layout}: 2 machines x {ranks}: gradient norms {shown}: "
                f"{'alike' if alike else 'NOT alike'}, {time.monotonic() - begun:.0f} s"
            )
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    cli.run(main, __doc__)
