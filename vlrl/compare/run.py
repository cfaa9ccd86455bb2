"""Runs the cells of a plan in processes side by side.

Every cold start and every run has a process of its own, so that no run sees what another one left in caches
and memory. Where it is safe they are forked from one process that has done the imports.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from typing import Any

from vlrl.compare.plan import Plan, check_plugins
from vlrl.compare.work import cell, start
from vlrl.config.model_folder import check_cached
from vlrl.services.parent import end_with_parent
from vlrl.trainer.plan import Plan as RunPlan

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}  # read when the libraries are loaded

PLUG_INS = (
    "vlrl.engine.",
    "vlrl.environments.",
    "vlrl.methods.",
    "vlrl.policy.",
    "vlrl_data.",
    "vlrl_rewards.",
)


def run_plan(
    plan: Plan, jobs: int, quiet: bool = False
) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]:
    """All cells, by preset and seed, and the numbers of the cold starts by seed.

    Every config is built before the first one runs. Raises what a run raises, with its preset and seed.
    """
    check(plan)
    plan.claim()
    results: dict[tuple[str, int], dict[str, Any]] = {}
    context = process_context()
    with ThreadPoolExecutor(
        min(jobs, len(plan.cells()))
    ) as pool:  # a thread waits for the process of its run
        begun = [pool.submit(_apart, context, start, plan, seed) for seed in range(plan.seeds)]
        starts = [future.result() for future in begun]
        futures = {
            pool.submit(_apart, context, cell, plan, preset, seed): (preset, seed)
            for preset, seed in plan.cells()
        }
        for future in as_completed(futures):
            preset, seed = futures[future]
            try:
                results[preset, seed] = future.result()
            except Exception as error:
                pool.shutdown(cancel_futures=True)
                raise RuntimeError(
                    f"{preset}, seed {seed}: {type(error).__name__}: {error} (see {plan.cell(preset, seed)})"
                ) from error
            if not quiet:
                sys.stderr.write(
                    f"[{len(results)}/{len(futures)}] {preset} seed {seed}: held-out "
                    f"{results[preset, seed]['final']:.3f}\n"
                )
    return {preset: [results[preset, seed] for seed in range(plan.seeds)] for preset in plan.presets}, starts


def check(plan: Plan) -> None:
    """Build every run's plug-ins once. Raises ConfigError."""
    weights = "" if plan.cold_steps else plan.pretrained
    check_cached(weights, "compare --model")
    if plan.cold_steps:
        check_plugins(RunPlan.of(plan.cold_config(0)), "cold start")
    for preset in plan.presets:
        check_plugins(RunPlan.of(plan.config(preset, 0, weights)), preset)


def process_context() -> Any:
    """How processes are started: forked from one that has imported `vlrl.compare.prepared` and the plug-ins
    that this process has, or else new ones that import everything again ("spawn").

    Forking a process is safe only where it has one thread and has not used a GPU. The libraries start threads
    at import where OMP_NUM_THREADS is not 1; it is set to 1 unless the environment says otherwise, since runs
    side by side share the cores.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    one_thread = os.environ["OMP_NUM_THREADS"] == "1" and os.environ.get("OPENBLAS_NUM_THREADS", "1") == "1"
    if not one_thread or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    checked = [
        name for name in sys.modules if name.startswith(PLUG_INS)
    ]  # building the plan's plug-ins has imported them here
    context.set_forkserver_preload(["vlrl.compare.prepared", *checked])
    return context


def _apart(context: Any, work: Callable[..., Any], *args: Any) -> Any:
    """`work(*args)` in a process of its own. Raises what it raises."""
    with ProcessPoolExecutor(1, context, initializer=_start) as process:
        return process.submit(work, *args).result()


def _start() -> None:
    sys.stdout = sys.stderr  # what libraries print is no part of the numbers
    end_with_parent()
