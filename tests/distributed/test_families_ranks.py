"""Every record family from its fixture, unchanged, in one run of two processes: pictures, several pictures,
videos and text."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from ranks_kit import HERE, ROOT

from vlrl.plugins.registry import build
from vlrl.plugins.stages import Source

FIXTURES = ROOT / "data" / "fixtures"
FILES = sorted(path for path in FIXTURES.iterdir() if path.suffix in {".json", ".jsonl", ".parquet", ".csv"})
SMALL = {
    "hidden": 32,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "intermediate": 64,
    "vision_hidden": 32,
    "vision_layers": 2,
}


@pytest.mark.deepspeed
def test_all_families_train_together(tools, tmp_path: Path) -> None:
    run, _, launcher, metrics = tools
    train = {
        path.name.replace(".", "_"): {"name": "files", "path": str(path), "max_bad": 0.0, "limit": 2}
        for path in FILES
    }
    train["tar"] = {"name": "webdataset", "path": str(FIXTURES / "webdataset.tar")}
    train["folder"] = {"name": "folder", "path": str(FIXTURES / "classes"), "question": "What is shown?"}
    rows = {slot: len(build(Source, spec)()) for slot, spec in train.items()}
    steps = 4
    config = {
        "extends": ["base/rl", "models/tiny_qwen2_5_vl", "methods/grpo"],
        "policy": {"tiny": SMALL},
        "data": {"train": {slot: spec | {"weight": float(rows[slot])} for slot, spec in train.items()}},
        "rewards": {"any": {"name": "hash_of_tokens", "weight": 1.0}},
        "sampling": {"name": "plain", "max_tokens": 3},
        "group_size": 2,
        "prompts_per_step": -(-sum(rows.values()) // steps),
        "steps": steps,
        "max_prompt_tokens": 2048,
        "optimizer": {"lr": 1e-3},
        "watch": {"rollouts_every": 1, "live": False},
        "plugins": [str(HERE / "hash_reward.py")],
        "output": str(tmp_path / "run"),
    }
    file = tmp_path / "families.yaml"
    file.write_text(yaml.safe_dump(config))
    run([sys.executable, *launcher("ddp"), "-m", "vlrl", "train", str(file)])

    said = metrics(tmp_path / "run")
    assert [line["step"] for line in said] == [1, 2, 3, 4] and all(line["grad_norm"] > 0 for line in said)
    assert sum(line["groups"] for line in said) >= sum(rows.values()) and said[-1]["data/epoch"] >= 1.0
    assert not any(line.get("data/dropped") or line.get("reward/errors") for line in said)
    media = set()
    for step in (tmp_path / "run" / "rollouts").glob("*.parquet"):  # of the first process
        for line in pq.read_table(step, columns=["media"]).to_pylist():
            media.add(tuple(medium["kind"] for medium in line["media"]))
    assert {(), ("image",), ("video",)} <= media, media
