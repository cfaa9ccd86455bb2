"""The reference is the policy as its phase began, and stays that over a restart: as a copy, and as the model
under an adapter."""

import json
import shutil
from pathlib import Path

import kit
import pytest

from vlrl.config import load
from vlrl.training import train

SMALL = str(Path(__file__).parent / "small.yaml")
SHORT = [
    "data.heldout=null",
    "rewards.digits=null",
    "rewards.sums=null",
    "rewards.any.name=test_loop_ids",
    "phases.cold_start.steps=1",
    "phases.rl.steps=3",
    "phases.rl.num_minibatches=1",
    "optimizer.lr=1.0e-2",
    "phases.rl.loss_terms.kl.coef=1.0",
    "watch.checkpoint_every=1",
    "watch.keep=0",
    "watch.entropy=false",
]
TINY = (
    "policy.tiny={hidden: 16, layers: 1, heads: 2, kv_heads: 1, intermediate: 32, vision_hidden: 16, "
    "vision_layers: 1, vision_heads: 2}"
)


def run_of(folder: Path, *more: str, resume: bool = False) -> list[dict]:
    train(load([SMALL], [f"output={folder}", TINY, *SHORT, *more]), resume=resume, live=False)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "trainable", ["{name: full}", "{name: lora, r: 4}", "{name: parts, freeze: [vision]}"]
)
def test_the_reference_of_the_phase_survives_a_restart(trainable: str, tmp_path: Path) -> None:
    assert kit.Ids.name == "test_loop_ids"  # a reward that differs from rollout to rollout
    whole = run_of(tmp_path / "run", f"phases.rl.trainable={trainable}")
    assert (
        whole[1]["kl"] < 1e-9 < 1e-5 < whole[2]["kl"] < whole[3]["kl"]
    )  # it starts at the reference and leaves it
    for folder in (tmp_path / "run" / "checkpoints").glob("step-*"):
        if int(folder.name[5:]) > 2:
            shutil.rmtree(folder)
    assert run_of(tmp_path / "run", f"phases.rl.trainable={trainable}", resume=True) == whole
