"""Every preset of configs/methods loads, builds and passes its own checks on a lab task."""

from __future__ import annotations

from pathlib import Path

import pytest
from task_kit import MODELS, OWN_TASKS, params

from vlrl.config import load
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session

METHODS = sorted(path.stem for path in (Path(__file__).parents[2] / "configs" / "methods").glob("*.yaml"))
TASK = ["base/rl", "models/tiny_text", "tasks/lab_arithmetic"]
PICTURES = ["base/rl", "models/tiny_qwen2_5_vl", "tasks/lab_digits"]
SEEING = {"papo", "papo_dapo", "svqa_r1", "video_r1", "vogue"}  # refused where there are no pictures


@pytest.mark.sweep
@pytest.mark.parametrize("method", params(METHODS))
def test_builds_and_says_where_it_comes_from(method):
    task = [*(PICTURES if method in SEEING else TASK), *OWN_TASKS.get(f"methods/{method}", ())]
    config = load([*task, f"methods/{method}"], MODELS.get(method, []))
    about = config.tree["about"]
    assert about["fidelity"] in ("code", "paper", "approximate") and about["paper"].startswith(
        ("arXiv:", "doi:")
    )
    assert about["fidelity"] != "approximate" or about.get("notes"), (
        "an approximation says what is not the paper's"
    )
    assert Session(Plan.of(config)).settings.steps >= 1


def test_a_map_can_drop_what_it_inherits():
    config = load(["base/rl", "base/lab", "models/tiny_text", "tasks/lab_arithmetic", "methods/grpo_kl"], [])
    assert sorted(config.phase("cold_start")["loss_terms"]) == ["nll"] and sorted(
        config.phase("rl")["loss_terms"]
    ) == ["kl"]
