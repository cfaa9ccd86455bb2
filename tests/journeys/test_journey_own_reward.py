"""Journey 2: an own reward, from `vlrl new` over its attack to training."""

import json
import subprocess
import sys

from journey import clocks, last_metrics, vlrl

GUARDED = '''"""Whether the answer is the hour on the clock."""

from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.parsing import answer_or_text


@register("right_hour")
@dataclass(frozen=True)
class RightHour(Reward):
    """1 if the answer is the gold hour, else 0."""

    def __call__(self, rollout: Rollout) -> float:
        return float(answer_or_text(rollout.text) == str(rollout.answer))
'''


def test_own_reward(tmp_path):
    said = vlrl(tmp_path, "new", "reward", "my_first")
    assert "pip install pytest" in said
    quiet = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
    done = subprocess.run([sys.executable, "-m", "pytest", *quiet, "test_my_first.py"], cwd=tmp_path)
    assert done.returncode == 0

    (tmp_path / "right_hour.py").write_text(GUARDED)
    loose = GUARDED.replace("right_hour", "loose_hour").replace("RightHour", "LooseHour")
    loose = loose.replace(
        "answer_or_text(rollout.text) == str(rollout.answer)", "str(rollout.answer) in rollout.text"
    )
    (tmp_path / "loose.py").write_text(loose)
    (tmp_path / "example.json").write_text(json.dumps({"gold": "3", "right": "3", "wrong": ["9", "12"]}))
    assert "right_hour" in vlrl(tmp_path, "list", "reward", "--plugin", "right_hour.py")
    attacked = vlrl(
        tmp_path,
        "verify",
        "--attack",
        "loose_hour",
        "--plugin",
        "loose.py",
        "--example",
        "example.json",
        code=1,
    )
    lines = attacked.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("PASSES"))
    assert "3" in lines[first + 1] and lines[first + 1].startswith("        ")  # the text that passed
    good = vlrl(
        tmp_path,
        "verify",
        "--attack",
        "right_hour",
        "--plugin",
        "right_hour.py",
        "--example",
        "example.json",
        code=0,
    )
    assert "0 pass" in good

    clocks(tmp_path, 8)
    (tmp_path / "clock.yaml").write_text(
        "extends: [base/rl, models/tiny_qwen2_5_vl, methods/grpo]\nplugins: [right_hour.py]\noutput: run\n"
        "data: {train: {clocks: {name: files, path: clocks.jsonl, media_root: pictures}}}\n"
        "rewards: {hour: {name: right_hour}}\nwatch: {live: false}\n"
    )
    vlrl(
        tmp_path,
        "train",
        "clock.yaml",
        "steps=2",
        "group_size=2",
        "prompts_per_step=2",
        "sampling.max_tokens=4",
    )
    assert "reward/hour" in last_metrics(tmp_path / "run")
