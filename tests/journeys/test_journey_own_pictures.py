"""Journey 1: own pictures, from the first check to a model for plain transformers, with LoRA and two
processes."""

import json

import torch
import yaml
from journey import clock, clocks, last_metrics, vlrl
from transformers import AutoModelForImageTextToText, AutoProcessor

CONFIG = {
    "extends": ["base/rl", "base/lab", "models/tiny_qwen2_5_vl", "methods/grpo"],
    "output": "runs/clocks",
    "data": {
        split: {
            "clocks": {"name": "files", "path": f"split/{split}.jsonl", "target": "<answer>{answer}</answer>"}
        }
        for split in ("train", "heldout")
    },
    "rewards": {"hour": {"name": "exact"}},
    "trainable": {"name": "lora", "r": 4},
    "watch": {"live": False},
    "phases": {
        "cold_start": {"steps": 2, "prompts_per_step": 4},
        "rl": {"steps": 2, "group_size": 2, "prompts_per_step": 4},
    },
}


def test_own_pictures_with_lora_and_two_processes(tmp_path):
    rows = clocks(tmp_path, 24)
    found = json.loads(vlrl(tmp_path, "data", "check", rows, "--media-root", "pictures", "--json"))
    assert (found["usable"], found["unusable"]) == (24, 0)
    vlrl(
        tmp_path,
        "data",
        "split",
        rows,
        "--out",
        "split",
        "--parts",
        "train=0.75,heldout=0.25",
        "--media-root",
        "pictures",
    )
    vlrl(tmp_path, "data", "preview", "split/train.jsonl", "--out", "preview.html")
    assert "data:image" in (tmp_path / "preview.html").read_text()

    (tmp_path / "clock.yaml").write_text(yaml.safe_dump(CONFIG))
    assert "lora" in vlrl(tmp_path, "show", "clock.yaml")
    vlrl(tmp_path, "train", "clock.yaml", "--processes", "2")
    run = tmp_path / "runs" / "clocks"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 4 and set(summary["heldout"]) == {"start", "final"}
    assert last_metrics(run)["rollouts"] == 8 and (run / "report.html").is_file()
    assert yaml.safe_load((run / "launch.yaml").read_text())["num_processes"] == 2
    assert {
        json.loads(state.read_text())["ranks"] for state in run.glob("checkpoints/step-*/trainer/state.json")
    } == {2}

    vlrl(tmp_path, "export", "runs/clocks", "--to", "exported", "--merge-lora")
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "exported").eval()
    processor = AutoProcessor.from_pretrained(tmp_path / "exported")
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which hour?"}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    asked = processor(text=[text], images=[clock(3)], return_tensors="pt")
    with torch.no_grad():
        assert model.generate(**asked, max_new_tokens=3).shape[1] > asked["input_ids"].shape[1]
