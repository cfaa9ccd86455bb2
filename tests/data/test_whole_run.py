"""`vlrl train` on 1,000 usable and 200 unusable rows, killed in the middle and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pyarrow.parquet as pq
import yaml
from bad_rows_kit import write_folder

SMALL = {
    "hidden": 16,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "intermediate": 16,
    "vision_hidden": 16,
    "vision_layers": 1,
}
CONFIG = {
    "extends": ["base/rl", "models/tiny_qwen2_5_vl", "methods/grpo"],
    "policy": {"tiny": SMALL},
    "rewards": {"right": {"name": "exact", "weight": 1.0}},
    "sampling": {"name": "plain", "max_tokens": 2},
    "group_size": 2,
    "prompts_per_step": 50,
    "steps": 20,
    "watch": {"checkpoint_every": 2, "rollouts_every": 1, "live": False},
}


def start(file, *more, python=sys.executable):
    command = [python, "-m", "vlrl", "train", str(file), "--quiet", "--json", *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_bad_rows_are_named_and_good_ones_used_once(tmp_path, warm):
    write_folder(tmp_path)
    rows = {
        "name": "files",
        "path": str(tmp_path / "rows.jsonl"),
        "format": "easyr1",
        "limits": {"max_pixels": 10_000},
        "max_bad": 0.2,
    }
    run = tmp_path / "run"
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(CONFIG | {"output": str(run), "data": {"train": {"rows": rows}}}))

    process = start(file, python=warm)
    deadline = time.time() + 400
    while process.poll() is None and time.time() < deadline and len(lines_of(run / "metrics.jsonl")) < 7:
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()[1].decode()[-2000:]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = start(file, "--resume", python=warm)
    _out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err.decode()[-2000:]

    used, sizes = Counter(), set()
    for step in sorted((run / "rollouts").glob("*.parquet")):
        table = pq.read_table(step).to_pylist()
        groups = Counter((line["group"], line["id"]) for line in table)
        sizes |= set(groups.values())
        used.update(row for _, row in groups)
    assert used == {f"g{i}": 1 for i in range(1000)} and sizes == {2}
    metrics = lines_of(run / "metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(1, 21))
    assert not any(line.get("data/dropped") for line in metrics)
    assert all(line["data/quarantined"] == 200 for line in metrics)
    assert len({line["location"] for line in lines_of(run / "quarantine.jsonl") if line["reason"]}) == 200
