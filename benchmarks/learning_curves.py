"""Do the model families learn from pictures alike? Tiny random models, the quickstart's digits, the same
steps: `python -m benchmarks.learning_curves FOLDER [engine=hf|vllm] [seeds=0,1,2] [FAMILY ...]`.

A family is a model of `configs/models/tiny_*.yaml`. Runs that FOLDER holds are not made again. Prints the
held-out accuracy by step and seed, the share of right samples, and CPU-seconds. With `engine=vllm` the models
have heads of 32, the least that vLLM's CPU build takes; `engine=hf32` samples from the same ones with `hf`.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import cli
from vlrl.config import load
from vlrl.training import train

FAMILIES = ("qwen2_5_vl", "qwen3_5", "qwen3_vl_moe")
STEPS, EVERY, ENDS = 60, 20, 10  # of GRPO; steps between held-out scores; steps whose samples are averaged
WIDE = ["policy.tiny.hidden=128"]
ENGINES = {
    "hf": [],
    "hf32": WIDE,
    "vllm": [*WIDE, "engine={name: vllm, max_model_len: 512, options: {max_num_seqs: 128}}"],
}
QUIET = ["watch.rollouts_every=0", "watch.checkpoint_every=0", "watch.live=false", "watch.activity_steps=0"]


def learned(folder: Path, family: str, engine: str, seed: int) -> Path:
    """The folder of a run, made where it is missing."""
    out = folder / engine / family / f"seed-{seed}"
    if not (out / "cpu_seconds").exists():
        words = [*QUIET, *ENGINES[engine], f"seed={seed}", f"policy.tiny.seed={seed}", f"output={out}"]
        words += [f"phases.rl.steps={STEPS}", f"watch.heldout_every={EVERY}"]
        begun = time.process_time()
        train(load(["quickstart", f"models/tiny_{family}"], words), live=False, overwrite=out.exists())
        (out / "cpu_seconds").write_text(str(time.process_time() - begun))
    return out


def row(out: Path) -> dict[str, float]:
    """The columns of a run."""
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rl = [step for step in steps if step["phase"] == "rl"]
    held = json.loads((out / "summary.json").read_text())["heldout"]["start"]
    columns = {"held out, start": statistics.mean(held.values())}
    for number, step in enumerate(rl, start=1):
        if "heldout/digits" in step:
            columns[f"step {number}"] = step["heldout/digits"]
    for name, part in ((f"samples, first {ENDS}", rl[:ENDS]), (f"last {ENDS}", rl[-ENDS:])):
        columns[name] = statistics.mean(step["reward/digits"] for step in part)
    gaps = [step["engine/logp_diff"] for step in rl if "engine/logp_diff" in step]
    return columns | {
        "largest gap of log-probs, nats": max(gaps, default=0.0),
        "CPU-s": float((out / "cpu_seconds").read_text()),
    }


def table(folder: Path, families: Sequence[str], engine: str, seeds: Sequence[int]) -> None:
    """Train what is missing and print a line for each run, and the means of each family."""
    told = False
    for family in families:
        found = []
        for seed in seeds:
            found.append(row(learned(folder, family, engine, seed)))
            if not told:
                print(f"| family | seed | {' | '.join(found[0])} |\n| {'--- | ' * (len(found[0]) + 2)}")
                told = True
            print(f"| `{family}` | {seed} | {cells(found[-1])} |", flush=True)
        means = {key: statistics.mean(one[key] for one in found) for key in found[0]}
        print(f"| `{family}` | mean | {cells(means)} |", flush=True)


def cells(columns: dict[str, float]) -> str:
    """The numbers of a line."""
    return " | ".join(
        f"{value:.0f}" if key == "CPU-s" else f"{value:.1e}" if "gap" in key else f"{value:.3f}"
        for key, value in columns.items()
    )


def main() -> None:
    """Run what the command line names."""
    families = [name.removeprefix("tiny_") for name in cli.configs("models") if name.startswith("tiny_")]
    folder, names, given = cli.folder_and_words(__doc__, "family", families, ("engine", "seeds"))
    engine = given.get("engine", "hf")
    cli.known("engine", [engine], ENGINES)
    table(folder, names or list(FAMILIES), engine, cli.numbers("seeds", given.get("seeds", "0,1,2")))


if __name__ == "__main__":
    main()
