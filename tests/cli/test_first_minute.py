"""The first minute: what needs no torch imports none; a run imports only what it uses."""

import json
import os
import subprocess
import sys

import pytest
from imports_kit import HEAVY, run

SMALL = [
    "quickstart",
    "phases.cold_start.steps=1",
    "steps=1",
    "group_size=2",
    "prompts_per_step=2",
    "watch.activity_steps=0",
]


def rows_file(tmp_path, rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def own_rows(tmp_path, rows, reward="{name: math}"):
    spec = f"{{name: files, path: {rows_file(tmp_path, rows)}, max_bad: 0.0}}"
    return [
        "base/rl",
        "models/tiny_text",
        "methods/grpo",
        f"data.train.mine={spec}",
        f"rewards.mine={reward}",
        f"output={tmp_path / 'run'}",
    ]


GOOD = [{"id": f"r{n}", "question": f"{n} + 1?", "answer": str(n + 1)} for n in range(20)]


def held(tmp_path):
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "metrics.jsonl").write_text("{}\n")
    return ["train", "quickstart", f"output={tmp_path / 'held'}"]


CASES = {  # name: (words, exit code, what standard error says)
    "help": (lambda _: ["--help"], 0, ""),
    "help of train": (lambda _: ["train", "--help"], 0, ""),
    "list": (lambda _: ["list", "reward"], 0, ""),
    "show": (lambda _: ["show", "quickstart"], 0, ""),
    "holds a run": (held, 2, "already holds a run"),
    "misspelt config": (lambda _: ["train", "quickstrat"], 2, "quickstart"),
    "misspelt key": (lambda _: ["train", "quickstart", "step=3"], 2, "steps"),
    "misspelt loss": (lambda _: ["train", "quickstart", "policy_loss.name=ppo_clop"], 2, "ppo_clip"),
    "misspelt field of a loss": (lambda _: ["train", "quickstart", "policy_loss.hgh=0.3"], 2, "high"),
    "wrong type of a field": (lambda _: ["train", "quickstart", "advantage={name: grpo, scale: {a: 1}}"], 2,
        "advantage.scale"),
    "misspelt model family": (lambda _: ["train", "quickstart", "policy.name=qwen2_5_v"], 2, "qwen2_5_vl"),
    "missing file": (lambda _: ["train", "quickstart",
        "data.train.digits={name: files, path: nowhere.jsonl}"], 2, "nowhere.jsonl"),
    "missing media": (
        lambda tmp: ["train", *own_rows(tmp, [{**row, "image": "no.png"} for row in GOOD])], 2, "no.png"
    ),
    "missing answer": (lambda tmp: ["train", *own_rows(tmp, [{"question": "1 + 1?", "target": "2"}])], 2,
        "answer"),
    "unreadable gold": (
        lambda tmp: ["train", *own_rows(tmp, [{**row, "answer": "a cat"} for row in GOOD], "{name: iou}")], 2,
        "cannot read the answer"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_needs_no_torch_imports_none(name, tmp_path):
    words, code, said = CASES[name]
    done, modules = run(tmp_path, tmp_path / "modules.json", *words(tmp_path))
    assert done.returncode == code, done.stderr
    assert said in done.stderr and len(done.stderr.splitlines()) <= 3, done.stderr
    assert not modules & HEAVY


def test_a_run_says_what_it_loads_and_imports_no_more_than_it_uses(tmp_path):
    done, modules = run(tmp_path, tmp_path / "modules.json", "train", *SMALL, f"output={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("phase cold_start keeps")]
    assert lines[0].startswith("checked the config and 1797 rows")
    assert lines[1] == "loading torch and transformers" and lines[2].startswith("loading the model: ")
    assert not modules & {"sklearn", "pandas", "deepspeed", "torchaudio", "vllm", "librosa"}
    assert not [line for line in lines if "Warning" in line or "[WARNING]" in line], done.stderr


def test_a_trainer_in_python_is_made_without_torch(tmp_path):
    code = """
import sys
from vlrl import GRPOTrainer
def right(text, answer, **row): return float(text.strip() == answer)
rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(20)]
trainer = GRPOTrainer("tiny_text", [right, "math"], rows, args=dict(steps=3, output=sys.argv[1]))
assert trainer.config.tree["steps"] == 3
print(sorted({name.partition(".")[0] for name in sys.modules}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    assert not set(json.loads(done.stdout.replace("'", '"'))) & HEAVY


@pytest.mark.parametrize("words", [["list", "reward"], ["show", "quickstart"]])
def test_a_reader_that_closes_the_pipe_ends_a_command_quietly(words):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "vlrl", *words], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=300
    )
    os.close(writing)
    assert done.stderr == "" and done.returncode == 1
