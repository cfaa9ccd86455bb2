"""A policy trained by a scalar reward model, by a process reward model, by a small judge, and by the rule,
from the same cold start: `python -m benchmarks.reward_models FOLDER [rule] [scalar] [process] [judge] [few]
[steps] [lr=3e-4] [cold=105] [learned=400]`.

The task: sums of three digits, an addition on each line. The models are trained from answers that the cold
policy sampled to the training questions, from the policy's own weights: the scalar one on pairs of a right
and a wrong one, the process one on the steps up to the first wrong one, the judge, without the reference, to
write its verdict on one.

    rule      the rule alone
    scalar    the scalar model, squashed to 0..1        few     the same, trained on 40 pairs
    process   the least probability of a step           steps   the same, trained on 40 solutions
    judge     the judge's P(yes)

Prints how each model ranks answers of the cold policy to held-out questions; then, by arm, the held-out
accuracy by the rule, what model and rule paid for the sampled answers, and what `judge_sentinel` noticed: the
mean of three seeds with its range.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq

from benchmarks.teachers import QUIET, ranged
from vlrl.beside.judge import Question, open_judge
from vlrl.beside.process import open_process_reward_model
from vlrl.beside.reward_model import open_reward_model
from vlrl.config import load
from vlrl.plugins.registry import build
from vlrl.policy import Family, Policy
from vlrl.training import train
from vlrl.types import Prompt, Row

SEEDS, STEPS, COLD, SAMPLED, LEARNED, FEW = (0, 1, 2), 40, 105, 48, 400, 40
BASE = ["base/rl", "base/lab", "models/tiny_text", "methods/grpo"]
ADDITION = re.compile(r"(\d+)\+(\d+)=(\d+)")
RULE = "rewards.rule={name: numeric, weight: %s, tasks: [sums]}"
MODELS = {
    "scalar": "{name: reward_model, squash: sigmoid, model: %s, weight: 1.0}",
    "process": "{name: step_reward_model, model: %s, weight: 1.0}",
}
HEADS = {
    "scalar": [
        "rollout={name: given_responses}",
        "trainable={name: reward_head, labels: 1}",
        "loss_terms={own: {name: bradley_terry}}",
    ],
    "process": [
        "rollout={name: given_steps}",
        "trainable={name: reward_head, labels: 2}",
        "loss_terms={own: {name: step_labels}}",
    ],
    "judge": ["rollout={name: expert}", "group_size=1", "loss_terms={own: {name: nll}}"],
}
ARMS = {"rule": ""} | {kind: kind for kind in HEADS} | {"few": "scalar", "steps": "process"}
PROMPT = """form: choice
version: 1
choices: ["no", "yes"]
fence: []
user: |-
  {question}
  {answer}
"""
SENTINEL = "callbacks.sentinel={name: judge_sentinel, every: 4, window: 8, gold: rule}"


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


def right_steps(question: str, text: str) -> list[tuple[str, float]]:
    """The lines of a solution up to the first wrong one, each with whether it is right."""
    a, b, c = map(int, question.rstrip("=").split("+"))
    wanted = [f"{a}+{b}={a + b}", f"{a + b}+{c}={a + b + c}", f"<answer>{a + b + c}</answer>"]
    found = []
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    for place, line in enumerate(lines):
        right = place < len(wanted) and line == wanted[place]
        found.append((line, float(right)))
        if not right:
            break
    return found


def run(folder: Path, words: Sequence[str], *, gone: str) -> dict[str, Any]:
    """The summary of a run without phase `gone`, made where it is missing."""
    if not (folder / "summary.json").exists():
        begun = time.process_time()
        train(load(BASE, [*words, f"output={folder}", f"phases.{gone}=null"]), overwrite=folder.exists())
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


def sampled(folder: Path, model: str, root: Path, split: str) -> list[dict[str, Any]]:
    """Answers of a model to the questions of a split, with what the rule says: question, text, right."""
    words = [*questions(root, split), *rl(model, 7, SAMPLED), RULE % 1.0, "watch.rollouts_every=1"]
    run(folder, [*words, "optimizer.lr=1e-12", "phases.rl.optimizer.lr=1e-12"], gone="cold_start")
    found = []
    for file in sorted((folder / "rollouts").glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            question = row["prompt"].removeprefix("user: ").strip()
            found.append({"question": question, "text": row["completion"], "right": row["correct"]})
    return found


def records(kind: str, answers: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Training records of a reward model: pairs of a right and a wrong answer to a question, or steps."""
    by_question: dict[str, dict[bool, list[str]]] = {}
    for answer in answers:
        by_question.setdefault(answer["question"], {True: [], False: []})[answer["right"]].append(
            answer["text"]
        )
        if kind == "process" and (steps := right_steps(answer["question"], answer["text"])):
            scored = [{"step": text, "score": label} for text, label in steps]
            yield {"question": answer["question"], "steps": scored}
        if kind == "judge":
            yield {
                "question": answer["question"],
                "meta": {"response": answer["text"], "label": answer["right"]},
            }
    if kind == "scalar":
        for question, known in by_question.items():
            for chosen, rejected in zip(known[True], known[False], strict=False):
                yield {"prompt": question, "chosen": chosen, "rejected": rejected}


def prompt_file(folder: Path) -> Path:
    """The judge's template, beside its records."""
    file = folder / "judge.yaml"
    file.write_text(PROMPT)
    return file


def judge_of(model: str) -> dict[str, Any]:
    """The config of the judge in a checkpoint's folder."""
    template = next(parent for parent in Path(model).parents if (parent / "judge.yaml").exists())
    engine = {"name": "own_model", "policy": {"name": "text", "model": model}}
    asked = {"template": str(template / "judge.yaml"), "logprobs": True, "max_tokens": 16}
    return {"model": "small@1", "engine": engine, **asked}


def reward_of(kind: str, model: str) -> str:
    """The reward that pays by a model."""
    if kind == "judge":
        return json.dumps({"name": "judged_score", "judge": judge_of(model), "weight": 1.0})
    return MODELS[kind] % model


def verdicts(model: str, answers: Sequence[dict[str, Any]]) -> list[float]:
    """P(yes) of a judge for each answer; -1 where it gives no verdict."""
    own = Policy(build(Family, {"name": "text", "model": model}))
    output = Path(model).parent / "asked"
    run = SimpleNamespace(policy=own, output=output, seed=0, rank=0, ranks=1, params_sharded=False)
    judge = open_judge(judge_of(model), cast(Any, run), "judge", "correctness")
    asked = [Question((("question", a["question"]), ("answer", a["text"]))) for a in answers]
    return [-1.0 if said.value is None else said.value for said in judge.ask(asked)]


def learned(
    folder: Path, kind: str, model: str, answers: Sequence[dict[str, Any]], few: bool, steps: int = LEARNED
) -> str:
    """A reward model, trained where it is missing. Returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "records.jsonl"
    made = list(records(kind, answers))
    random.Random(0).shuffle(made)
    made = made[:FEW] if few else made
    file.write_text("".join(json.dumps({"id": str(n), **row}) + "\n" for n, row in enumerate(made)))
    words = [
        f"data.train.given={{name: files, path: {file}, answers: optional}}",
        *HEADS[kind],
        *([f"select={{judge: {{name: judge_rows, template: {prompt_file(folder)}}}}}"] * (kind == "judge")),
        "policy_loss={name: zero_loss}",
        f"policy.model={model}",
        "policy.tiny=null",
        "threads=1",
        "optimizer.lr=1e-3",
        "prompts_per_step=32",
        f"steps={steps}",
        f"output={folder / 'run'}",
        *QUIET,
    ]
    if not (folder / "run" / "summary.json").exists():
        train(load(["base/rl", "models/tiny_text"], words), overwrite=(folder / "run").exists())
    return str(json.loads((folder / "run" / "summary.json").read_text())["checkpoint"])


def ranked(kind: str, model: str, answers: Sequence[dict[str, Any]]) -> float:
    """The share of pairs of a right and a wrong answer to a question that a reward model ranks right."""
    if kind == "judge":
        scores = verdicts(model, answers)
    elif kind == "scalar":
        opened = open_reward_model(model)
        prompts = [
            Prompt(Row("x", a["question"]), ({"role": "user", "content": a["question"]},)) for a in answers
        ]
        scores = opened.scores([(prompt, a["text"]) for prompt, a in zip(prompts, answers, strict=True)])
    else:
        process = open_process_reward_model(model, "\n")
        render = process.tokenizer.apply_chat_template
        solutions = [
            (
                render(
                    [{"role": "user", "content": a["question"]}], tokenize=False, add_generation_prompt=True
                ),
                [line.strip() for line in a["text"].split("\n") if line.strip()],
            )
            for a in answers
        ]
        scores = [min(values, default=-1.0) for values in process.scores(solutions)]
    known: dict[str, list[tuple[bool, float]]] = {}
    for answer, score in zip(answers, scores, strict=True):
        known.setdefault(answer["question"], []).append((answer["right"], score))
    won = [
        float(a > b)
        for several in known.values()
        for right, a in several
        for other, b in several
        if right and not other
    ]
    return statistics.mean(won)


def shown(arm: str, runs: Sequence[Path]) -> None:
    """Print a line of an arm's three runs."""
    held: dict[str, list[float]] = {"before": [], "after": []}
    paid: dict[str, list[float]] = {}
    noticed = []
    for folder in runs:
        summary = json.loads((folder / "summary.json").read_text())
        held["before"].append(statistics.mean(summary["heldout"]["start"].values()))
        held["after"].append(statistics.mean(summary["heldout"]["final"].values()))
        log = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for slot in ("rule", "model"):
            for name, part in (("first 4", log[:4]), ("last 4", log[-4:])):
                values = [line[f"reward/{slot}"] for line in part if f"reward/{slot}" in line]
                if values:
                    paid.setdefault(f"{slot}, {name} steps", []).append(statistics.mean(values))
        lines = (folder / "events.jsonl").read_text().splitlines()
        hacked = [event for event in map(json.loads, lines) if event["kind"] == "judge_hacked"]
        noticed.append("; ".join(f"step {event['step']}: {event['what']}" for event in hacked) or "nothing")
    cost = statistics.mean(float((folder / "cpu_seconds").read_text()) / STEPS for folder in runs)
    print(f"{arm}: held out " + ", ".join(f"{name} {ranged(values)}" for name, values in held.items()))
    print("  paid: " + "; ".join(f"{name} {ranged(values)}" for name, values in paid.items()))
    if ARMS[arm]:
        print(f"  the sentinel noticed: {' | '.join(noticed)}")
    print(f"  {cost:.2f} CPU-s a step", flush=True)


def main() -> None:
    """Run the named arms."""
    folder, *words = sys.argv[1:]
    chosen = [word for word in words if "=" not in word]
    given = dict(word.split("=") for word in words if "=" in word)
    rate = [f"phases.rl.optimizer.lr={given['lr']}"] if "lr" in given else []
    root = Path(folder).resolve()
    root.mkdir(parents=True, exist_ok=True)
    sums(root)
    cold = [*questions(root), RULE % 1.0, "seed=9", f"phases.cold_start.steps={given.get('cold', COLD)}"]
    model = str(run(root / "cold", cold, gone="rl")["checkpoint"])
    answers = sampled(root / "answers", model, root, "train")
    unseen = sampled(root / "unseen", model, root, "heldout")
    share = statistics.mean(float(answer["right"]) for answer in answers)
    print(f"{len(answers)} answers of the cold policy, {share:.3f} right", flush=True)
    for arm in chosen or ARMS:
        kind, more = ARMS[arm], [RULE % 1.0]
        if kind:
            few, steps = arm in ("few", "steps"), int(given.get("learned", LEARNED))
            own = learned(root / f"model_{arm}", kind, model, answers, few, steps)
            print(f"{arm}: {ranked(kind, own, unseen):.3f} of held-out pairs ranked right", flush=True)
            reward = f"rewards.model={reward_of(kind, own)}"
            more = [RULE % 0.0, reward, SENTINEL, "outcome=rule"]  # held-out accuracy is the rule's
        runs = [root / arm / f"seed-{seed}" for seed in SEEDS]
        for seed, out in zip(SEEDS, runs, strict=True):
            run(out, [*questions(root), *rl(model, seed, STEPS), *rate, *more], gone="cold_start")
        shown(arm, runs)


if __name__ == "__main__":
    main()
