"""A run of seconds on the tiny text policy, in this process or one of its own, and what the tests compare of
it."""

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from vlrl.config import load

ROOT = Path(__file__).parents[2]
TINY = "policy={name: text, tiny: {hidden: 16, layers: 1, heads: 2, kv_heads: 1, intermediate: 32}}"
WORDS = [
    TINY,
    "threads=1",
    "data.train.sums={name: lab_arithmetic, count: 40}",
    "data.heldout.sums={name: lab_arithmetic, count: 4, split: heldout}",
    f"plugins=[{ROOT / 'tests' / 'distributed' / 'hash_reward.py'}]",
    "rewards.any={name: hash_of_tokens}",  # it differs within a group, so that every step changes the weights
    "sampling={name: plain, max_tokens: 4}",
    "prompts_per_step=2",
    "group_size=2",
    "steps=6",
    "optimizer.lr=1e-2",
    "watch={checkpoint_every: 2, heldout_every: 2, keep: 0, rollouts_every: 3, live: false}",
]
CONFIGS = ["base/rl", "methods/grpo"]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "DS_ACCELERATOR": "cpu",
    "TOKENIZERS_PARALLELISM": "false",
}


def config(output, *more):
    return load(CONFIGS, [*WORDS, f"output={output}", *more])


def start(output, *more, words=(), python=sys.executable, **options):
    """`vlrl train` in a process of its own; `words` are its options, such as --resume."""
    command = [python, "-m", "vlrl", "train", *CONFIGS, *WORDS, f"output={output}", *more, *words]
    kept = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "cwd": ROOT,
        "env": ENVIRONMENT,
        # a suite in the background ignores it, and a run that inherits that does too
        "preexec_fn": partial(signal.signal, signal.SIGINT, signal.default_int_handler),
    }
    return subprocess.Popen(command, **(kept | options))


def steps_of(output):
    """The steps in the log of a run that may still be going on."""
    path = Path(output) / "metrics.jsonl"
    return path.read_text().count("\n") if path.is_file() else 0


def copy_of(run, place):
    shutil.copytree(run, place)
    return place


def verify_equal(one, other):
    """Both runs logged the same and ended with the same weights, and no event is there twice."""
    assert (Path(one) / "metrics.jsonl").read_text() == (Path(other) / "metrics.jsonl").read_text()
    last = sorted((Path(one) / "checkpoints").glob("step-*"))[-1].name
    files = [Path(folder) / "checkpoints" / last / "model.safetensors" for folder in (one, other)]
    assert files[0].read_bytes() == files[1].read_bytes()
