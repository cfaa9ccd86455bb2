"""Damages the files of a finished run at random and resumes it: `python scripts/fuzz_checkpoints.py --seconds
300 [--seed 0]`.

Every round flips a bit of, truncates, deletes or zeroes one to three files: of checkpoints, logs, summaries,
the config. The resumed run must end with the weights of the undisturbed one, name every checkpoint that it
left out, and log no step twice; where no checkpoint is intact it must refuse in one line. Prints each fault;
exit status 1 if there is one.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from vlrl.config import load
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Reward
from vlrl.services.files import read_jsonl
from vlrl.trainer.checkpoints import checkpoint
from vlrl.training import train
from vlrl.types import Rollout

WORDS = [
    "policy={name: text, tiny: {hidden: 16, layers: 1, heads: 2, kv_heads: 1, intermediate: 32}}",
    "data.train.sums={name: lab_arithmetic, count: 40}",
    "data.heldout.sums={name: lab_arithmetic, count: 2, split: heldout}",
    "rewards.any={name: fuzz_checksum}",
    "sampling={name: plain, max_tokens: 4}",
    "prompts_per_step=2",
    "group_size=2",
    "steps=5",
    "threads=1",
    "optimizer.lr=1e-2",
    "watch={checkpoint_every: 1, keep: 3, live: false, activity_steps: 0}",
]


@register("fuzz_checksum")
@dataclass(frozen=True, kw_only=True)
class FuzzChecksum(Reward):
    """A checksum of the tokens: it differs within a group, so that every step changes the weights. vlrl
    original (a test's own)."""

    def __call__(self, rollout: Rollout) -> float:
        return zlib.crc32(repr(rollout.ids).encode()) % 7 / 6


def damage(path: Path, kind: str, pick: random.Random) -> None:
    """Damage one file."""
    data = bytearray(path.read_bytes())
    if kind == "delete" or not data:
        path.unlink()
        return
    if kind == "flip":
        data[pick.randrange(len(data))] ^= 1 << pick.randrange(8)
    elif kind == "truncate":
        del data[pick.randrange(len(data)) :]
    else:
        start = pick.randrange(len(data))
        end = pick.randrange(start, len(data)) + 1
        data[start:end] = bytes(end - start)
    path.write_bytes(data)


def weights(run: Path) -> bytes:
    """The last checkpoint's weights."""
    return (checkpoint.folders(run)[-1] / "model.safetensors").read_bytes()


def fault_of(run: Path, whole: Path, hit: dict[str, str]) -> str:
    """Resume a damaged run; what is wrong with the outcome, or ""."""
    damaged = {Path(name).parts[1] for name in hit if name.startswith("checkpoints")}
    intact = [
        path.name
        for path in checkpoint.folders(run)
        if path.name not in damaged or not checkpoint.faults(path)
    ]
    try:
        train(load(["base/rl", "methods/grpo"], [*WORDS, f"output={run}"]), resume=True, live=False)
    except ConfigError as error:
        return (
            ""
            if not intact and "no checkpoint is left" in str(error) and "\n" not in str(error)
            else f"refused: {error}"
        )
    except Exception as error:  # any other exception is a finding
        return f"{type(error).__name__}: {error}"
    if not intact:
        return "went on without an intact checkpoint"
    said = " ".join(row.get("message", "") for row in read_jsonl(run / "events.jsonl"))
    missed = [name for name in damaged if name > intact[-1] and name not in said]
    steps = [row["step"] for row in read_jsonl(run / "metrics.jsonl", {"step": int})]
    lost = "metrics.jsonl" not in hit and steps != [
        row["step"] for row in read_jsonl(whole / "metrics.jsonl")
    ]
    findings = {
        f"not named: {missed}": missed,
        f"steps twice or out of order: {steps}": steps != sorted(set(steps)),
        f"steps lost: {steps}": lost,
        "other weights": weights(run) != weights(whole),
    }
    return "; ".join(text for text, found in findings.items() if found)


def main() -> int:
    """Fuzz for the given time; print the faults and return their number."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    pick, kinds, found = random.Random(options.seed), Counter[str](), 0
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        train(load(["base/rl", "methods/grpo"], [*WORDS, f"output={whole}"]), live=False)
        files = [path.relative_to(whole) for path in whole.rglob("*") if path.is_file()]
        end, rounds = time.time() + options.seconds, 0
        while time.time() < end:
            rounds += 1
            run = Path(place) / "run"
            shutil.copytree(whole, run)
            hit = {
                str(name): pick.choice(("flip", "truncate", "delete", "zero"))
                for name in pick.sample(files, pick.randint(1, 3))
            }
            for name, kind in hit.items():
                damage(run / name, kind, pick)
            kinds.update(hit.values())
            if fault := fault_of(run, whole, hit):
                found += 1
                print(f"round {rounds}, {hit}: {fault}", flush=True)
            shutil.rmtree(run)
    print(
        f"{rounds} rounds, {sum(kinds.values())} damaged files "
        f"({', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))}), {found} faults"
    )
    return found


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
