"""What both vLLM engines are told alike, in the process and as servers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from vlrl.engine.vllm.prompts import FORBIDDEN


@dataclass(frozen=True)
class VLLMFields:
    """Mixed into the engines, which it gives its fields."""

    memory: float = 0.85
    cpu_kv_gb: int = 1
    dtype: str = ""
    max_model_len: int | None = None
    tensor_parallel: int = 1
    eager: bool = True
    counters: Counter = field(init=False, default_factory=Counter, repr=False, compare=False)
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"version": 0, "read": Counter()}, repr=False, compare=False)

    @property
    def version(self) -> int:
        return self.state["version"]

    @property
    def environment(self) -> dict[str, str]:
        """On a CPU: room for keys and values, and the cores shared with the trainer."""
        return {"VLLM_CPU_KVCACHE_SPACE": str(self.cpu_kv_gb), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

    def common_arguments(self, policy: Any) -> dict[str, Any]:
        """Of `vllm.LLM`."""
        # On CPU a prefill in parts breaks vLLM 0.32: it rewinds the seeded generator of an unfinished one, which CPU generators cannot do.
        device = {"gpu_memory_utilization": self.memory} if torch.cuda.is_available() else {"enable_chunked_prefill": False}
        length = {"max_model_len": self.max_model_len} if self.max_model_len else {}
        return {
            "dtype": self.dtype or policy.family.dtype, "enforce_eager": self.eager, "tensor_parallel_size": self.tensor_parallel,
            "logprobs_mode": "processed_logprobs", "logits_processors": ["vlrl.engine.vllm.logits:Forbid", "vlrl.engine.vllm.logits:PerRequest"],
            "additional_config": {FORBIDDEN: list(policy.forbidden_ids)}, "generation_config": "vllm",
            "worker_extension_cls": "vlrl.engine.vllm.worker.Loader", **device, **length,
        }  # fmt: skip

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        """Counts since they were last read; they add up over ranks."""
        new = Counter(self.counters)
        new.subtract(self.state["read"])
        self.state["read"] = Counter(self.counters)
        return {f"engine/{name}": (float(value), 0.0) for name, value in sorted(new.items())}


def as_flags(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments of `vllm.LLM` as those of `vllm serve`."""
    flags: list[str] = []
    for name, value in arguments.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, list):
            flags += [f"--{option}", *map(str, value)]
        else:
            flags += [f"--{option}", json.dumps(value) if isinstance(value, Mapping) else str(value)]
    return flags
