"""What Ray costs a run: CPU seconds of `vlrl train --processes 1` with and without `--ray`.

    python -m benchmarks.ray_overhead            # 10 and 110 steps of the tiny text model
    python -m benchmarks.ray_overhead --few 20 --many 100

The work: GRPO on lab_arithmetic with a text model of one layer; both sides log the same numbers. CPU
seconds are those of all processes that a run starts, and with Ray those of the cluster (head and two nodes
on this machine) while it runs. The figure per step is the difference of a long and a short run over the
number of steps between them, so that starts are no part of it.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import cli

ROOT = Path(__file__).parents[1]
WORDS = (
    "base/rl", "methods/grpo", "tasks/lab_arithmetic", "sampling.max_tokens=6", "prompts_per_step=2",
    "group_size=4", "threads=1",
    "policy={name: text, tiny: {hidden: 16, layers: 1, heads: 2, kv_heads: 1, intermediate: 32}}",
    "rewards={any: {name: hash_of_tokens, weight: 1.0}}", "watch.checkpoint_every=0", "watch.live=false",
    f"plugins=[{ROOT / 'tests' / 'distributed' / 'hash_reward.py'}]",
)  # fmt: skip


class CpuSampler(threading.Thread):
    """Follows this process's descendants, five times a second: CPU seconds of each, the last that were seen.
    (Ray's workers are not waited for by anybody who would count them.)"""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: dict[tuple[int, float], float] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        import psutil

        while not self.ended.wait(0.2):
            for child in psutil.Process().children(recursive=True):
                try:
                    times = child.cpu_times()
                    self.seen[child.pid, child.create_time()] = times.user + times.system
                except psutil.NoSuchProcess:
                    continue

    def total(self) -> float:
        """CPU seconds so far."""
        return sum(list(self.seen.values()))


def train(sampler: CpuSampler, folder: Path, steps: int, address: str = "") -> float:
    """One run; its CPU seconds. Raises CalledProcessError where it fails."""
    before = sampler.total()
    on_ray = ["--ray", address] if address else []
    command = [sys.executable, "-m", "vlrl", "train", *WORDS, f"steps={steps}", f"output={folder}", "--quiet"]
    subprocess.run([*command, "--processes", "1", *on_ray], cwd=ROOT, check=True, capture_output=True)
    return sampler.total() - before


def main(
    few: Annotated[int, typer.Option(help="Steps of the short run.")] = 10,
    many: Annotated[int, typer.Option(help="Steps of the long run.")] = 110,
    rounds: Annotated[int, typer.Option(help="Repetitions; the least is told.")] = 2,
) -> None:
    """Run both sides in turn and print the table."""
    import ray
    from ray.cluster_utils import Cluster

    found: dict[tuple[str, int], list[float]] = {}
    sampler = CpuSampler()
    sampler.start()
    cluster: Any = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}, connect=False
    )
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        with tempfile.TemporaryDirectory() as made:
            for index in range(rounds):
                for steps in (few, many):
                    for side, address in (("plain", ""), ("ray", cluster.address)):
                        folder = Path(made) / f"{side}-{steps}-{index}"
                        found.setdefault((side, steps), []).append(train(sampler, folder, steps, address))
                one, other = (Path(made) / f"{side}-{many}-{index}" for side in ("plain", "ray"))
                assert (one / "metrics.jsonl").read_text() == (other / "metrics.jsonl").read_text()
    finally:
        cluster.shutdown()
    typer.echo(f"ray {ray.__version__}, Python {platform.python_version()}, least of {rounds}")
    for side in ("plain", "ray"):
        short, long = min(found[side, few]), min(found[side, many])
        each = (long - short) / (many - few)
        typer.echo(
            f"{side}: {short:.1f} CPU s for {few} steps, {long:.1f} for {many}: {1000 * each:.0f} ms a step, "
            f"{short - few * each:.1f} s for the start"
        )


if __name__ == "__main__":
    cli.run(main, __doc__)
