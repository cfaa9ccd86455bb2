"""Packages that a run does not use are not imported, and everything that transformers offers still works
afterwards."""

from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import json, sys
from vlrl.services.third_party import skip_unused
if "--all" not in sys.argv:
    skip_unused()
from vlrl.policy import Family, Policy
from vlrl.plugins.registry import build
policy = Policy(build(Family, {"name": "qwen2_5_vl", "tiny": {}}))
told = {"modules": sorted({name.partition(".")[0] for name in sys.modules})}
import torch
from transformers.loss.loss_for_object_detection import HungarianMatcher
from transformers.utils import import_utils, is_scipy_available
logits = torch.tensor([[[0.0, 9.0], [9.0, 0.0]]])
boxes = torch.tensor([[[0.2, 0.2, 0.1, 0.1], [0.7, 0.7, 0.1, 0.1]]])
targets = [{"class_labels": torch.tensor([0, 1]), "boxes": boxes[0]}]
(matched,) = HungarianMatcher()({"logits": logits, "pred_boxes": boxes}, targets)
told["matched"] = [part.tolist() for part in matched]
told["scipy"] = [is_scipy_available(), import_utils.is_scipy_available()]
told["weights"] = float(sum(p.double().sum() for p in policy.model.parameters()))
backend = policy.processor.get_possibly_dynamic_module("MistralCommonBackend")
told["mistral"] = [backend.__module__, isinstance(policy.tokenizer, backend), "mistral_common" in sys.modules]
print(json.dumps(told))
"""  # noqa: E501


def told(*words):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_unused_packages_are_not_imported_and_are_there_when_needed():
    lean, full = told(), told("--all")
    assert not {"scipy", "sklearn", "pandas", "mistral_common", "cv2", "librosa"} & set(lean.pop("modules"))
    assert "scipy" in full.pop("modules"), "transformers imports it by itself"
    # costs: class of target 0 is that of query 1 and the other way round, boxes are those of the same place;
    # equal costs keep the order
    assert (
        lean == full
        and lean["scipy"] == [True, True]
        and lean["mistral"][1] is False
        and sorted(lean["matched"][0]) == [0, 1]
    )


CHATTER = """
import datasets, transformers
from vlrl import GRPOTrainer
rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(8)]
args = dict(steps=1, output=OUT, prompts_per_step=2, group_size=2, sampling=dict(max_tokens=4))
GRPOTrainer("tiny_text", [lambda text, **row: 0.0], rows, args=args).train()
"""


def test_a_script_that_imports_libraries_first_sees_no_bars_of_theirs(tmp_path):
    code = CHATTER.replace("OUT", repr(str(tmp_path / "run")))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "it/s" not in done.stdout + done.stderr and "|" not in done.stderr, done.stderr
    assert (tmp_path / "run" / "metrics.jsonl").is_file()
