"""What `vlrl plan` predicts against what a step really needs: peak memory of eight configs on a CPU.

    python -m benchmarks.plan                     # all cases, a table
    python -m benchmarks.plan lora zero3 --json

Measured is the highest number of bytes in tensors at a time, as torch's allocator counts them
(benchmarks/memory.py), over building the model and two optimizer steps on given completions. Each case is a
process of its own; `zero2`, `zero3` and `fsdp2` take two, and the first is measured. DeepSpeed's reduce
bucket is set to 1 million numbers instead of its default of 500 million, in the run and in the prediction.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import cli
from benchmarks.memory import Load, learn_steps, longest_group, open_run, peak_bytes

BUCKET = 1_000_000
LAYOUTS_OF_DEEPSPEED = re.compile(r"zero\d")
TEXT = "hidden: 256, layers: 6, heads: 8, kv_heads: 4, intermediate: 704, rows: 4096"
SEES = f"{TEXT}, vision_hidden: 256, vision_layers: 6, vision_heads: 8"


@dataclass(frozen=True)
class Case:
    """A config's words, the groups of a rank, and how it is launched."""

    policy: str
    load: Load
    words: tuple[str, ...] = ()
    layout: str = "single"
    ranks: int = 1

    def config(self, folder: str) -> list[str]:
        """The words of the run."""
        base = [
            "base/rl",
            "tasks/lab_arithmetic",
            "methods/grpo",
            "threads=1",
            "watch.activity_steps=0",
            "micro_batch_tokens=600",
        ]
        return [*base, f"output={folder}", f"policy={self.policy}", *self.words]


CASES = {
    "full": Case(f"{{name: text, tiny: {{{TEXT}}}}}", Load()),
    "full_bf16": Case(f"{{name: text, dtype: bfloat16, tiny: {{{TEXT}}}}}", Load()),
    "lora_bf16": Case(
        f"{{name: text, dtype: bfloat16, tiny: {{{TEXT}}}}}", Load(), words=("trainable={name: lora, r: 16}",)
    ),
    "checkpointing": Case(f"{{name: text, checkpointing: true, tiny: {{{TEXT}}}}}", Load()),
    "zero2": Case(f"{{name: text, tiny: {{{TEXT}}}}}", Load(), layout="zero2", ranks=2),
    "zero3": Case(f"{{name: text, tiny: {{{TEXT}}}}}", Load(), layout="zero3", ranks=2),
    "zero3_bf16": Case(f"{{name: text, dtype: bfloat16, tiny: {{{TEXT}}}}}", Load(), layout="zero3", ranks=2),
    "fsdp2_bf16": Case(f"{{name: text, dtype: bfloat16, tiny: {{{TEXT}}}}}", Load(), layout="fsdp2", ranks=2),
    "pictures": Case(f"{{name: qwen2_5_vl, tiny: {{{SEES}}}}}", Load(side=336, words=16)),
    "video": Case(f"{{name: qwen2_5_vl, tiny: {{{SEES}}}}}", Load(side=168, frames=8, words=16)),
    "long_text": Case(
        f"{{name: text, tiny: {{{TEXT}}}}}",
        Load(words=1400, completion=48),
        words=("max_prompt_tokens=8192",),
    ),
}


def predicted(case: Case, micro: dict[str, Any]) -> dict[str, Any]:
    """`vlrl plan`'s memory of a case whose longest micro-batch is `micro`."""
    from vlrl.cli.words import load_words
    from vlrl.plan.layouts import LAYOUTS
    from vlrl.plan.memory import MicroBatch, rank_memory
    from vlrl.plan.setup import plugins
    from vlrl.plan.shape import shape_of

    family, trainable, _ = plugins(load_words(case.config("unused")).tree)
    layout = LAYOUTS[case.layout]
    if layout.reduce_bucket:
        layout = replace(layout, reduce_bucket=BUCKET)
    memory = rank_memory(
        shape_of(family, trainable), MicroBatch(**micro), layout, case.ranks, family.checkpointing,
        family.chunk,
        optimizer="adamw", micro_batches=case.load.prompts, on_gpu=False,
    )  # fmt: skip
    return asdict(memory)


def work(case: Case, out: Path) -> None:
    """Run a case in this process and write {"peak", "micro"} (first rank only).

    DeepSpeed's shared-memory kernels for CPUs are left out: they take minutes to compile, and gloo reduces
    the same tensors.
    """
    if LAYOUTS_OF_DEEPSPEED.fullmatch(case.layout):
        vars(importlib.import_module("deepspeed.comm.torch"))["build_shm_op"] = lambda: None
    with tempfile.TemporaryDirectory() as folder:

        def steps() -> Any:
            run = open_run(case.config(folder))
            learn_steps(run, case.load)
            return run

        run, peak = peak_bytes(steps)
        if run.accelerator.process_index == 0:
            out.write_text(
                json.dumps({"peak": peak, "micro": longest_group(run, case.load.groups(0))}), encoding="utf-8"
            )
        if case.ranks > 1:
            run.accelerator.wait_for_everyone()
    sys.stdout.flush()
    os._exit(0)  # the threads of a process group may keep the interpreter from ending


def launched(case: Case, folder: Path, words: list[str]) -> list[str]:
    """The command that starts a case's processes."""
    if case.ranks == 1:
        return [sys.executable, "-m", *words]
    from vlrl.trainer.ranks.launch import Launch

    settings = Launch(case.ranks, case.layout).settings()
    settings["use_cpu"] = True
    if "deepspeed_config" in settings:
        options = json.loads(
            Path(settings["deepspeed_config"]["deepspeed_config_file"]).read_text(encoding="utf-8")
        )
        options["zero_optimization"]["reduce_bucket_size"] = BUCKET
        (folder / "deepspeed.json").write_text(json.dumps(options), encoding="utf-8")
        settings["deepspeed_config"]["deepspeed_config_file"] = str(folder / "deepspeed.json")
    (folder / "launch.yaml").write_text(json.dumps(settings), encoding="utf-8")
    return [
        sys.executable,
        "-m",
        "vlrl.trainer.ranks.launch",
        "--config_file",
        str(folder / "launch.yaml"),
        "--main_process_port",
        "0",
        "-m",
        *words,
    ]


def measure(name: str) -> dict[str, Any]:
    """{"measured", "predicted", "ratio", "when", "micro"} of a case, in bytes."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        command = launched(
            CASES[name],
            folder,
            ["benchmarks.plan", "--worker", name, "--out", str(folder / "out.json")],
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if not (folder / "out.json").is_file():
            raise RuntimeError(f"{name}: no figures; {done.stderr[-2000:]}")
        seen = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    plan = predicted(CASES[name], seen["micro"])
    return {
        "measured": seen["peak"],
        "predicted": plan["peak"],
        "ratio": plan["peak"] / seen["peak"],
        "when": plan["when"],
        "micro": seen["micro"],
    }


def main(
    cases: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(CASES)}; all by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    worker: Annotated[str, typer.Option(hidden=True)] = "",
    out: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure and print."""
    cli.known("case", [*(cases or ()), *([worker] if worker else ())], CASES)
    if worker:
        work(CASES[worker], Path(out))
    results = {}
    if not as_json:
        typer.echo(
            "| case | tokens | measured MB | predicted MB | predicted / measured | highest in "
            "|\n|---|---|---|---|---|---|"
        )
    for name in cases or list(CASES):
        r = results[name] = measure(name)
        if not as_json:
            mb = 2**20
            typer.echo(
                f"| `{name}` | {r['micro']['length']} | {r['measured'] / mb:.1f} | "
                f"{r['predicted'] / mb:.1f} | {r['ratio']:.3f} | {r['when']} |"
            )
    if as_json:
        typer.echo(json.dumps(results))


if __name__ == "__main__":
    cli.run(main, __doc__)
