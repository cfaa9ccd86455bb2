"""vLLM in this process: colocated with the trainer, its weights loaded from the trainer's memory after every step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vlrl.engine.hf.engine import LM
from vlrl.engine.vllm.holder import Holder, adapted
from vlrl.engine.vllm.prompts import common_parameters, extra_args, finished_prefix, versions_of, vllm_prompt
from vlrl.engine.vllm.versions import check_installed
from vlrl.registry import ConfigError, register
from vlrl.stages import Engine
from vlrl.types import Completion, Prompt, Request, Sampling


@register("vllm")
@dataclass(frozen=True)
class VLLM(Holder, Engine):
    """Samples with vLLM inside the training process; one batched weight load per sync.

    Kwon et al. 2023, arXiv:2309.06180 (paged attention). `dtype` "" is the policy's. `memory` is the share of the GPU's memory (on CPU
    `cpu_kv_gb` GiB of keys and values); `sleep` frees it while the trainer works (CUDA only). `lora` hands an adapter over as an adapter (language
    model only); without it adapters are merged into the weights that are sent. `options` go to `vllm.LLM` as they are. Log-probs are vLLM's
    "processed" ones: of the distribution sampled from. With several training processes each has an engine of its own. Edge: a greedy token's
    log-prob is at temperature 1, those of a given prefix too. Sample i of a request draws from vLLM's stream seed + i: other numbers than engine
    'hf', equally independent of the batch. All `n` of a request come together.
    """

    def check(self, run: Any) -> None:
        check_installed()
        if self.sleep and not torch.cuda.is_available():
            raise ConfigError("engine.sleep: vLLM's sleep mode needs a CUDA device; set it to false")

    @property
    def own_weights(self) -> bool:
        """Whether it samples while the trainer trains. Not on a CPU, where both would share cores and interpreter: twice as slow as in turn."""
        return torch.cuda.is_available()

    @property
    def lm(self) -> LM:
        return self.state["lm"]

    def setup(self, run: Any) -> None:
        self.state["ranks"] = run.accelerator.num_processes if run.accelerator is not None else 1
        if not self.lora or adapted(run.policy):
            self.attach(run.policy)

    # --- sampling -------------------------------------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        self._wake()
        numbers = self.state.setdefault("numbers", itertools.count())
        waiting: dict[str, Request] = {}
        lora = self.state.get("lora")
        try:
            for request in requests:
                self.counters["requests"] += 1
                if len(request.prefix_ids) >= request.sampling.max_tokens:
                    yield from finished_prefix(request, self.version, self.lm.decode(request.prefix_ids))
                    continue
                name = f"vlrl-{next(numbers)}"
                prompt = vllm_prompt(self.state["policy"], request.prompt, request.prefix_ids)
                self.core.add_request(name, prompt, self._parameters(request), lora_request=lora)
                waiting[name] = request
            while waiting:
                for name in self._step(waiting):
                    yield from self._completions(waiting.pop(name), self.state["done"].pop(name))
        finally:
            if waiting:
                self.core.abort_request(list(waiting))
                self.counters["aborted"] += len(waiting)
            self._sleep()

    def _step(self, waiting: Mapping[str, Request]) -> list[str]:
        """Let vLLM work until one of these requests is done. Other threads may be waiting for theirs: whoever steps keeps what it finds for all."""
        done: dict[str, Any] = self.state["done"]
        with self.state["lock"]:
            if not any(name in done for name in waiting):
                done.update({output.request_id: output for output in self.core.step() if output.finished})
        return [name for name in waiting if name in done]

    def _parameters(self, request: Request) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        sampling = request.sampling
        return SamplingParams(
            **common_parameters(request, self.lm.eos_ids),
            logprobs=sampling.top_logprobs,
            prompt_logprobs=0 if request.prefix_ids else None,
            extra_args=extra_args(request),
            structured_outputs=StructuredOutputsParams(**sampling.guided) if sampling.guided else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _completions(self, request: Request, output: Any) -> Iterator[Completion]:
        prefix = list(request.prefix_ids)
        before = prompt_logp(output, prefix)
        for sample in output.outputs:
            ids = [*prefix, *sample.token_ids]
            logp = [table[token].logprob for table, token in zip(sample.logprobs, sample.token_ids)]
            wanted = request.sampling.top_logprobs
            top = [{}] * len(prefix) + [_best(table, wanted) for table in sample.logprobs] if wanted else None
            self.counters.update(completions=1, tokens=len(sample.token_ids))
            finish = sample.finish_reason if sample.finish_reason in ("stop", "length") else "abort"
            yield Completion(
                request=request, index=sample.index, ids=ids, logp=[*before, *logp], text=self.lm.decode(ids), finish=finish,
                version=versions_of(sample.weight_versions, len(prefix), len(ids), self.version), top_logprobs=top,
            )  # fmt: skip

    def score(self, prompt: Prompt, ids: Sequence[int]) -> list[float]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._wake()
        parameters = SamplingParams(max_tokens=1, prompt_logprobs=0, output_kind=RequestOutputKind.FINAL_ONLY)
        name = f"vlrl-{next(self.state.setdefault('numbers', itertools.count()))}"
        self.core.add_request(name, vllm_prompt(self.state["policy"], prompt, ids), parameters, lora_request=self.state.get("lora"))
        waiting = {name: Request(prompt, Sampling(max_tokens=1))}
        while not self._step(waiting):
            pass
        return prompt_logp(self.state["done"].pop(name), list(ids))


def prompt_logp(output: Any, ids: Sequence[int]) -> list[float]:
    """Log-probs (nats, temperature 1) of the last `ids` of a prompt."""
    if not ids:
        return []
    return [table[token].logprob for table, token in zip(output.prompt_logprobs[-len(ids) :], ids)]


def _best(table: Mapping[int, Any], wanted: int) -> dict[int, float]:
    ranked = sorted(((entry.logprob, token) for token, entry in table.items() if entry.logprob > float("-inf")), reverse=True)
    return {token: value for value, token in ranked[:wanted]}
