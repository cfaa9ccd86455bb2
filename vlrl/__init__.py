"""Reinforcement learning with verifiable rewards for vision-language models, and for text.

    from vlrl import GRPOTrainer

    trainer = GRPOTrainer("tiny_qwen2_5_vl", [reward], rows, args=dict(steps=50))
    trainer.train()

and the same by configs:

    import vlrl

    summary = vlrl.train(vlrl.Config.load(["quickstart"], ["steps=50"]))

Names are imported on first use, so `import vlrl` loads no torch. `vlrl.functional` has the losses and
advantages as pure functions on tensors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vlrl.version import __version__ as __version__

if TYPE_CHECKING:
    from vlrl import functional
    from vlrl.api import GRPOTrainer
    from vlrl.config import Config
    from vlrl.plugins.registry import register
    from vlrl.policy import Policy
    from vlrl.trainer.heldout import evaluate
    from vlrl.trainer.plan import Plan
    from vlrl.trainer.session import Session
    from vlrl.training import train
    from vlrl.types import Group, Rollout, Row

__all__ = [
    "Config",
    "GRPOTrainer",
    "Group",
    "Plan",
    "Policy",
    "Rollout",
    "Row",
    "Session",
    "evaluate",
    "functional",
    "register",
    "train",
]

_PLACES = {
    "Config": "vlrl.config",
    "GRPOTrainer": "vlrl.api",
    "Group": "vlrl.types",
    "Policy": "vlrl.policy",
    "Rollout": "vlrl.types",
    "Row": "vlrl.types",
    "Plan": "vlrl.trainer.plan",
    "Session": "vlrl.trainer.session",
    "evaluate": "vlrl.trainer.heldout",
    "register": "vlrl.plugins.registry",
    "train": "vlrl.training",
}


def __getattr__(name: str) -> Any:
    if name == "functional":
        return importlib.import_module("vlrl.functional")
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'vlrl' has no attribute {name!r}; it offers {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
