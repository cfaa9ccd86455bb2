"""Run by test_fake_device.py in a separate process: on the simulated device the families that follow
`--families`, or else presets (all with `--all`). Prints one JSON object."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "methods"), str(HERE.parent)]
os.environ["ACCELERATE_TORCH_DEVICE"] = "fake:0"

from accelerate.state import AcceleratorState  # noqa: E402
from contract_kit import modalities  # noqa: E402
from fake_device import NAME, FakeDevice, refuses, register  # noqa: E402
from samples import PROMPTS, build  # noqa: E402
from tiny import steps, text_run, vision_run  # noqa: E402

from vlrl.engine.hf.engine import HF  # noqa: E402
from vlrl.policy import Family, Policy  # noqa: E402
from vlrl.trainer.step.loss_inputs import make_batch  # noqa: E402
from vlrl.types import Group, Request, Rollout, Sampling  # noqa: E402

TEXT = ["archer", "grpo_kl", "ktae", "nft", "oreal", "pure", "remax", "twostage"]
MORE = [
    *("dapo", "gdpo", "kl_cov", "lare", "open_reasoner_zero", "progrpo", "reinforce_pp_baseline", "siren"),
    *("spae", "trpa", "verl"),
]  # with `--all`
WORDS = {"pure": ["reward_shaping.process.model=tiny"]}  # what a preset leaves to its user
VISION = {"grpo": "lab_digits", "papo": "lab_digits", "video_r1": "lab_video"}


def family(name: str, device: str) -> dict[str, Any]:
    """Sampled tokens, log-probs and the size of the gradient of a family's tiny model."""
    torch.manual_seed(0)
    policy = Policy(build(Family, {"name": name, "tiny": {}, "layout": "packed"}), device=device)
    kinds = modalities(name)
    engine = HF(prefill_tokens=64).attach(policy)
    completions = engine.generate(
        [Request(PROMPTS[kind], Sampling(max_tokens=6), tag=(kind, i)) for kind in kinds for i in range(2)]
    )
    groups = [
        Group(PROMPTS[kind], [Rollout(PROMPTS[kind], [5, 6, 7 + i], "", [0.0] * 3) for i in range(2)])
        for kind in kinds
    ]
    logp_BT = policy.forward(make_batch(groups, policy.pad_id, policy.device))["logp"]
    logp_BT.sum().backward()
    size = (
        sum(float(p.grad.double().pow(2).sum()) for p in policy.model.parameters() if p.grad is not None)
        ** 0.5
    )
    assert policy.device.type == device.split(":")[0] == logp_BT.device.type
    return {
        "ids": {str(c.request.tag): c.ids for c in completions},
        "logp": logp_BT.flatten().tolist(),
        "gradient": size,
    }


def preset(method: str) -> float:
    """Two steps; the number of tokens."""
    AcceleratorState._reset_state(True)
    run = (
        vision_run([f"methods/{method}"], task=VISION[method])
        if method in VISION
        else text_run([f"methods/{method}"], WORDS.get(method, []))
    )
    assert run.policy.device.type == NAME
    return steps(run)[-1]["tokens"]


def main() -> None:
    register()  # before the first backward, which counts the devices
    families = sys.argv[2:] if sys.argv[1:2] == ["--families"] else []
    presets = [] if families else [*TEXT, *(MORE if "--all" in sys.argv else []), *VISION]
    there = {name: family(name, "cpu") for name in families}
    with FakeDevice():
        on_device = torch.ones(3, device=NAME)
        strict = [
            refuses(lambda: on_device + torch.ones(3)),
            refuses(lambda: torch.cat([on_device, torch.ones(3)])),
            refuses(on_device.numpy),
        ]
        found = {name: family(name, f"{NAME}:0") for name in families}
        tokens = {method: preset(method) for method in presets}
    print("RESULT " + json.dumps({"strict": strict, "cpu": there, "fake_device": found, "tokens": tokens}))


if __name__ == "__main__":
    main()
