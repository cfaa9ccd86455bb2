"""Does a teacher lift a student faster than GRPO alone? Sums and differences of the lab, from the same cold
starts: `python -m benchmarks.teachers FOLDER [one] [two] [spans] [seeds=0,1,2] [divergence=reverse]`.

    one     a teacher of sums
    two     a teacher of sums and one of differences, by task
    spans   the teacher of sums for a student with another tokenizer (300 tokens; the teacher's has 512)

Prints the held-out accuracy by step, the mean of three seeds with its range, and CPU-seconds a step.
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

SEEDS, LEARNED = (0, 1, 2), 300
STEPS = {"one": 60, "two": 80, "spans": 24}
CURVE = {"one": 6, "two": 3, "spans": 3}  # held-out scores in a run, after the first
COLD = {"one": 40, "two": 80, "spans": 40}  # of demonstrations: two tasks need twice as many as one
BASE = ["base/rl", "base/lab", "models/tiny_text", "methods/grpo"]
QUIET = ["watch.rollouts_every=0", "watch.checkpoint_every=0", "watch.live=false", "watch.activity_steps=0"]
SIGNS = {"plus": "+", "minus": "-"}


def rows(tasks: Sequence[str], heldout: int) -> list[str]:
    """Overrides: these tasks' rows and rewards."""
    sources = ", ".join(
        f"{task}: {{name: lab_arithmetic, task: {task}, operations: ['{SIGNS[task]}'], count: 2000, "
        f"heldout: {heldout}}}"
        for task in tasks
    )
    listed = ", ".join(tasks)
    return [
        f"data.train={{{sources}}}",
        f"rewards.arithmetic={{name: numeric, weight: 1.0, tasks: [{listed}]}}",
        f"rewards.format={{name: tag_format, tags: [answer], weight: 0.1, tasks: [{listed}]}}",
        "sampling.max_tokens=20",
    ]


def taught(folder: Path, tasks: Sequence[str], steps: int, seed: int, more: Sequence[str] = ()) -> str:
    """A model after a cold start on demonstrations, trained where it is missing. Returns its folder."""
    if not (folder / "summary.json").exists():
        words = [*rows(tasks, 40), *QUIET, f"seed={seed}", f"output={folder}", "phases.rl=null"]
        train(load(BASE, [*words, f"phases.cold_start.steps={steps}", *more]), overwrite=folder.exists())
    return str(json.loads((folder / "summary.json").read_text())["checkpoint"])


def trained(
    folder: Path, tasks: Sequence[str], model: str, seed: int, steps: int, more: Sequence[str]
) -> list[dict]:
    """The log of an RL run from `model`, made where it is missing."""
    if not (folder / "summary.json").exists():
        words = [*rows(tasks, 40), *QUIET, f"seed={seed}", f"output={folder}", "phases.cold_start=null"]
        words += [f"policy.model={model}", "policy.tiny=null", f"phases.rl.steps={steps}"]
        words += ["phases.rl.prompts_per_step=32", "group_size=4", "phases.rl.sampling.temperature=1.0"]
        words += ["max_refill_rounds=1", *more]
        begun = time.process_time()
        train(load(BASE, words), overwrite=folder.exists())
        (folder / "cpu_seconds").write_text(str(time.process_time() - begun))
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def shown(folder: Path, tasks: Sequence[str], arms: dict[str, list[str]], models: dict[int, str]) -> None:
    """Train all arms from the same models, and print their curves."""
    steps = STEPS[folder.name]
    often = [f"watch.heldout_every={steps // CURVE[folder.name]}"]
    for arm, more in arms.items():
        curves: dict[int, list[float]] = {}
        seconds: list[float] = []
        rewards: dict[str, list[float]] = {}
        for seed in models:
            out = folder / arm / f"seed-{seed}"
            log = trained(out, tasks, models[seed], seed, steps, [*often, *more])
            seconds.append(float((out / "cpu_seconds").read_text()) / steps)
            for name, part in (("first 4 steps", log[:4]), ("last 4", log[-4:]), ("all", log)):
                rewards.setdefault(name, []).append(
                    statistics.mean(line["reward/arithmetic"] for line in part)
                )
            held = json.loads((out / "summary.json").read_text())["heldout"]["start"]
            curves.setdefault(0, []).append(statistics.mean(held.values()))
            for number, line in enumerate(log, start=1):
                found = [value for key, value in line.items() if key.startswith("heldout/")]
                if found:
                    curves.setdefault(number, []).append(statistics.mean(found))
        held_out = "; ".join(f"{number}: {ranged(values)}" for number, values in curves.items())
        sampled = "; ".join(f"{name} {ranged(values)}" for name, values in rewards.items())
        sampled += f", by seed {', '.join(f'{value:.3f}' for value in rewards['all'])}"
        cost = statistics.mean(seconds)
        print(
            f"{folder.name} {arm}: held out {held_out}; sampled {sampled}; {cost:.2f} CPU-s a step",
            flush=True,
        )


def ranged(values: Sequence[float]) -> str:
    """The mean, with the range."""
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def term(teacher: str, tokens: str, more: str = "") -> list[str]:
    """Overrides: the loss term."""
    return [f"loss_terms.teacher={{name: distill, tokens: {tokens}, {teacher}{more}}}"]


def main() -> None:
    """Run the named parts."""
    root, names, given = cli.folder_and_words(__doc__, "part", STEPS, ("seeds", "divergence"))
    chosen = names or list(STEPS)
    seeds = cli.numbers("seeds", given["seeds"]) if "seeds" in given else SEEDS
    cli.known("divergence", [given.get("divergence", "reverse")], ("reverse", "forward", "jsd"))
    more = f", divergence: {given.get('divergence', 'reverse')}"
    plus = taught(root / "teacher_plus", ["plus"], LEARNED, 10)
    if "one" in chosen:
        models = {s: taught(root / f"cold_plus_{s}", ["plus"], COLD["one"], s) for s in seeds}
        arms = {"grpo": [], "full": term(f"teacher: {{model: {plus}}}", "full", more)}
        shown(root / "one", ["plus"], arms, models)
    if "two" in chosen:
        minus = taught(root / "teacher_minus", ["minus"], LEARNED, 11)
        both = f"teachers: {{plus: {{model: {plus}}}, minus: {{model: {minus}}}}}"
        models = {s: taught(root / f"cold_both_{s}", ["plus", "minus"], COLD["two"], s) for s in seeds}
        arms = {"grpo": [], "two_teachers": term(both, "full", more)}
        shown(root / "two", ["plus", "minus"], arms, models)
    if "spans" in chosen:
        small = ["policy.tiny.vocabulary=300"]
        models = {s: taught(root / f"cold_spans_{s}", ["plus"], COLD["spans"], s, small) for s in seeds}
        other = f"teacher: {{policy: {{name: text, model: {plus}}}}}"
        arms = {"grpo": [], "top_k": term(other, "top_k", ", k: 32" + more)}
        shown(root / "spans", ["plus"], arms, models)


if __name__ == "__main__":
    main()
