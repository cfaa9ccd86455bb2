"""Engine `vllm`: vLLM inside the training process. Its weights are loaded from the trainer's memory after
every step."""

from __future__ import annotations

import copy
import itertools
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.engine.base import SamplingModel
from vlrl.engine.vllm.changes import SentWeights
from vlrl.engine.vllm.common import VLLMEngine, VLLMState, check_heads, check_installed
from vlrl.engine.vllm.prompts import (
    common_parameters,
    extra_args,
    finish_reason,
    finished_prefix,
    scored_prefix,
    versions_of,
    vllm_prompt,
)
from vlrl.engine.vllm.sharing import LOAD_FORMAT, SharedWeights, register_loader
from vlrl.engine.vllm.weights import named_weights, save_for_vllm
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import transient
from vlrl.services.failures import EngineMismatchError
from vlrl.services.lazy import torch
from vlrl.types import Completion, Prompt, Request, Sampling

if TYPE_CHECKING:
    from vlrl.plugins.contexts import PhaseContext, StageContext

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the values of max_lora_rank that vLLM 0.32 accepts


@dataclass
class InProcessState(VLLMState):
    """`finished` holds outputs that one thread found for another; `numbers` names requests; `folder` holds
    the model that vLLM started from."""

    llm: Any = transient()
    folder: Any = transient()
    asleep: bool = transient(False)
    lock: Any = transient(factory=threading.Lock)
    finished: dict[str, Any] = transient(factory=dict)
    numbers: Iterator[int] = transient(factory=itertools.count)
    lora_request: Any = transient()
    ranks: int = transient(1)
    shared: SharedWeights | None = transient()
    owns_process_group: bool = transient(True)


@register("vllm")
@dataclass(frozen=True)
class VLLM(VLLMEngine):
    """Samples with vLLM inside the training process; one batched weight load per sync.

    Kwon et al. 2023, arXiv:2309.06180 (paged attention). Log-probs are vLLM's "processed" ones: of the
    distribution sampled from. Each of several training processes has an engine of its own. Sample i of a
    request draws from vLLM's stream seed + i: other numbers than engine 'hf', equally independent of the
    batch. All `n` completions of a request come together. Edge: the log-probs of greedy tokens and of a given
    prefix are at temperature 1.

    Attributes:
        dtype: "" is the policy's.
        memory: Fraction of the GPU's memory; on a CPU `cpu_kv_gb` GiB hold keys and values.
        sleep: Frees that memory while the trainer works (CUDA only).
        lora: Passes an adapter to vLLM as an adapter (language model only); without it, adapters are merged
            into the weights that are sent.
        share_weights: The trainer's parameters become views of vLLM's tensors where types and layouts agree
            (`vlrl/engine/vllm/sharing.py`): the weights, or the base of an adapter, are held once and a sync
            sends only the rest; on a CPU vLLM then multiplies without its packed copies.
        options: Further arguments of `vllm.LLM`.
    """

    state_class = InProcessState
    memory: float = 0.4  # the trainer is on the same GPU
    sleep: bool = False
    lora: bool = False
    share_weights: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def core(self) -> Any:
        """vLLM's LLMEngine."""
        return self.state.llm.llm_engine

    @property
    def own_weights(self) -> bool:
        """Whether it samples while the trainer trains. Not on a CPU: sharing cores and interpreter takes
        twice as long as one after the other. Nor with a vLLM that does not say which weights it used."""
        return torch.cuda.is_available() and not self.share_weights and check_installed().tells_versions

    @property
    def version(self) -> int:
        return self.state.version if self.state.shared is None else self.lm.version

    # --- start and end --------------------------------------------------------------------------------------

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if self.sleep and not torch.cuda.is_available():
            raise ConfigError("engine.sleep: vLLM's sleep mode needs a CUDA device; set it to false")
        if self.share_weights:
            self._check_sharing()

    def _check_sharing(self) -> None:
        if self.quantization:
            raise ConfigError(
                f"engine.share_weights: vLLM holds its own with quantization {self.quantization!r}; "
                'set it to false, or engine.quantization to ""'
            )
        if self.sleep:
            raise ConfigError(
                "engine.share_weights: sleep moves vLLM's weights, which the trainer would share; set "
                "engine.sleep to false"
            )
        if self.tensor_parallel > 1:
            raise ConfigError(
                f"engine.share_weights: with tensor_parallel {self.tensor_parallel} a process of vLLM "
                "holds a part of each weight; set it to 1"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.ranks = run.ranks
        if self.share_weights and run.params_sharded:
            raise ConfigError(
                "engine.share_weights: the trainer's weights are sharded over processes; use ZeRO-2 or "
                "DDP, or set it to false"
            )
        if not self.lora or run.policy.has_adapter:
            self.attach(run.policy)

    def attach(self, policy: Any) -> VLLM:
        """Start vLLM with this policy's architecture and weights."""
        state = self.state
        check_installed()
        state.lm, state.policy, state.has = SamplingModel(policy), policy, SentWeights()
        check_heads(self.lm.text_config, torch.cuda.is_available())
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        for name, value in self.environment_variables.items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output may be JSON
        from vllm import LLM

        state.owns_process_group = not torch.distributed.is_initialized()
        state.folder = tempfile.TemporaryDirectory(prefix="vlrl-vllm-")
        self._save_initial(policy, state.folder.name)
        _plain_llvmlite()
        state.shared = self._prepare_sharing(policy) if self.share_weights else None
        state.llm = LLM(state.folder.name, **self._arguments(policy))
        if state.shared is not None:
            state.shared.share(self.core.collective_rpc("vlrl_model")[0])
        self.core.collective_rpc("vlrl_prepare", kwargs=self.preparation(policy))
        logging.getLogger("vllm.v1.worker.cpu_worker").setLevel(
            logging.ERROR
        )  # it warns about the number of threads at every image
        if self.lora:
            self._sync_adapter(policy)
        self._set_version(policy)
        self._sleep()
        return self

    def _prepare_sharing(self, policy: Any) -> SharedWeights:
        """Let vLLM load from the policy's memory. Raises ConfigError for an adapter that would be merged: the
        base would then be trained on it."""
        if policy.has_adapter and not self.lora:
            raise ConfigError(
                "engine.share_weights: an adapter must be passed separately, since the base is the "
                "trainer's; set engine.lora to true"
            )
        shared = SharedWeights(policy.model)
        register_loader(shared)
        return shared

    def _save_initial(self, policy: Any, folder: str) -> None:
        """Write the model that vLLM starts from: merged, or the base alone if the adapter is passed
        separately."""
        if not self.lora:
            save_for_vllm(policy, folder)
            return
        copy.deepcopy(policy.model).unload().save_pretrained(folder)
        policy.processor.save_pretrained(folder)

    def _arguments(self, policy: Any) -> dict[str, Any]:
        adapter = {"enable_lora": True, "max_lora_rank": max_lora_rank(policy)} if self.lora else {}
        ranks = {"distributed_executor_backend": "external_launcher"} if self.state.ranks > 1 else {}
        own = {"enable_prefix_caching": True, "enable_sleep_mode": self.sleep}
        loader = {"load_format": LOAD_FORMAT} if self.share_weights else {}
        return {**self.common_arguments(policy), **own, **adapter, **ranks, **loader, **self.options}

    def close(self) -> None:
        state = self.state
        llm, state.llm = state.llm, None
        if llm is not None:
            from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

            llm.llm_engine.engine_core.shutdown()
            state.folder.cleanup()
            if state.owns_process_group:
                destroy_model_parallel()
                destroy_distributed_environment()

    # --- weights --------------------------------------------------------------------------------------------

    def sync(self, policy: Any) -> None:
        """Load all weights that can have changed in one batch (or the adapter), and empty every cache that
        depends on them.

        Completions that another thread is generating continue under the new weights, their keys and values
        recomputed.
        """
        if (
            self.state.llm is None
        ):  # with `lora`, vLLM starts when the phase's `trainable` has made the adapter
            self.attach(policy)
            return
        self._wake()
        with self.state.lock:
            if self.lora:
                self._sync_adapter(policy)
            elif self.state.shared is not None:
                self._send_unshared(self.state.shared)
            else:
                self._send_changed(policy)
            self.core.reset_prefix_cache(reset_running_requests=True)
            self.core.reset_mm_cache()
            self.core.reset_encoder_cache()
            self._set_version(policy)
        self.counters["syncs"] += 1
        self._sleep()

    def _send_changed(self, policy: Any) -> None:
        names = self.to_send(policy)
        with policy.gather_params():
            weights = self.counted(named_weights(policy.model, names))
            self.core.collective_rpc("vlrl_load", kwargs={"weights": weights, "part": names is not None})
        self.state.has.sent(policy.model)

    def _send_unshared(self, shared: SharedWeights) -> None:
        """Load what vLLM does not share. Raises ConfigError if that is everything: the trainer has moved its
        weights since."""
        unshared = shared.unshared()
        if not shared.shared_bytes:
            held = next(iter(unshared.values())).dtype
            raise ConfigError(
                f"engine.share_weights: the trainer now holds its weights in {held}, apart from vLLM's; "
                "set engine.dtype to that type, "
                "policy.fp32_master_weights to false, train an adapter with engine.lora, or set it to false"
            )
        if unshared:
            weights = list(self.counted(unshared.items()))
            self.core.collective_rpc("vlrl_load_some", kwargs={"weights": weights})
        self.counters["weights_sent"] += len(unshared)

    def _set_version(self, policy: Any) -> None:
        self.state.version = policy.version
        self.core.set_weight_version(str(policy.version))

    def _sync_adapter(self, policy: Any) -> None:
        """Replace the one adapter in place: running completions continue under the new one."""
        from vllm.lora.request import LoRARequest

        folder = f"{self.state.folder.name}/adapter"
        policy.model.save_pretrained(folder)
        self.core.add_lora(LoRARequest("policy", 1, folder, load_inplace=True))
        self.state.lora_request = LoRARequest("policy", 1, folder)
        for bound, unknown in self.core.collective_rpc("vlrl_adapter", args=(1,)):
            check_bound(bound, unknown)

    def _sleep(self) -> None:
        if self.sleep and not self.state.asleep:
            self.state.llm.sleep(level=1)
            self.state.asleep = True

    def _wake(self) -> None:
        if self.state.asleep:
            self.state.llm.wake_up()
            self.state.asleep = False

    # --- sampling -------------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        self._wake()
        waiting: dict[str, Request] = {}
        try:
            for request in requests:
                self.counters["requests"] += 1
                if len(request.prefix_ids) >= request.sampling.max_tokens:
                    yield from finished_prefix(request, self.version, self.lm.decode(request.prefix_ids))
                    continue
                waiting[self._add(request.prompt, request.prefix_ids, self._parameters(request))] = request
            while waiting:
                for name in self._step(waiting):
                    yield from self._completions(waiting.pop(name), self.state.finished.pop(name))
        finally:
            if waiting:
                self.core.abort_request(list(waiting))
                self.counters["aborted"] += len(waiting)
            self._sleep()

    def _add(self, prompt: Prompt, ids: Sequence[int], parameters: Any) -> str:
        """Hand a request to vLLM. Returns its name."""
        name = f"vlrl-{next(self.state.numbers)}"
        self.core.add_request(
            name,
            vllm_prompt(self.state.policy, prompt, ids),
            parameters,
            lora_request=self.state.lora_request,
        )
        return name

    def _step(self, waiting: Mapping[str, Request]) -> list[str]:
        """Run vLLM until at least one of these requests is finished. The thread that steps keeps the outputs
        that other threads wait for."""
        finished: dict[str, Any] = self.state.finished
        with self.state.lock:
            if not any(name in finished for name in waiting):
                finished.update({output.request_id: output for output in self.core.step() if output.finished})
        return [name for name in waiting if name in finished]

    def _parameters(self, request: Request) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        sampling = request.sampling
        return SamplingParams(
            **common_parameters(request, self.lm.eos_ids),
            logprobs=sampling.top_logprobs,
            prompt_logprobs=0 if scored_prefix(request) else None,
            extra_args=extra_args(request),
            structured_outputs=StructuredOutputsParams(**sampling.guided) if sampling.guided else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _completions(self, request: Request, output: Any) -> Iterator[Completion]:
        prefix = list(request.prefix_ids)
        prefix_logp = prompt_logp(output, prefix) if scored_prefix(request) else [0.0] * len(prefix)
        self.counters.update(
            prompt_tokens=len(output.prompt_token_ids), cached_tokens=output.num_cached_tokens or 0
        )
        wanted = request.sampling.top_logprobs
        for sample in output.outputs:
            ids = [*prefix, *sample.token_ids]
            logp = [table[token].logprob for table, token in zip(sample.logprobs, sample.token_ids)]
            self.counters.update(completions=1, tokens=len(sample.token_ids))
            spans = getattr(sample, "weight_versions", None)  # since vLLM 0.32
            yield Completion(
                request=request,
                index=sample.index,
                ids=ids,
                logp=[*prefix_logp, *logp],
                text=self.lm.decode(ids),
                finish=finish_reason(sample.finish_reason),
                version=versions_of(spans, len(prefix), len(ids), self.version),
                top_logprobs=[{}] * len(prefix) + [_most_likely(table, wanted) for table in sample.logprobs]
                if wanted
                else None,
            )

    def seen(self, prompt: Prompt, ids: Sequence[int]) -> tuple[list[int], list[float]]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._wake()
        parameters = SamplingParams(max_tokens=1, prompt_logprobs=0, output_kind=RequestOutputKind.FINAL_ONLY)
        name = self._add(prompt, ids, parameters)
        waiting = {name: Request(prompt, Sampling(max_tokens=1))}
        while not self._step(waiting):
            pass
        output = self.state.finished.pop(name)
        shown = list(output.prompt_token_ids)
        return shown[: len(shown) - len(ids)], prompt_logp(output, list(ids))


def check_bound(bound: int, unknown: Sequence[str]) -> None:
    """Raise EngineMismatchError for an adapter that vLLM binds to no module, or only to some of them."""
    if bound and not unknown:
        return
    names = ", ".join([*unknown[:3], "..."][: len(unknown[:3]) + (len(unknown) > 3)])
    what = f"leaves out {len(unknown)} of its modules ({names})" if unknown else "binds it to no module"
    raise EngineMismatchError(
        f"engine.lora: vLLM took the adapter, but {what}: samples would not be the policy's; set engine.lora "
        "to false (the adapter is then merged), or train the modules that vLLM knows (`trainable.targets`)"
    )


def prompt_logp(output: Any, ids: Sequence[int]) -> list[float]:
    """Log-probs (nats, temperature 1) of the last `ids` of a prompt."""
    if not ids:
        return []
    return [table[token].logprob for table, token in zip(output.prompt_logprobs[-len(ids) :], ids)]


def _most_likely(table: Mapping[int, Any], count: int) -> dict[int, float]:
    """The `count` largest log-probs of a position, by token id."""
    ranked = sorted(
        ((entry.logprob, token) for token, entry in table.items() if entry.logprob > float("-inf")),
        reverse=True,
    )
    return {token: value for value, token in ranked[:count]}


def max_lora_rank(policy: Any) -> int:
    """The smallest `max_lora_rank` of vLLM that holds the policy's adapters."""
    if not policy.has_adapter:
        raise ConfigError(
            "engine.lora: the policy has no adapter; set `trainable: {name: lora}`, or engine.lora to false"
        )
    configs = policy.model.peft_config.values()
    if any(config.target_parameters for config in configs):
        raise ConfigError(
            "engine.lora: adapters on experts cannot be sent as such; set engine.lora to false, which sends "
            "the merged weights"
        )
    rank = max(config.r for config in configs)
    return next(size for size in LORA_RANKS if size >= rank)


def _plain_llvmlite() -> None:
    """Let vLLM read `vars` of every module's attributes: llvmlite's library takes any name, `__dict__` too,
    for a foreign function.

    vLLM's start ends with an AttributeError where llvmlite (of numba, which bm25s uses) was imported before.
    """
    ffi = sys.modules.get("llvmlite.binding.ffi")
    known = getattr(getattr(ffi, "lib", None), "_fntab", None)
    if isinstance(known, dict):
        known.setdefault("__dict__", {})
