"""FSDP2 on two CPU processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

pytestmark = pytest.mark.deepspeed


def test_spread_weights_give_the_plain_gradients_and_folder(run, tmp_path: Path) -> None:
    worker = Path(__file__).with_name("fsdp_worker.py")
    start = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        str(worker),
        str(tmp_path),
    ]
    run(start)
    model = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32)
    assert sum(p.numel() for p in model.parameters()) > 300_000
    for part in ("model.safetensors", "adapter/adapter_model.safetensors"):
        plain, spread = (load_file(tmp_path / folder / part) for folder in ("plain", "spread"))
        torch.testing.assert_close(spread, plain, atol=0, rtol=0)
