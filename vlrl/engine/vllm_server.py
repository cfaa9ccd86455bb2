"""vLLM as one or more servers beside the trainer: requests over HTTP, weights through a versioned folder."""

from __future__ import annotations

import base64
import io
import itertools
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from vlrl.engine.hf import LM
from vlrl.engine.sync import merged
from vlrl.engine.versions import check_installed
from vlrl.engine.vllm_prompts import FORBIDDEN, common_parameters, extra_args, finished_prefix, prompt_ids, versions_of
from vlrl.registry import ConfigError, register
from vlrl.services.http import JsonClient
from vlrl.services.process import Server
from vlrl.stages import Engine
from vlrl.types import Completion, Prompt, Request

Spot = tuple[Server, JsonClient]


@register("vllm_server")
@dataclass(frozen=True)
class VLLMServer(Engine):
    """Samples with `replicas` vLLM servers that this process launches, watches and ends.

    Kwon et al. 2023, arXiv:2309.06180. Tokens go in and out by id (vLLM's token endpoint), pictures as PNG. `parallel` requests are in flight
    per replica. Weights are saved to a folder per version and loaded in place by every replica. Each server listens on `host` (loopback unless
    told otherwise) behind a random token that guards every path. A replica that dies is replaced (at most `restarts` times each), brought to the
    present weights, and asked again: a completion is delivered once. `arguments` go to `vllm serve` as they are (data parallel, Ray ...).
    Edge: videos and callables as logits processors cannot be sent: ValueError. Log-probs and seeds are as in engine 'vllm'.
    """

    own_weights: ClassVar[bool] = True  # it can sample while the trainer trains
    replicas: int = 1
    parallel: int = 64
    memory: float = 0.85
    cpu_kv_gb: int = 1
    dtype: str = ""
    max_model_len: int | None = None
    tensor_parallel: int = 1
    eager: bool = True
    host: str = "127.0.0.1"
    restarts: int = 3
    start_timeout: float = 600.0
    folder: str = ""
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    counters: Counter = field(init=False, default_factory=Counter, repr=False, compare=False)
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"version": 0, "read": Counter()}, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("replicas", "parallel"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")

    def check(self, run: Any) -> None:
        check_installed()
        if run.env is not None and self.state.get("closed"):
            raise ConfigError("engine: this server was closed")

    @property
    def version(self) -> int:
        return self.state["version"]

    def setup(self, run: Any) -> None:
        if run.accelerator is not None and run.accelerator.num_processes > 1:
            raise ConfigError(
                "engine 'vllm_server' serves one training process; use engine 'hf' or 'vllm' with several, or one process with FSDP off"
            )
        self.attach(run.policy)

    def attach(self, policy: Any) -> VLLMServer:
        """Save the policy, launch the replicas with it and wait until all are ready."""
        root = Path(self.folder or tempfile.mkdtemp(prefix="vlrl-server-"))
        root.mkdir(parents=True, exist_ok=True)
        self.state.update(policy=policy, lm=LM(policy), root=root, version=policy.version, pictures={})
        self._save(policy, everything=True)
        servers = [
            Server(
                self.command, root / f"server-{i}.log", self.host, restarts=self.restarts, start_timeout=self.start_timeout, env=self._environment(),
                after_start=self._replaced,
            )
            for i in range(self.replicas)
        ]  # fmt: skip
        self.state["spots"] = [(server.wait(), JsonClient(server.url, server.token, before_retry=server.ensure)) for server in servers]
        for _, client in self.state["spots"]:
            client.post("/update_weight_version", {"new_version": str(self.version)})
        self.state["pool"] = ThreadPoolExecutor(self.replicas * self.parallel, thread_name_prefix="vlrl-server")
        return self

    def _environment(self) -> dict[str, str]:
        own = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": str(self.cpu_kv_gb), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        return {**own, "VLLM_DO_NOT_TRACK": "1", **self.env}

    def command(self, port: int) -> list[str]:
        """The command line of a replica, from the present weights."""
        policy = self.state["policy"]
        options = {
            "--host": self.host, "--port": port, "--served-model-name": "policy", "--dtype": self.dtype or policy.family.dtype,
            "--tensor-parallel-size": self.tensor_parallel, "--logprobs-mode": "processed_logprobs", "--generation-config": "vllm",
            "--additional-config": json.dumps({FORBIDDEN: list(policy.forbidden_ids)}), "--middleware": "vlrl.engine._vllm_guard.Guard",
            "--worker-extension-cls": "vlrl.engine._vllm_worker.Loader", "--gpu-memory-utilization": self.memory,
        }  # fmt: skip
        if self.max_model_len:
            options["--max-model-len"] = self.max_model_len
        processors = ["--logits-processors", "vlrl.engine._vllm_logits:Forbid", "vlrl.engine._vllm_logits:PerRequest"]
        flags = [*processors, *(["--enforce-eager"] if self.eager else []), "--disable-uvicorn-access-log", "--enable-scale-out"]
        pairs = [str(part) for pair in options.items() for part in pair]
        module = "vllm.entrypoints.openai.api_server"  # what `vllm serve` runs; the CPU build's own command does not find its metadata
        return [sys.executable, "-m", module, "--model", str(self.state["base"]), *pairs, *flags, *self.arguments]

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

    # --- weights --------------------------------------------------------------------------------------------------------------------

    def sync(self, policy: Any) -> None:
        """Save a new version, let every replica load it in place, forget the old one."""
        old = self.state["weights"]
        self.state["version"] = policy.version
        self._save(policy)
        for server, client in self.state["spots"]:
            self._load(server.url, client)
        if old != self.state["base"]:
            shutil.rmtree(old)
        self.counters["syncs"] += 1

    def _save(self, policy: Any, everything: bool = False) -> None:
        folder = self.state["root"] / f"version-{policy.version}"
        with merged(policy.model):
            policy.save(folder)
        self.state["weights"] = folder
        if everything:
            self.state["base"] = folder

    def _load(self, url: str, client: JsonClient) -> None:
        client.url = url
        client.post("/collective_rpc", {"method": "vlrl_load", "kwargs": {"folder": str(self.state["weights"])}})
        client.post("/reset_prefix_cache?reset_running_requests=true")
        client.post("/reset_mm_cache")
        client.post("/reset_encoder_cache")
        client.post("/update_weight_version", {"new_version": str(self.version)})

    def _replaced(self, server: Server) -> None:
        """A new process started from the first weights: give it the present ones."""
        self._load(server.url, JsonClient(server.url, server.token))

    def metrics(self) -> dict[str, float]:
        """Counts since they were last read."""
        new = Counter(self.counters)
        new.subtract(self.state["read"])
        self.state["read"] = Counter(self.counters)
        return {f"engine/{name}": float(value) for name, value in sorted(new.items())}

    def close(self) -> None:
        for server, client in self.state.pop("spots", ()):
            server.close()
            client.close()
        if "pool" in self.state:
            self.state.pop("pool").shutdown(cancel_futures=True)
        if "root" in self.state and not self.folder:
            shutil.rmtree(self.state.pop("root"), ignore_errors=True)


def wire_prompt_logp(answer: Mapping[str, Any], ids: Sequence[int]) -> list[float]:
    """Log-probs (nats, temperature 1) of the last `ids` of a prompt."""
    if not ids:
        return []
    return [float(table[str(token)]["logprob"]) for table, token in zip(answer["prompt_logprobs"][-len(ids) :], ids)]
