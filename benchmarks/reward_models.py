"""A policy trained by a scalar reward model, by a process reward model, by a small judge, and by the rule,
from the same cold start: `python -m benchmarks.reward_models FOLDER [rule] [scalar] [process] [judge] [few]
[steps] [referee] [lr=3e-4] [cold=105] [learned=400] [models=0,1,2] [pays=rule]
[task=smollm2]`.

The task: sums of three digits, an addition on each line. The models are trained from answers that the cold
policy sampled to the training questions, from the policy's own weights: the scalar one on pairs of a right
and a wrong one, the process one on the steps up to the first wrong one, the judge, without the reference, to
write its verdict on one. `models` are the seeds of their training; with `pays=rule` the models are watched,
and the rule pays.

    rule      the rule alone
    scalar    the scalar model, squashed to 0..1        few     the same, trained on 40 pairs
    process   the least probability of a step           steps   the same, trained on 40 solutions
    judge     the judge's P(yes)                    referee the same of a judge that is shown the reference

Prints how each model ranks answers of the cold policy to held-out questions, with the 95% interval of a
bootstrap over sums: all pairs of a right and a wrong one, those that differ in their numbers alone, and
the steps (and pairs of steps) or verdicts that it gets right. Then, by arm, the held-out accuracy by the
rule, what model and rule paid for the sampled answers, and what `judge_sentinel` noticed: the mean of
three seeds with its range.

`task=smollm2`: SmolLM2-135M-Instruct (`vlrl fetch smollm2`) after `cold` steps of experiments/laptop_three, a
sum on each line. Its models are trained and measured, and pay no policy: they do not see the examples that
its prompt begins with.
"""

from __future__ import annotations

import json
import random
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from benchmarks import cli
from benchmarks.graded_answers import BASE, RULE, TASKS, Task, lines_of, questions, rl, run, sampled, sums
from benchmarks.teachers import QUIET, ranged
from vlrl.beside.judge import Question, open_judge
from vlrl.beside.process import open_process_reward_model
from vlrl.beside.reward_model import open_reward_model
from vlrl.plugins.registry import build
from vlrl.policy import Family, Policy
from vlrl.types import Prompt, Row

SEEDS, STEPS, FEW = (0, 1, 2), 40, 40
MODELS = {
    "scalar": "{name: reward_model, squash: sigmoid, model: %s, weight: %s}",
    "process": "{name: step_reward_model, model: %s, weight: %s}",
}
JUDGES = {"judge": "judged_score", "referee": "judged_answer"}
WRITES = ["rollout={name: expert}", "group_size=1", "loss_terms={own: {name: nll}}"]
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
    "judge": WRITES,
    "referee": WRITES,
}
SETTINGS = ("lr", "cold", "learned", "models", "pays", "task")
DRAWS = 1000  # of the bootstrap
ARMS = {"rule": ""} | {kind: kind for kind in HEADS} | {"few": "scalar", "steps": "process"}
REFERENCE = "\n{reference}"  # behind the judge's template
PROMPT = {"form": "choice", "version": 1, "choices": ["no", "yes"], "fence": []}
SENTINEL = "callbacks.sentinel={name: judge_sentinel, every: 4, window: 8, gold: rule}"


def records(task: Task, kind: str, answers: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Training records of a reward model: pairs of a right and a wrong answer to a question, or steps."""
    by_question: dict[str, dict[bool, list[str]]] = {}
    for answer in answers:
        by_question.setdefault(answer["question"], {True: [], False: []})[answer["right"]].append(
            answer["text"]
        )
        if kind == "process" and (steps := task.steps(answer["question"], answer["text"])):
            scored = [{"step": text, "score": label} for text, label in steps]
            yield {"question": answer["question"], "steps": scored}
        if kind in JUDGES:
            labelled = {"response": answer["text"], "label": answer["right"]}
            yield {"question": answer["question"], "answer": answer["gold"], "meta": labelled}
    if kind == "scalar":
        for question, known in by_question.items():
            for chosen, rejected in zip(known[True], known[False], strict=False):
                yield {"prompt": question, "chosen": chosen, "rejected": rejected}


def prompt_file(folder: Path, text: str) -> Path:
    """The judge's template, beside its records."""
    file = folder / "judge.yaml"
    file.write_text(json.dumps(PROMPT | {"user": text}))
    return file


def judge_of(model: str) -> dict[str, Any]:
    """The config of the judge in a checkpoint's folder."""
    template = next(parent for parent in Path(model).parents if (parent / "judge.yaml").exists())
    engine = {"name": "own_model", "policy": {"name": "text", "model": model}}
    asked = {"template": str(template / "judge.yaml"), "logprobs": True, "max_tokens": 16}
    return {"model": "small@1", "engine": engine, **asked}


def reward_of(kind: str, model: str, weight: float) -> str:
    """The reward that pays by a model."""
    if kind in JUDGES:
        return json.dumps({"name": JUDGES[kind], "judge": judge_of(model), "weight": weight})
    return MODELS[kind] % (model, weight)


def verdicts(model: str, answers: Sequence[dict[str, Any]]) -> list[float]:
    """P(yes) of a judge for each answer; -1 where it gives no verdict."""
    own = Policy(build(Family, {"name": "text", "model": model}))
    output = Path(model).parent / "asked"
    run = SimpleNamespace(policy=own, output=output, seed=0, rank=0, ranks=1, params_sharded=False)
    judge = open_judge(judge_of(model), cast(Any, run), "judge", "correctness")
    known = {"question": "question", "answer": "text", "reference": "gold"}
    names = judge.template.fields
    asked = [Question(tuple((name, answer[known[name]]) for name in names)) for answer in answers]
    return [-1.0 if said.value is None else said.value for said in judge.ask(asked)]


def learned(
    task: Task,
    folder: Path,
    kind: str,
    model: str,
    answers: Sequence[dict[str, Any]],
    few: bool,
    more: list[str],
) -> str:
    """A reward model, trained where it is missing. Returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file, template = (
        folder / "records.jsonl",
        prompt_file(folder, task.prompt + REFERENCE * (kind == "referee")),
    )
    made = list(records(task, kind, answers))
    random.Random(0).shuffle(made)
    made = made[:FEW] if few else made
    file.write_text("".join(json.dumps({"id": str(n), **row}) + "\n" for n, row in enumerate(made)))
    words = [
        f"data.train.given={{name: files, path: {file}, answers: optional}}",
        *HEADS[kind],
        *([f"select={{judge: {{name: judge_rows, template: {template}}}}}"] * (kind in JUDGES)),
        "policy_loss={name: zero_loss}",
        f"policy.model={model}",
        "threads=1",
        *task.words,
        *QUIET,
        *more,
    ]
    return str(run(folder / "run", task.trained, words)["checkpoint"])


def scored(kind: str, model: str, answers: Sequence[dict[str, Any]]) -> tuple[list[float], list[list[float]]]:
    """What a model says of each answer, and of each of its steps (of a process model)."""
    if kind in JUDGES:
        return verdicts(model, answers), []
    messages = [({"role": "user", "content": answer["question"]},) for answer in answers]
    if kind == "scalar":
        prompts = [Prompt(Row("x", a["question"]), m) for a, m in zip(answers, messages, strict=True)]
        asked = [(prompt, answer["text"]) for prompt, answer in zip(prompts, answers, strict=True)]
        return open_reward_model(model).scores(asked), []
    process = open_process_reward_model(model, "\n")
    render = process.tokenizer.apply_chat_template
    said = process.scores(
        [
            (render(list(m), tokenize=False, add_generation_prompt=True), lines_of(answer["text"]))
            for answer, m in zip(answers, messages, strict=True)
        ]
    )
    return [min(values, default=-1.0) for values in said], said


Clusters = dict[str, list[float]]  # by question: 1 where the model is right, 0 where it is not


def pairs_won(answers: Sequence[dict[str, Any]], scores: Sequence[float], alike: bool) -> Clusters:
    """The pairs of a right and a wrong answer to a question that are ranked right; `alike`: only those whose
    texts differ in their numbers alone."""
    known: dict[str, list[tuple[dict[str, Any], float]]] = {}
    for answer, score in zip(answers, scores, strict=True):
        known.setdefault(answer["question"], []).append((answer, score))
    return {
        question: [
            float(a > b)
            for right, a in several
            for wrong, b in several
            if right["right"] and not wrong["right"] and (not alike or form(right) == form(wrong))
        ]
        for question, several in known.items()
    }


def form(answer: dict[str, Any]) -> str:
    """An answer with n for every number."""
    return re.sub(r"\d+", "n", answer["text"])


def verdicts_right(
    task: Task,
    kind: str,
    answers: Sequence[dict[str, Any]],
    scores: Sequence[float],
    steps: list[list[float]],
) -> tuple[Clusters, Clusters]:
    """Where a process model's steps (up to the first wrong one) or a judge's verdicts are right, and where
    they are to be yes."""
    found, wanted = Clusters(), Clusters()
    for place, answer in enumerate(answers):
        labels, said = [float(answer["right"])], [scores[place] - 0.5]
        if kind == "process":
            labels = [label for _, label in task.steps(answer["question"], answer["text"])]
            said = steps[place][: len(labels)]
        right = [float((value > 0) == (label > 0.5)) for value, label in zip(said, labels, strict=True)]
        found.setdefault(answer["question"], []).extend(right)
        wanted.setdefault(answer["question"], []).extend(labels)
    return found, wanted


def steps_won(task: Task, answers: Sequence[dict[str, Any]], steps: list[list[float]]) -> Clusters:
    """The pairs of a right and a wrong step, at the same place of two answers to a question, that are ranked
    right: at the same place, because later steps are wrong more often."""
    found = Clusters()
    known: dict[tuple[str, int], dict[bool, list[float]]] = {}
    for answer, said in zip(answers, steps, strict=True):
        labelled = task.steps(answer["question"], answer["text"])
        for place, (value, (_, label)) in enumerate(zip(said, labelled, strict=False)):
            own = known.setdefault((answer["question"], place), {True: [], False: []})
            own[label > 0.5].append(value)
    for (question, _), own in known.items():
        found.setdefault(question, []).extend(float(a > b) for a in own[True] for b in own[False])
    return found


def interval(clusters: Clusters) -> str:
    """The mean over all values, its 95% interval by a bootstrap over sums, and how many values. Questions for
    the same terms in another order are one sum: what a model knows of one it knows of the others."""
    by_sum = Clusters()
    for question, values in clusters.items():
        by_sum.setdefault(" ".join(sorted(re.findall(r"\d+", question))) or question, []).extend(values)
    known = [values for values in by_sum.values() if values]
    if not known:
        return "none"
    rng = random.Random(0)
    draws = sorted(pooled(rng.choices(known, k=len(known))) for _ in range(DRAWS))
    low, high = draws[DRAWS // 40], draws[-DRAWS // 40 - 1]
    return f"{pooled(known):.3f} ({low:.3f} to {high:.3f}, n {sum(map(len, known))})"


def pooled(clusters: Sequence[Sequence[float]]) -> float:
    """The mean over all values of some clusters."""
    return sum(map(sum, clusters)) / sum(map(len, clusters))


def measured(task: Task, arm: str, model: str, unseen: Sequence[dict[str, Any]]) -> None:
    """Print how a model ranks and judges answers to held-out questions."""
    kind = ARMS[arm]
    scores, steps = scored(kind, model, unseen)
    every, alike = (interval(pairs_won(unseen, scores, only)) for only in (False, True))
    text = f"{arm}: held-out pairs ranked right {every}; alike but for their numbers {alike}"
    if kind != "scalar":
        right, wanted = verdicts_right(task, kind, unseen, scores, steps)
        what = "steps" if kind == "process" else "verdicts"
        text += f"; {what} right {interval(right)}, to be called right {pooled(list(wanted.values())):.3f}"
    if kind == "process":
        text += f"; pairs of steps ranked right {interval(steps_won(task, unseen, steps))}"
    print(text, flush=True)


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
    root, names, given = cli.folder_and_words(__doc__, "arm", ARMS, SETTINGS)
    for setting, choices in (("task", TASKS), ("pays", ("rule", "model"))):
        cli.known(setting, [given[setting]] if setting in given else (), choices)
    seeds = cli.numbers("models", given.get("models", "0"))
    cold, learnt = (cli.number(name, given[name]) if name in given else None for name in ("cold", "learned"))
    task, watched = TASKS[given.get("task", "lab")], given.get("pays") == "rule"
    rate = [f"phases.rl.optimizer.lr={cli.above_zero('lr', given['lr'])}"] if "lr" in given else []
    root.mkdir(parents=True, exist_ok=True)
    sums(root)
    model = task.cold(root, task.start if cold is None else cold)
    answers = sampled(task, root / "answers", model, root, "train")
    unseen = sampled(task, root / "unseen", model, root, "heldout")
    share = statistics.mean(float(answer["right"]) for answer in answers)
    print(f"{len(answers)} answers of the cold policy, {share:.3f} right", flush=True)
    for arm in names or ARMS:
        kind, more = ARMS[arm], [RULE % 1.0]
        if kind:
            few = arm in ("few", "steps")
            owns = []
            for seed in seeds:
                once = [f"seed={seed}", f"steps={task.learned if learnt is None else learnt}"]
                owns.append(learned(task, root / f"model_{arm}_{seed}", kind, model, answers, few, once))
                measured(task, arm, owns[-1], unseen)
            reward = f"rewards.model={reward_of(kind, owns[0], float(not watched))}"
            more = [
                RULE % float(watched),
                reward,
                SENTINEL,
                "outcome=rule",
            ]  # held-out accuracy is the rule's
        if task is not TASKS["lab"]:
            continue
        runs = [root / (arm + "_watched" * watched) / f"seed-{seed}" for seed in SEEDS]
        for seed, out in zip(SEEDS, runs, strict=True):
            run(
                out, BASE, [*questions(root), *rl(model, seed, STEPS), *rate, *more, "phases.cold_start=null"]
            )
        shown(arm, runs)


if __name__ == "__main__":
    main()
