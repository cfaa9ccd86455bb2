"""Weights that two processes train together, on their way to a server by vLLM's own sender."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.deepspeed


@pytest.mark.slow
def test_a_server_gets_whole_weights_of_two_training_processes(run) -> None:
    pytest.importorskip("vllm")
    worker = Path(__file__).with_name("transfer_worker.py")
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    assert run([*start, str(worker)]).count("received") == 5
