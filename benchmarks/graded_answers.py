"""Answers with gold outcomes, to train and measure reward models on: what is asked, who answers, and which
steps of an answer are right. `TASKS` has the lab's tiny policy on sums of three digits, and SmolLM2 on the
same in words (experiments/laptop_three with a sum on each line).
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.teachers import QUIET
from vlrl.config import load
from vlrl.training import train

COLD, SAMPLED, LEARNED = 105, 48, 400
BASE = ["base/rl", "base/lab", "models/tiny_text", "methods/grpo"]
RULE = "rewards.rule={name: numeric, weight: %s, tasks: [sums]}"
ASKED = "{question}\n{answer}\nRight?"
TURNS = (  # SmolLM2's template without its system message, which is longer than a question
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SUM = re.compile(r"(\d+(?: \+ \d+)+) = (\d+)")
SHOTS = (("7 plus 2 plus 4", "7 + 2 = 9\n9 + 4 = 13"), ("9 plus 6 plus 1", "9 + 6 = 15\n15 + 1 = 16"))

Steps = list[tuple[str, float]]


def sums(folder: Path) -> None:
    """Two files of questions: those to train on, and the held-out fifth of all sums."""
    for split, count in (("train", 2000), ("heldout", 100)):
        rng = random.Random(split)
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            a, b, c = (rng.randint(0, 9) for _ in range(3))
            if (random.Random(f"split {a} {b} {c}").random() < 0.2) != (split == "heldout"):
                continue
            target = f"{a}+{b}={a + b}\n{a + b}+{c}={a + b + c}\n<answer>{a + b + c}</answer>"
            row = {"question": f"{a}+{b}+{c}=", "answer": a + b + c, "target": target, "task": "sums"}
            rows.append({"id": f"{split}-{len(rows)}", **row})
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def right_steps(question: str, text: str) -> Steps:
    """The lines of a solution up to the first wrong one, each with whether it is right: the very lines that
    are wanted, in their order."""
    a, b, c = map(int, question.rstrip("=").split("+"))
    wanted = [f"{a}+{b}={a + b}", f"{a + b}+{c}={a + b + c}", f"<answer>{a + b + c}</answer>"]
    found = []
    for place, line in enumerate(lines_of(text)):
        right = place < len(wanted) and line == wanted[place]
        found.append((line, float(right)))
        if not right:
            break
    return found


def right_sums(question: str, text: str) -> Steps:
    """The lines of a solution up to the first wrong one, each with whether it is right: a true sum of numbers
    that are still to add, which it replaces."""
    left, found = [int(number) for number in re.findall(r"\d+", question)], []
    for line in lines_of(text):
        match = SUM.fullmatch(line)
        terms = [int(number) for number in match[1].split(" + ")] if match else []
        right = match is not None and sum(terms) == int(match[2]) and not Counter(terms) - Counter(left)
        found.append((line, float(right)))
        if not right:
            break
        left = [*(Counter(left) - Counter(terms)).elements(), sum(terms)]
    return found


def lines_of(text: str) -> list[str]:
    """The lines of a text that are not empty."""
    return [line.strip() for line in text.split("\n") if line.strip()]


def run(folder: Path, configs: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    """The summary of a run, made where it is missing."""
    if not (folder / "summary.json").exists():
        begun = time.process_time()
        train(load(list(configs), [*words, f"output={folder}"]), overwrite=folder.exists())
        (folder / "cpu_seconds").write_text(str(time.process_time() - begun))
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def questions(root: Path, split: str = "train") -> list[str]:
    """Overrides: the sums."""
    return [
        f"data.train.sums={{name: files, path: {root / f'{split}.jsonl'}}}",
        f"data.heldout.sums={{name: files, path: {root / 'heldout.jsonl'}}}",
        "sampling.max_tokens=40",
        *QUIET,
    ]


def rl(model: str, seed: int, steps: int) -> list[str]:
    """Overrides: a phase of reinforcement learning from a model."""
    words = [f"seed={seed}", f"policy.model={model}", "policy.tiny=null", f"phases.rl.steps={steps}"]
    words += ["phases.rl.prompts_per_step=32", "phases.rl.sampling.temperature=1.0", "max_refill_rounds=1"]
    return [*words, "group_size=4", "phases.rl.optimizer.lr=3e-4"]


def lab_cold(root: Path, steps: int) -> str:
    """The lab's policy after a cold start on demonstrations. Returns its folder."""
    words = [*questions(root), RULE % 1.0, "seed=9", f"phases.cold_start.steps={steps}", "phases.rl=null"]
    return str(run(root / "cold", BASE, words)["checkpoint"])


def lab_answers(folder: Path, model: str, root: Path, split: str) -> None:
    """A run that samples the lab's questions and learns nothing."""
    words = [*questions(root, split), *rl(model, 7, SAMPLED), RULE % 1.0, "watch.rollouts_every=1"]
    words += ["optimizer.lr=1e-12", "phases.rl.optimizer.lr=1e-12", "phases.cold_start=null"]
    run(folder, BASE, words)


def real_words(seed: int, steps: int, count: int, split: str) -> list[str]:
    """Overrides: `steps` steps of SmolLM2 on `count` questions of a split, without held-out scores."""
    shots = [{"question": f"What is {asked}?", "answer": answer} for asked, answer in SHOTS]
    source = f"{{three: {{name: gen_easy, ask: [three], count: {count}, split: {split}}}}}"
    words = [f"data.train={source}", "data.heldout=null", f"prompt_template.shots={json.dumps(shots)}"]
    return [*words, f"seed={seed}", f"steps={steps}", "threads=1", *QUIET]


def real_cold(root: Path, steps: int) -> str:
    """SmolLM2 after steps of reinforcement learning, so that about half of its answers are right."""
    words = [*real_words(9, steps, 2000, "train"), "sampling.temperature=1.0"]
    return str(run(root / "cold", ["experiments/laptop_three"], words)["checkpoint"])


def real_answers(folder: Path, model: str, root: Path, split: str) -> None:
    """A run that samples SmolLM2's questions and learns nothing: where no answer is paid no group is trained
    on."""
    steps, count, size = {"train": (8, 32, 8), "heldout": (5, 32, 4)}[split]
    words = [*real_words(7, steps, 800, split), f"policy.model={model}", "outcome=number"]
    words += [
        f"prompts_per_step={count}",
        f"group_size={size}",
        "rewards.number.weight=0",
        "optimizer.lr=1e-12",
        "policy.dtype=bfloat16",
    ]
    run(folder, ["experiments/laptop_three"], [*words, "sampling.temperature=1.0", "watch.rollouts_every=1"])


@dataclass(frozen=True)
class Task:
    """Who answers what, and how models of the answers are trained.

    Attributes:
        cold: (folder, steps) to the folder of the policy's model.
        answers: samples the questions of a split into a folder.
        steps: the labelled steps of (question, answer).
        trained: configs of the models' runs, `words` their overrides.
        prompt: the judge's template.
        start, learned: steps of the policy before it is asked, and of its models.
    """

    cold: Callable[[Path, int], str]
    answers: Callable[[Path, str, Path, str], None]
    steps: Callable[[str, str], Steps]
    trained: tuple[str, ...]
    words: tuple[str, ...]
    prompt: str
    start: int
    learned: int


TASKS = {
    "lab": Task(
        lab_cold,
        lab_answers,
        right_steps,
        ("base/rl", "models/tiny_text"),
        ("policy.tiny=null", "optimizer.lr=1e-3", "prompts_per_step=32"),
        "{question}\n{answer}",
        COLD,
        LEARNED,
    ),
    "smollm2": Task(
        real_cold,
        real_answers,
        right_sums,
        ("base/rl", "models/smollm2_135m"),
        (
            "optimizer={lr: 2.0e-4, warmup: 5, schedule: cosine}",
            "prompts_per_step=16",
            "policy.attn=eager",  # the fastest for so short sequences on a CPU
            f"policy.chat_template={json.dumps(TURNS)}",
            "policy.dtype=bfloat16",  # matrix products at several times the speed where the CPU has them
        ),
        ASKED,
        3,
        80,
    ),
}


def sampled(task: Task, folder: Path, model: str, root: Path, split: str) -> list[dict[str, Any]]:
    """Answers of a model to the questions of a split: question, text, whether it is right, gold."""
    task.answers(folder, model, root, split)
    found = []
    for file in sorted((folder / "rollouts").glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            question = row["prompt"].rpartition("user: ")[2].strip()
            answer = {"text": row["completion"], "right": row["correct"], "gold": str(row["answer"])}
            found.append({"question": question} | answer)
    return found
