"""The part of engine `vllm` that holds vLLM: starting it, giving it weights, letting it sleep, ending it."""

from __future__ import annotations

import copy
import logging
import os
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from vlrl.engine.hf.engine import LM
from vlrl.engine.named_weights import named_weights
from vlrl.engine.vllm.common import VLLMFields
from vlrl.engine.vllm.versions import check_heads, check_installed
from vlrl.registry import ConfigError


@dataclass(frozen=True)
class Holder(VLLMFields):
    """Mixed into the engine, which it gives its fields."""

    memory: float = 0.4  # the trainer is on the same card
    sleep: bool = False
    lora: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def core(self) -> Any:
        """vLLM's LLMEngine."""
        return self.state["llm"].llm_engine

    def attach(self, policy: Any) -> Any:
        """Start vLLM with this policy's architecture and weights."""
        check_installed()
        check_heads(LM(policy).text_config, torch.cuda.is_available())
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is the user's, for --json say
        from vllm import LLM

        self.state.update(lm=LM(policy), policy=policy, asleep=False, lock=threading.Lock(), done={})
        self.state.update(owns_group=not torch.distributed.is_initialized())
        folder = tempfile.TemporaryDirectory(prefix="vlrl-vllm-")
        self.state["folder"] = folder
        self._save(policy, folder.name)
        self.state["llm"] = LLM(folder.name, **self._arguments(policy))
        logging.getLogger("vllm.v1.worker.cpu_worker").setLevel(logging.ERROR)  # it warns of the number of threads at every picture
        if self.lora:
            self._sync_adapter(policy)
        self._label(policy)
        self._sleep()
        return self

    def _save(self, policy: Any, folder: str) -> None:
        """The model that vLLM starts from: merged, or the base alone where the adapter is handed over as such."""
        if not self.lora:
            policy.save(folder)
            return
        copy.deepcopy(policy.model).unload().save_pretrained(folder)
        policy.processor.save_pretrained(folder)

    def _label(self, policy: Any) -> None:
        self.state["version"] = policy.version
        self.core.set_weight_version(str(policy.version))

    def _arguments(self, policy: Any) -> dict[str, Any]:
        adapter = {"enable_lora": True, "max_lora_rank": _rank(policy)} if self.lora else {}
        ranks = {"distributed_executor_backend": "external_launcher"} if self.state.get("ranks", 1) > 1 else {}
        own = {"enable_prefix_caching": True, "enable_sleep_mode": self.sleep}
        return {**self.common_arguments(policy), **own, **adapter, **ranks, **self.options}

    def sync(self, policy: Any) -> None:
        """One batched load of all weights (or the adapter), and every cache that depended on the old ones is emptied.

        Completions that another thread is generating go on under the new weights, their keys and values recomputed.
        """
        if "llm" not in self.state:  # an adapter is there only after the phase's `tune`
            self.attach(policy)
            return
        self._wake()
        with self.state["lock"]:
            if self.lora:
                self._sync_adapter(policy)
            else:
                with policy.gather_params():
                    self.core.collective_rpc("vlrl_load", kwargs={"weights": named_weights(policy.model)})
            self.core.reset_prefix_cache(reset_running_requests=True)
            self.core.reset_mm_cache()
            self.core.reset_encoder_cache()
            self._label(policy)
        self.counters["syncs"] += 1
        self._sleep()

    def _sync_adapter(self, policy: Any) -> None:
        """One adapter, replaced where it lies: completions under way go on under the new one."""
        from vllm.lora.request import LoRARequest

        folder = f"{self.state['folder'].name}/adapter"
        policy.model.save_pretrained(folder)
        self.core.add_lora(LoRARequest("policy", 1, folder, load_inplace=True))
        self.state["lora"] = LoRARequest("policy", 1, folder)

    def _sleep(self) -> None:
        if self.sleep and not self.state["asleep"]:
            self.state["llm"].sleep(level=1)
            self.state["asleep"] = True

    def _wake(self) -> None:
        if self.state["asleep"]:
            self.state["llm"].wake_up()
            self.state["asleep"] = False

    def close(self) -> None:
        llm = self.state.pop("llm", None)
        if llm is not None:
            from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

            llm.llm_engine.engine_core.shutdown()
            self.state.pop("folder").cleanup()
            if self.state.pop("owns_group"):
                destroy_model_parallel()
                destroy_distributed_environment()


def _rank(policy: Any) -> int:
    """The largest rank of the policy's adapters, as the least that vLLM 0.32 has room for."""
    if not adapted(policy):
        raise ConfigError("engine.lora: the policy has no adapter; set `tune: {name: lora}`, or engine.lora to false")
    rank = max(config.r for config in policy.model.peft_config.values())
    return next(size for size in (1, 8, 16, 32, 64, 128, 256, 320, 512) if size >= rank)


def adapted(policy: Any) -> bool:
    """Whether the policy has adapters of its own."""
    return bool(getattr(policy.model, "peft_config", None))
