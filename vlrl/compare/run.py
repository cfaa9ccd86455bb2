"""Runs the cells of a plan in processes side by side."""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from vlrl.compare.plan import Plan, check_plugins
from vlrl.model_folder import check_cached
from vlrl.services.parent import end_with_parent
from vlrl.trainer.run import Run


def run_plan(plan: Plan, jobs: int, quiet: bool = False) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]:
    """All cells, by preset and seed, and the numbers of the cold starts by seed.

    Every config is built before the first one runs. Raises what a run raises, with its preset and seed.
    """
    from vlrl.compare.work import cell, start

    check(plan)
    plan.claim()
    results: dict[tuple[str, int], dict[str, Any]] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(plan.cells())), context, initializer=_start) as pool:
        begun = [pool.submit(start, plan, seed) for seed in range(plan.seeds)]
        starts = [future.result() for future in begun]
        futures = {pool.submit(cell, plan, preset, seed): (preset, seed) for preset, seed in plan.cells()}
        for future in as_completed(futures):
            preset, seed = futures[future]
            try:
                results[preset, seed] = future.result()
            except Exception as error:
                pool.shutdown(cancel_futures=True)
                raise RuntimeError(f"{preset}, seed {seed}: {type(error).__name__}: {error} (see {plan.cell(preset, seed)})") from error
            if not quiet:
                sys.stderr.write(f"[{len(results)}/{len(futures)}] {preset} seed {seed}: held-out {results[preset, seed]['final']:.3f}\n")
    return {preset: [results[preset, seed] for seed in range(plan.seeds)] for preset in plan.presets}, starts


def check(plan: Plan) -> None:
    """Build every run's plug-ins once. Raises ConfigError."""
    weights = "" if plan.cold_steps else plan.pretrained
    check_cached(weights, "compare --model")
    if plan.cold_steps:
        check_plugins(Run(plan.cold_config(0)), "cold start")
    for preset in plan.presets:
        check_plugins(Run(plan.config(preset, 0, weights)), preset)


def _start() -> None:
    sys.stdout = sys.stderr  # what libraries print is no part of the numbers
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    end_with_parent()
