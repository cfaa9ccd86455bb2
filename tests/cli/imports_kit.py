"""Runs the command line in a process of its own and tells which top-level modules it imported."""

import json
import os
import subprocess
import sys

HEAVY = {
    "torch",
    "transformers",
    "accelerate",
    "sklearn",
    "pandas",
    "deepspeed",
    "torchaudio",
    "vllm",
    "datasets",
    "peft",
}
CODE = """
import atexit, json, sys
told = sys.argv[1]
def tell():
    with open(told, "w") as file:
        json.dump(sorted({name.partition(".")[0] for name in sys.modules}), file)
atexit.register(tell)
sys.argv = ["vlrl", *sys.argv[2:]]
from vlrl.cli import main
main()
"""


def run(folder, told, *words):
    """(the finished process, its imported top-level modules) of `vlrl WORDS` in `folder`; `told` is a file
    for the list of modules."""
    command = [sys.executable, "-c", CODE, str(told), *map(str, words)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    return done, set(json.loads(told.read_text()))
