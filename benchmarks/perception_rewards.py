"""Answers a minute (of processor time, one core) for each kind of perception answer.

python -m benchmarks.perception_rewards [seconds]
"""

from __future__ import annotations

import time

import typer
from vlrl_rewards.audit.perception import ALIASES, SEEDS
from vlrl_rewards.verification import kinds, verify

from benchmarks import cli

THOUGHT = "<think>" + "The picture shows a thing on the left, and another one behind it. " * 8 + "</think>"


def rate(kind: str, seconds: float) -> float:
    """Answers a minute, right and wrong ones in turn, each after a paragraph of thinking."""
    seed = SEEDS[kind]
    texts = [f"{THOUGHT}<answer>{text}</answer>" for text in (seed.right, *seed.wrong)]
    verify(seed.gold, texts[0], kind=kind, choices=seed.choices, **seed.options)
    count, started = 0, time.process_time()
    while time.process_time() - started < seconds:
        verify(seed.gold, texts[count % len(texts)], kind=kind, choices=seed.choices, **seed.options)
        count += 1
    return 60 * count / (time.process_time() - started)


def main(seconds: float = typer.Argument(0.3, help="Processor time for each kind.")) -> None:
    """Print one line a kind, slowest first, and the rate of an even mix."""
    kinds()
    rates = {kind: rate(kind, seconds) for kind in SEEDS if kind not in ALIASES}
    for kind, value in sorted(rates.items(), key=lambda pair: pair[1]):
        print(f"{kind:20s} {value:10,.0f} answers/min")
    print(f"{'even mix':20s} {len(rates) / sum(1 / value for value in rates.values()):10,.0f} answers/min")


if __name__ == "__main__":
    cli.run(main, __doc__)
