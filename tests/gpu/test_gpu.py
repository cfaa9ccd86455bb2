"""The checks of `benchmarks/gpu_checks.py` on a CUDA device (`pytest -m gpu`); what of them runs on a CPU;
how the command ends without a GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_checks import (
    CHECKS,
    Found,
    Missing,
    bfloat16,
    disagreement,
    flex_attention,
    group_of,
    largest_difference,
    random_policy,
)
from benchmarks.true_shapes import picture_prompt

ROOT = Path(__file__).parents[2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", CHECKS)
def test_a_check_holds_on_a_gpu(name: str) -> None:
    try:
        found = CHECKS[name]()
    except Missing as missing:
        pytest.skip(f"needs {missing}")
    assert found.holds, found


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without a CUDA device")
def test_without_a_gpu_the_command_ends_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "packed"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(
        "benchmarks.gpu: needs a CUDA device; this torch was built without CUDA"
        if torch.version.cuda is None
        else "benchmarks.gpu: needs"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without a CUDA device")
def test_make_test_gpu_ends_in_one_line_before_anything_is_installed() -> None:
    # the suite may itself run within make, whose MAKEFLAGS and MAKELEVEL make this one print the folders it
    # enters
    done = subprocess.run(
        ["make", "--no-print-directory", "test-gpu", "VENV=/nonexistent"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert done.stdout.strip() == "make test-gpu: no NVIDIA GPU here (nvidia-smi -L finds none)"


@pytest.mark.slow
def test_bfloat16_packed_is_as_exact_as_plain_bfloat16() -> None:
    found = bfloat16("cpu")
    assert found.holds
    assert found.figure > 0.1


def test_a_wrong_forward_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_policy("text", "cpu")
    group = group_of(picture_prompt(), (3, 5, 1))
    assert largest_difference(policy, group) < 1e-4
    forward = policy.forward

    def shifted(batch: Any) -> Any:
        return {"logp": forward(batch)["logp"] + 1e-3}

    monkeypatch.setattr(policy, "forward", shifted)
    assert largest_difference(policy, group) > 1e-4


def test_what_is_missing_is_named() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(Missing, match="CUDA device"):
            flex_attention()
        with pytest.raises(Missing, match="CUDA device" if importlib.util.find_spec("vllm") else "vLLM"):
            CHECKS["vllm_sleep"]()


def test_bounds_and_disagreement() -> None:
    assert Found(1.0, 1.0, "").holds
    assert not Found(1.1, 1.0, "").holds
    assert not Found(float("nan"), 1.0, "").holds
    same = [([1, 2, 3], [-0.1, -0.2, -0.3])]
    assert disagreement(same, [([1, 2, 3], [-0.1, -0.25, -0.3])]) == pytest.approx(0.05)
    assert (
        disagreement(same, [([1, 7, 3], [-0.1, -0.2004, -9.0])]) == 0.0
    )  # a tie: what follows is of another text
    assert disagreement(same, [([1, 7, 3], [-0.1, -0.9, -9.0])]) == float("inf")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs TRL")
def test_the_comparison_with_trl_on_a_tiny_model() -> None:
    from benchmarks.cases import Case
    from benchmarks.step import compare_policy

    found = compare_policy(
        random_policy("qwen2_5_vl", "cpu"), Case(pixels=112, images=1, prompts=1, group=4), repeats=1
    )
    assert found["loss_diff"] < 1e-6
    assert found["grad_rel_diff"] < 1e-4
    assert found["trl"]["decoded"] > found["vlrl"]["decoded"] == 1
