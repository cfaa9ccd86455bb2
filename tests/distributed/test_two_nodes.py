"""Two machines of two ranks on one: `benchmarks/two_nodes.py`, and what its launchers are given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ranks_kit import ENVIRONMENT, ROOT

from vlrl.plugins.registry import ConfigError
from vlrl.trainer.ranks.launch import Launch


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("layout", "servers"), [("zero3", 0), ("fsdp2", 0), pytest.param("zero3", 2, marks=pytest.mark.vllm)]
)
def test_two_machines_learn_what_one_process_does(layout: str, servers: int) -> None:
    if servers:
        pytest.importorskip("vllm")
    command = [sys.executable, "-m", "benchmarks.two_nodes", layout, "--servers", str(servers)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert f"{layout}: 2 machines x 2" in done.stdout


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs" / "accelerate").glob("zero*.yaml")), ids=lambda path: path.stem
)
def test_every_machine_starts_its_own_deepspeed_ranks(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["deepspeed_config"]["deepspeed_multinode_launcher"] == "standard"


def test_the_address_of_the_first_machine_may_have_a_port() -> None:
    settings = Launch(4, "zero3", nodes=2, rank=1, head="10.0.0.1:29600").settings()
    assert (settings["main_process_ip"], settings["main_process_port"]) == ("10.0.0.1", 29600)
    assert (Launch(4, nodes=2, head="fe80::1").address, Launch(4, nodes=2, head="fe80::1").port) == (
        "fe80::1",
        29500,
    )
    with pytest.raises(ConfigError, match="ADDRESS:PORT"):
        Launch(4, nodes=2, head="first:http")
