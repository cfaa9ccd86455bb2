"""Memory of trainer and vLLM in one process, with `engine.share_weights` and without: resident MB before vLLM
starts, after, and at a sync. A random text model; each side has a process.

    python -m benchmarks.shared_weights         # needs vLLM; Linux, CPU, one thread
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import torch
import typer

from benchmarks import cli
from benchmarks.meter import memory_status, release_memory, reset_peak
from vlrl.plugins.registry import build
from vlrl.policy import Family, Policy
from vlrl.types import Prompt, Request, Row, Sampling

MODEL = {"hidden": 768, "layers": 6, "heads": 12, "kv_heads": 4, "intermediate": 2048, "rows": 32768}
MB = 1e6


def status(field: str) -> float:
    """A field of this process's memory status in MB, after unused memory was given back."""
    release_memory()
    return memory_status(field) * 1024 / MB


def side(share: bool) -> dict[str, Any]:
    """One side: MB resident before vLLM, after its first samples, and at most while new weights are sent; MB
    of weights; what it sampled."""
    from vlrl.engine.vllm.inprocess import VLLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy = Policy(build(Family, {"name": "text", "tiny": MODEL}))
    weights = sum(p.nbytes for p in policy.model.parameters()) / MB
    before = status("VmRSS")
    engine = VLLM(max_model_len=512, share_weights=share, options={"max_num_seqs": 16}).attach(policy)
    try:
        first, _ = samples(engine)
        started = status("VmRSS")
        reset_peak()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.add_(0.01 * torch.randn(parameter.shape, generator=generator))
        policy.version += 1
        engine.sync(policy)
        peak = status("VmHWM")
        second, seconds = samples(engine)
        shared = engine.state.shared.shared_bytes / MB if engine.state.shared is not None else 0.0
        sizes = {
            "weights": weights,
            "shared": shared,
            "before": before,
            "started": started,
            "peak": peak,
            "after": status("VmRSS"),
        }
        return {**sizes, "seconds": seconds, "samples": [first, second]}
    finally:
        engine.close()


def samples(engine: Any) -> tuple[list[list[int]], float]:
    """(ids of 16 greedy completions of 32 tokens, CPU seconds)."""
    prompts = [
        Prompt(Row(str(i), f"Question {i}?"), ({"role": "user", "content": f"Question {i}?"},))
        for i in range(16)
    ]
    begun = time.process_time()
    found = {
        c.request.tag: list(c.ids)
        for c in engine.generate(
            [Request(p, Sampling(max_tokens=32, temperature=0.0), 1, tag=i) for i, p in enumerate(prompts)]
        )
    }
    return [found[i] for i in range(len(prompts))], time.process_time() - begun


def measure() -> dict[bool, dict[str, Any]]:
    """{share_weights: what `side` returns}, each from a process of its own."""
    found = {}
    for share in (False, True):
        code = (
            "import json; from benchmarks.shared_weights import side; print('\\n' + "
            f"json.dumps(side({share})))"
        )
        out = subprocess.run(
            [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        found[share] = json.loads(out.strip().splitlines()[-1])
    return found


COLUMNS = {
    "weights": "weights",
    "shared": "of these shared",
    "before": "before vLLM",
    "started": "vLLM started",
    "peak": "most at a sync",
    "after": "after it",
}


def main() -> None:
    """Measure and print MB."""
    found = measure()
    typer.echo(
        f"| share_weights | {' | '.join(COLUMNS.values())} | CPU s of 512 tokens "
        f"|\n|{'---|' * (len(COLUMNS) + 2)}"
    )
    for share, result in found.items():
        typer.echo(
            f"| {str(share).lower()} | {' | '.join(f'{result[name]:.0f}' for name in COLUMNS)} | "
            f"{result['seconds']:.2f} |"
        )
    typer.echo(f"\nsamples equal: {found[True]['samples'] == found[False]['samples']}")


if __name__ == "__main__":
    cli.run(main, __doc__)
