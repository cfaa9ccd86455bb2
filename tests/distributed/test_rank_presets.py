"""Statistics over a whole step are those of all ranks: the same global batch on one or two ranks takes the
same step."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from presets_worker import PRESETS, two_steps
from ranks_kit import HERE, ROOT

pytestmark = pytest.mark.deepspeed


@pytest.fixture(scope="module")
def together(run, tmp_path_factory) -> Path:
    """The folder of two processes' results."""
    folder = tmp_path_factory.mktemp("together")
    launch = [
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        str(ROOT / "configs" / "accelerate" / "ddp.yaml"),
    ]
    start = [
        sys.executable,
        *launch,
        "--num_processes",
        "2",
        "--main_process_port",
        "0",
        str(HERE / "presets_worker.py"),
        str(folder),
    ]
    run(start)
    return folder


@pytest.mark.parametrize("preset", PRESETS)
def test_two_ranks_take_the_step_of_one(preset: str, together: Path, tmp_path: Path) -> None:
    two_steps(preset, tmp_path / preset)
    one, two = (json.loads((folder / f"{preset}.json").read_text()) for folder in (tmp_path, together))
    for alone, ranks in zip(one, two, strict=True):
        assert ranks == pytest.approx(alone, rel=1e-4, abs=1e-6)
        assert (
            alone["grad_norm"] > 0
            and alone["seen"] >= alone["rollouts"]
            and alone["seen/constant"] == pytest.approx(0.3)
        )
    weights = [torch.load(folder / f"{preset}.pt", weights_only=True) for folder in (tmp_path, together)]
    torch.testing.assert_close(weights[1], weights[0], atol=1e-5, rtol=0)
