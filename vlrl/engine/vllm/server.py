"""vLLM as one or more servers beside the trainer: requests over HTTP, weights through a versioned folder."""

from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from vlrl.engine.vllm.fleet import Fleet
from vlrl.engine.vllm.prompts import common_parameters, extra_args, finished_prefix, prompt_ids, versions_of
from vlrl.engine.vllm.versions import check_installed
from vlrl.registry import ConfigError, register
from vlrl.services.http import JsonClient
from vlrl.services.process import Server
from vlrl.stages import Engine
from vlrl.types import Completion, Prompt, Request

Spot = tuple[Server, JsonClient]


@register("vllm_server")
@dataclass(frozen=True)
class VLLMServer(Fleet, Engine):
    """Samples with `replicas` vLLM servers that this process launches, watches and ends.

    Kwon et al. 2023, arXiv:2309.06180. Tokens go in and out by id (vLLM's token endpoint), pictures as PNG. `parallel` requests are in flight
    per replica. Weights are saved to a folder per version and loaded in place by every replica. Each server listens on `host` (loopback unless
    told otherwise) behind a random token that guards every path. A replica that dies is replaced (at most `restarts` times each), brought to the
    present weights, and asked again: a completion is delivered once. `transfer: nccl` broadcasts the weights to servers on GPUs of their own (a
    server that dies then ends the run); `devices` are their CUDA_VISIBLE_DEVICES, one entry per replica. `arguments` go to `vllm serve` as they
    are (data parallel, Ray ...). Edge: videos and callables as logits processors cannot be sent: ValueError. Log-probs and seeds are as in engine
    'vllm'.
    """

    own_weights: ClassVar[bool] = True  # it can sample while the trainer trains

    def __post_init__(self) -> None:
        for name in ("replicas", "parallel"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.transfer not in ("folder", "nccl"):
            raise ValueError(f"transfer is {self.transfer!r}; known: folder, nccl")
        if self.devices and len(self.devices) != self.replicas:
            raise ValueError(f"devices has {len(self.devices)} entries for {self.replicas} replicas; give each its own, for instance [1, 2]")

    def check(self, run: Any) -> None:
        check_installed()
        if self.transfer == "nccl" and not torch.cuda.is_available():
            raise ConfigError("engine.transfer: nccl needs CUDA devices, one for the trainer and others for the servers; use folder")

    def setup(self, run: Any) -> None:
        if run.accelerator is not None and run.accelerator.num_processes > 1:
            raise ConfigError(
                "engine 'vllm_server' serves one training process; use engine 'hf' or 'vllm' with several, or one process with FSDP off"
            )
        self.attach(run.policy)

    # --- sampling -------------------------------------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        turns = itertools.cycle(self.state["spots"])
        version = self.version
        futures: dict[Future, Request] = {}
        try:
            for request in requests:
                self.counters["requests"] += 1
                if len(request.prefix_ids) >= request.sampling.max_tokens:
                    yield from finished_prefix(request, version, self.state["lm"].decode(request.prefix_ids))
                    continue
                futures[self.state["pool"].submit(self._ask, next(turns)[1], self._body(request))] = request
            for future in as_completed(list(futures)):
                yield from self._completions(futures.pop(future), future.result(), version)
        finally:
            for future in futures:
                future.cancel()
            self.counters["retries"] = sum(client.retries for _, client in self.state["spots"])
            self.counters["replaced"] = sum(server.starts - 1 for server, _ in self.state["spots"])

    def _ask(self, client: JsonClient, body: dict[str, Any]) -> dict[str, Any]:
        return client.post("/inference/v1/generate", body)

    def _body(self, request: Request) -> dict[str, Any]:
        sampling, prompt = request.sampling, request.prompt
        if prompt.videos:
            raise ValueError(f"row {prompt.row.id!r} shows a video: engine 'vllm_server' sends pictures only; use engine 'vllm' or 'hf'")
        parameters = common_parameters(request, self.state["lm"].eos_ids) | {
            "logprobs": sampling.top_logprobs,
            "prompt_logprobs": 0 if request.prefix_ids else None,
            "extra_args": extra_args(request, in_process=False),
            "structured_outputs": dict(sampling.guided) if sampling.guided else None,
        }
        return self._wire(prompt, request.prefix_ids, parameters)

    def _wire(self, prompt: Prompt, ids: Sequence[int], parameters: dict[str, Any]) -> dict[str, Any]:
        parts = [{"type": "image_url", "url": self._picture(medium), "uuid": medium.key} for medium in prompt.images]
        body = {"model": "policy", "token_ids": [*prompt_ids(self.state["policy"], prompt), *ids]}
        return {**body, "sampling_params": {k: v for k, v in parameters.items() if v is not None}, **({"content_parts": parts} if parts else {})}

    def _picture(self, medium: Any) -> str:
        """A PNG data URL; the pixels arrive as they are."""
        known = self.state["pictures"]
        if medium.key not in known:
            if len(known) > 256:
                known.clear()
            buffer = io.BytesIO()
            medium.load().convert("RGB").save(buffer, "PNG", compress_level=1)
            known[medium.key] = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
        return known[medium.key]

    def _completions(self, request: Request, answer: Mapping[str, Any], version: int) -> Iterator[Completion]:
        prefix = list(request.prefix_ids)
        before = wire_prompt_logp(answer, prefix)
        wanted = request.sampling.top_logprobs
        for choice in answer["choices"]:
            entries = choice["logprobs"]["content"]
            ids = [*prefix, *choice["token_ids"]]
            top = [{e["token_id"]: e["logprob"] for e in entry["top_logprobs"][:wanted] if e["logprob"] > -9000} for entry in entries]
            finish = choice["finish_reason"] if choice["finish_reason"] in ("stop", "length") else "abort"
            self.counters.update(completions=1, tokens=len(choice["token_ids"]))
            yield Completion(
                request=request,
                index=choice["index"],
                ids=ids,
                logp=[*before, *(entry["logprob"] for entry in entries)],
                text=self.state["lm"].decode(ids),
                finish=finish,
                version=versions_of(choice.get("weight_versions"), len(prefix), len(ids), version),  # type: ignore[arg-type]
                top_logprobs=[{}] * len(prefix) + top if wanted else None,
            )

    def score(self, prompt: Prompt, ids: Sequence[int]) -> list[float]:
        body = self._wire(prompt, ids, {"max_tokens": 1, "prompt_logprobs": 0})
        return wire_prompt_logp(self._ask(self.state["spots"][0][1], body), list(ids))


def wire_prompt_logp(answer: Mapping[str, Any], ids: Sequence[int]) -> list[float]:
    """Log-probs (nats, temperature 1) of the last `ids` of a prompt."""
    if not ids:
        return []
    return [float(table[str(token)]["logprob"]) for table, token in zip(answer["prompt_logprobs"][-len(ids) :], ids)]
