"""Memory of the trainer's process with vLLM in it, with `engine.share_weights` and without: resident MB
before vLLM starts, after, and at a sync.

python scripts/bench_shared_weights.py         # needs vLLM; CPU, one thread
"""

from __future__ import annotations

import typer

from vlrl.bench.shared_weights import measure

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
    typer.run(main)
