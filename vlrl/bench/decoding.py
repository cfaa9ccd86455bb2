"""Decoding of engine `hf`: tokens per CPU-second of 64 rollouts of geometric length.

Lengths are drawn once and given as `max_tokens`, so that every version and every option does the same work; nothing else ends a completion.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from vlrl.bench.limit import SHAPES, Load
from vlrl.registry import build
from vlrl.stages import Engine
from vlrl.types import Request, Sampling


def lengths(count: int = 64, mean: int = 200, longest: int = 1000, seed: int = 0) -> list[int]:
    """Tokens of each completion: geometric with this mean, cut at `longest`."""
    rng = random.Random(seed)
    return [min(longest, 1 + int(-mean * math.log(1 - rng.random()))) for _ in range(count)]


def decode(shape: str, mean: int = 200, repeats: int = 1, lookup_tokens: Sequence[int] = (0,)) -> dict[int, dict[str, Any]]:
    """{lookup_tokens: {"tokens", "steps", "cpu_seconds", "tokens_per_cpu_second"}} on a random model of `SHAPES`; runs of the options interleaved."""
    load = Load(SHAPES[shape])
    per_prompt = 64 // len(load.prompts)
    requests = [Request(load.prompts[i // per_prompt], Sampling(max_tokens=n, temperature=1.0), 1, seed=i) for i, n in enumerate(lengths(64, mean))]
    engines = {count: build(Engine, {"name": "hf", "lookup_tokens": count}).attach(load.policy) for count in lookup_tokens}
    runs: dict[int, list[dict[str, Any]]] = {count: [] for count in lookup_tokens}
    list(engines[lookup_tokens[0]].generate([Request(prompt, Sampling(max_tokens=2, temperature=1.0), 2, seed=0) for prompt in load.prompts]))
    for _ in range(repeats):
        for count, engine in engines.items():
            steps, begun = engine.counters["decode_steps"], time.process_time()
            tokens = sum(len(c.ids) for c in engine.generate(requests))
            spent = time.process_time() - begun
            steps = engine.counters["decode_steps"] - steps
            runs[count].append({"tokens": tokens, "steps": steps, "cpu_seconds": spent, "tokens_per_cpu_second": tokens / spent})
    return {count: {key: statistics.median(run[key] for run in found) for key in found[0]} for count, found in runs.items()}
