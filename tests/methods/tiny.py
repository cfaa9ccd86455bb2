"""Two steps of training on the lab, in a second: a random text policy, or a random vision policy."""

from __future__ import annotations

import math

from run_kit import Steps

from vlrl.config import Config, load
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.step.loop import train_step

SMALL = [
    "prompts_per_step=4",
    "group_size=6",
    "sampling.max_tokens=10",
    "optimizer.lr=1e-3",
    "max_refill_rounds=1",
    "watch.rollouts_every=0",
]
TEXT = [
    "policy.tiny={hidden: 32, layers: 2, heads: 2, kv_heads: 1, intermediate: 64}",
    (
        "engine={name: fake, options: ['<answer>{answer}</answer>', '<answer>{answer}</answer> ok', "
        "'<answer>1</answer>', 'no', '']}"
    ),
]


def text_run(method: list[str], overrides: list[str] = (), engine: str = "fake") -> Session:
    """A run on arithmetic. With the fake engine rewards differ from the start, though the policy is
    random."""
    words = TEXT if engine == "fake" else TEXT[:1]
    names = ["base/rl", "models/tiny_text", "tasks/lab_arithmetic", *method]
    return opened(Session(Plan.of(small(names, [*SMALL, *words, *overrides]))))


def vision_run(method: list[str], overrides: list[str] = (), task: str = "lab_digits") -> Session:
    """A run on pictures, with the real engine."""
    names = ["base/rl", "models/tiny_qwen2_5_vl", f"tasks/{task}", *method]
    return opened(Session(Plan.of(small(names, [*SMALL, *overrides]))))


def small(names: list[str], words: list[str]) -> Config:
    """The config, with as many updates a step as its prompts allow where the preset asks for more."""
    tree = load(names, words).tree
    prompts, updates = tree["prompts_per_step"], tree["num_minibatches"]
    return load(names, [*words, f"num_minibatches={math.gcd(prompts, updates)}"])


def opened(run: Session) -> Session:
    """Model loaded, first phase entered."""
    run.observers.members.append(Steps())
    run.open()
    run.enter(0)
    run.engine.sync(run.policy)
    return run


def steps(run: Session, n: int = 2) -> list[dict[str, float]]:
    """Train n steps; every number of the log must be finite."""
    out = []
    for _ in range(n):
        metrics = train_step(run).metrics
        assert all(math.isfinite(v) for v in metrics.values()), {
            k: v for k, v in metrics.items() if not math.isfinite(v)
        }
        out.append(metrics)
    run.close()
    return out
