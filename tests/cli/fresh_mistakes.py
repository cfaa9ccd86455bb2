"""Seventy mistakes of newcomers: name -> (the words, what the one line says).

`python tests/cli/fresh_mistakes.py` runs them all and prints exit code, CPU seconds and lines of each."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

Q = ["train", "quickstart", "output=out"]
T = ["train", "base/rl", "models/tiny_text", "methods/grpo", "output=out"]
MINE = "data.train.mine={name: files, path: rows.jsonl}"
MATH = "rewards.mine={name: math}"
EVAL = ["eval", "--suite", "mathvista", "--data", "fixture"]


def _tool(name: str) -> list[str]:
    task = ["plugins=[tools.py]", "rollout={name: multi_turn, max_turns: 2}", MINE, MATH]
    return [*T, *task, f"environment={{name: {name}}}"]


def _reward(name: str) -> list[str]:
    return [*T, MINE, "plugins=[rewards.py]", f"rewards.mine={{name: {name}}}"]


MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    # another run than was asked
    "no space in a map": ([*Q, "policy={name:x,model:foo}"], ["name:x", "space after the colon"]),
    "a colon for an equals sign": ([*Q, "policy=model:/nowhere"], ["no family named 'model:/nowhere'"]),
    "rewards emptied": ([*Q, "rewards={}"], ["rewards: {} changes nothing", "null"]),
    "a reward emptied": ([*Q, "rewards.digits={}"], ["rewards.digits=null removes it"]),
    "the optimizer emptied": ([*Q, "optimizer={}"], ["optimizer: {} changes nothing"]),
    "a misspelt removal": ([*Q, "rewards.fromat=null"], ["no 'rewards.fromat' to remove", "'format'"]),
    "a misspelt removal at the top": ([*Q, "rewrads=null"], ["no 'rewrads' to remove", "'rewards'"]),
    "sampling as a scalar": ([*Q, "sampling=0.7"], ["sampling", "expected a plug-in"]),
    "sampling as a word": ([*Q, "sampling=temperature:0.5"], ["no sampling_policy named"]),
    "watch as a word": ([*Q, "watch=heldout_every:5"], ["watch: expected a mapping"]),
    "tiny as a number": ([*Q, "policy.tiny=64"], ["policy.tiny: expected a mapping"]),
    "a list for the data": ([*Q, "data.train=[a]"], ["data.train: expected named plug-ins"]),
    "yes for a number": ([*Q, "group_size=yes"], ["group_size: true is not valid", "expected a number"]),
    "a resumed run with another rate": (["train", "held/config.yaml", "--resume", "optimizer.lr=1"],
        ["cannot go on with another optimizer.lr: 0.001 -> 1"]),
    "a resumed run with another seed": (["train", "held/config.yaml", "--resume", "seed=7"],
        ["cannot go on with another seed: 0 -> 7"]),
    "a resumed run with a reward turned round": (
        ["train", "held/config.yaml", "--resume", "rewards.mine.weight=-1"],
        ["cannot go on with another rewards.mine.weight"]),
    # what gives no signal
    "one rollout": ([*Q, "group_size=1"], ["group_size: 1", "2 or more"]),
    "no temperature": ([*Q, "sampling.temperature=0"], ["sampling.temperature: 0", "above 0"]),
    "no tokens": ([*Q, "sampling.max_tokens=0"], ["max_tokens"]),
    "a negative temperature": ([*Q, "sampling.temperature=-1"], ["temperature"]),
    "top_p of percent": ([*Q, "sampling.top_p=90"], ["top_p"]),
    "an outcome that is no reward": ([*Q, "outcome=accuracy"], ["outcome: no reward slot 'accuracy'"]),
    # models
    "a hub model without a network": ([*T, MINE, MATH, "policy={name: text, model: no-such-owner/none}"],
        ["no-such-owner/none", "hub"]),
    "a vision family on text alone": ([*T, MINE, MATH, "policy={name: qwen2_5_vl, model: textmodel}"],
        ["textmodel", "lacks the image processor"]),
    "family text on a vision folder": ([*T, MINE, MATH, "policy={name: text, model: visionmodel}"],
        ["visionmodel", "qwen2_5_vl"]),
    "another family's folder": ([*T, MINE, MATH, "policy={name: smolvlm, model: visionmodel}"],
        ["visionmodel", "qwen2_5_vl"]),
    "a GGUF file": ([*T, MINE, MATH, "policy={name: text, model: m.gguf}"], ["m.gguf", "folder"]),
    "a model never fetched": ([*T, MINE, MATH, "policy={name: text, model: 'fetched:smollm2'}"],
        ["not in the cache", "vlrl fetch smollm2"]),
    "a model that nobody fetches": ([*T, MINE, MATH, "policy={name: text, model: 'fetched:llama'}"],
        ["names no model that `vlrl fetch` converts"]),
    "pictures for a text model": ([*T, MATH, "data.train.mine={name: files, path: pictures.jsonl}"],
        ["reads no images"]),
    "LoRA of a misspelt part": ([*T, MINE, MATH, "trainable={name: lora, rank: 8}"],
        ["trainable.rank: unknown field"]),
    # engines
    "a head size that vLLM has not": ([*Q, "engine=vllm"], ["engine", "heads of"]),
    "a server that is not there": ([*T, MINE, MATH, "engine={name: openai, url: 'http://127.0.0.1:9/v1'}"],
        ["engine"]),
    "an engine's misspelt field": ([*Q, "engine={name: hf, max_batch: 3}"], ["max_batch", "unknown field"]),
    # data
    "prompts that are too long": ([*T, MINE, MATH, "max_prompt_tokens=4"], ["max_prompt_tokens", "4"]),
    "an empty file": ([*T, MATH, "data.train.mine={name: files, path: empty.jsonl}"], ["empty.jsonl"]),
    "broken JSON": ([*T, MATH, "data.train.mine={name: files, path: broken.jsonl}"], ["broken.jsonl", "2"]),
    "a picture as a data file": ([*T, MATH, "data.train.mine={name: files, path: cat.png}"], ["cat.png"]),
    "answers that are missing": ([*T, MATH, "data.train.mine={name: files, path: unanswered.jsonl}"],
        ["answer"]),
    "choices without the answer": ([*T, "rewards.mine={name: mcq}",
        "data.train.mine={name: files, path: choices.jsonl}"], ["choices", "'Q'"]),
    "a nameless field": ([*T, MATH, "data.train.mine={name: files, path: rows.jsonl, fields: {'': answer}}"],
        ["fields"]),
    "a field that is not there": ([*T, MATH,
        "data.train.mine={name: files, path: rows.jsonl, fields: {prompt: question}}"], ["prompt"]),
    "a source that nobody has": ([*T, MATH, "data.train.mine={name: huggingface, path: x/y}"],
        ["no source named 'huggingface'"]),
    "a hub data set without a network": ([*T, MATH, "data.train.mine={name: hub, path: no-such-owner/none}"],
        ["no-such-owner/none"]),
    "a share beyond one": ([*T, MINE, MATH, "error_limit=5"], ["error_limit", "between 0 and 1"]),
    "the held-out rows are the training rows' file twice": ([*T, MINE, MATH,
        "data.heldout.mine={name: files, path: nothere.jsonl}"], ["nothere.jsonl"]),
    # rewards
    "a reward that returns nothing": (_reward("nothing"), ["returned None", "rewards.py:"]),
    "a reward that returns a text": (_reward("a_text"), ["returned '1.0'", "rewards.py:"]),
    "a reward that returns NaN": (_reward("not_a_number"), ["returned nan", "rewards.py:"]),
    "a reward that raises": (_reward("raises"), ["KeyError: 'score'", "rewards.py:"]),
    "a reward with a field too many": ([*Q, "rewards.digits.threshold=1"], ["unknown field", "threshold"]),
    "a reward without its model": ([*T, MINE, "rewards.mine={name: judged}"], ["judge"]),
    "no reward": ([*T, MINE], ["rewards: none is set"]),
    "a task that no reward scores": ([*T, MINE, "rewards.mine={name: math, tasks: [geometry]}"],
        ["is scored by no reward"]),
    # tools
    "a tool without types": (_tool("untyped"), ["untyped", "has no type"]),
    "a tool that raises": (_tool("raising"), ["raising", "RuntimeError: broken"]),
    "an environment without turns": ([*T, MINE, MATH, "environment={name: calculator}"], ["environment"]),
    # TRL's words
    "three of TRL's words": ([*Q, "learning_rate=1e-5", "num_generations=4", "per_device_train_batch_size=8"],
        ["'optimizer.lr'", "'group_size'", "divide by num_generations"]),
    "TRL's word as an option": ([*Q, "--num_train_epochs", "3"], ["--num_train_epochs"]),
    # commands
    "a check of a misspelt preset": (["check", "methods/grpoo"],
        ["no config 'methods/grpoo'", "'methods/grpo'"]),
    "a check of no steps": (["check", "quickstart", "--steps", "0"], ["--steps: expected 1 or more"]),
    "a plan for a misspelt GPU": (["plan", "quickstart", "--gpu", "h1000"], ["h1000"]),
    "a verification of a misspelt kind": (["verify", "--attack", "mathh"], ["'math'"]),
    "an evaluation of a text model on pictures": ([*EVAL, "--model", "tiny_text", "-o", "ev"],
        ["reads no images"]),
    "an evaluation with a misspelt profile": (["eval", "score", "answers.jsonl", "-s", "mathvista",
        "-p", "offical", "--data", "fixture"], ["no profile 'offical'", "'official'"]),
    "an evaluation of a hub model without a network": ([*EVAL, "--model", "no-such-owner/none", "-o", "ev"],
        ["no-such-owner/none", "hub"]),
    "a report of a file": (["report", "rows.jsonl"], ["rows.jsonl"]),
    "a suite that is none": (["eval", "suites", "mathvist"], ["no suite named 'mathvist'", "'mathvista'"]),
    "an export without a run": (["export", "thesis", "--to", "x"], ["thesis"]),
    "more ranks than prompts": ([*Q, "--processes", "2", "--sharding", "zero9"], ["zero9", "zero"]),
    "a new reward with a strange name": (["new", "reward", "my reward!"], ["my reward!"]),
    "the output is a file": ([*T, MINE, MATH, "output=rows.jsonl"], ["rows.jsonl"]),
    "statistics of nothing": (["data", "stats", "nowhere.csv"], ["nowhere.csv"]),
    "a model fetched by a wrong name": (["fetch", "llama"], ["llama", "smollm2"]),
}  # fmt: skip

LIMIT = 200  # seconds of one command
REWARDS = """
from dataclasses import dataclass
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward


@register("nothing")
@dataclass(frozen=True, kw_only=True)
class Nothing(Reward):
    def __call__(self, rollout):
        return None


@register("a_text")
@dataclass(frozen=True, kw_only=True)
class Text(Reward):
    def __call__(self, rollout):
        return "1.0"


@register("not_a_number")
@dataclass(frozen=True, kw_only=True)
class NotANumber(Reward):
    def __call__(self, rollout):
        return float("nan")


@register("raises")
@dataclass(frozen=True, kw_only=True)
class Raises(Reward):
    def __call__(self, rollout):
        return rollout.info["score"]
"""
TOOLS = """
from dataclasses import dataclass
from vlrl.environments.tools import ToolEnvironment
from vlrl.plugins.registry import register


@register("untyped")
@dataclass(frozen=True, kw_only=True)
class Untyped(ToolEnvironment):
    def functions(self):
        return [self.untyped]

    def untyped(self, town):
        return 1


@register("raising")
@dataclass(frozen=True, kw_only=True)
class Raising(ToolEnvironment):
    def functions(self):
        return [self.raising]

    def raising(self, town: str) -> int:
        raise RuntimeError("broken")
"""


def write_files(here: Path) -> None:
    """What the mistakes need in their folder: data, plug-ins, folders of models, a run that was stopped."""
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(20)]

    def lines(name: str, found: list) -> None:
        (here / name).write_text("".join(json.dumps(row) + "\n" for row in found))

    lines("rows.jsonl", rows)
    lines("pictures.jsonl", [{**row, "image": "cat.png"} for row in rows])
    lines("unanswered.jsonl", [{"question": row["question"]} for row in rows])
    lines("choices.jsonl", [{"question": "Which?", "choices": ["red", "green"], "answer": "Q"}] * 20)
    lines("answers.jsonl", [{"id": "1", "response": "2"}])
    config = {"vision": {"model_type": "qwen2_5_vl"}, "text": {"model_type": "qwen2"}}
    texts = {
        "empty.jsonl": "", "broken.jsonl": '{"question": "1?", "answer": "1"}\n{"question": \n', 
        "m.gguf": "GGUF",
        "thesis/thesis.tex": "x", "rewards.py": REWARDS, "tools.py": TOOLS,
        **{f"{kind}model/config.json": json.dumps(of) for kind, of in config.items()},
        **{f"{kind}model/tokenizer.json": "{}" for kind in config},
        "visionmodel/preprocessor_config.json": "{}",
        "held/metrics.jsonl": '{"step": 1, "phase": "main"}\n',
    }  # fmt: skip
    for name, text in texts.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    header = json.dumps({}).encode()
    for kind in config:
        (here / f"{kind}model" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    from PIL import Image

    Image.new("RGB", (32, 32)).save(here / "cat.png")
    _write_run(here)


def _write_run(here: Path) -> None:
    """A run with one checkpoint, as far as a command looks before it loads the model."""
    from vlrl.config import load
    from vlrl.services.files import sha256
    from vlrl.trainer.checkpoints.files import FORMAT, MANIFEST, STATE, digest_of

    words = [MINE, MATH, f"output={here / 'held'}", "optimizer.lr=1e-3", "plugins=null"]
    dumped = load(["base/rl", "models/tiny_text", "methods/grpo"], words).dump()
    folder = here / "held" / "checkpoints" / "step-000001"
    (folder / "trainer").mkdir(parents=True)
    for file in (here / "held" / "config.yaml", folder / "trainer" / "config.yaml"):
        file.write_text(dumped)
    (folder / STATE).write_text(json.dumps({"format": FORMAT, "step": 1, "phase": "main"}))
    files = {
        path.relative_to(folder).as_posix(): [path.stat().st_size, sha256(path)]
        for path in folder.rglob("*")
        if path.is_file()
    }
    (folder / MANIFEST).write_text(json.dumps({"files": files, "sha256": digest_of(files)}))


def run(words: list[str], here: Path) -> tuple[int, str, str, float]:
    """(exit code, standard output, standard error, CPU seconds) of `vlrl WORDS`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "vlrl", *words], capture_output=True, text=True, cwd=here, timeout=LIMIT,
            env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, "", f"still running after {LIMIT} s", float(LIMIT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return done.returncode, done.stdout, done.stderr, spent


def verdict(name: str, here: Path) -> tuple[bool, str]:
    """(whether a mistake ends in one line with its fix, and starts no run; what it said)."""
    words, said = MISTAKES[name]
    code, out, err, spent = run(words, here)
    lines = err.strip().splitlines()
    last = lines[-1] if lines else ""
    fine = code == 2 and not out and 1 <= len(lines) <= 3 and last.startswith("vlrl: ") and len(last) < 660
    fine = fine and all(part in last for part in said)
    return fine and spent <= 2.0, f"{code} {spent:.2f} s, {len(lines)} lines: {last[:330]}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        asked = sys.argv[1:] or list(MISTAKES)
        good = 0
        for name in asked:
            fine, text = verdict(name, Path(folder))
            good += fine
            print("ok  " if fine else "BAD ", f"{name}: {text}", flush=True)
    print(f"{good} of {len(asked)} end in one line within 2 s of CPU")
