"""Engine `vllm_server`: vLLM servers beside the trainer. Requests go over HTTP, weights through a folder per
version or by NCCL."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlrl.engine.base import SamplingModel
from vlrl.engine.vllm.changes import SentWeights
from vlrl.engine.vllm.common import SERVER_MODULE, VLLMEngine, VLLMState, as_flags, check_heads
from vlrl.engine.vllm.prompts import (
    common_parameters,
    extra_args,
    finish_reason,
    finished_prefix,
    prompt_ids,
    scored_prefix,
    versions_of,
)
from vlrl.engine.vllm.ranks import Ranks, RemoteServer, ServerMonitor, launch_server, server_folder
from vlrl.engine.vllm.served_media import IN_SERVER, READS_CLIPS, ServedMedia
from vlrl.engine.vllm.weights import NCCLTransfer, ReplicaClients, save_changed, save_for_vllm
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import transient
from vlrl.services.http import JsonClient, ServiceError
from vlrl.services.lazy import torch
from vlrl.services.process import Server, free_port, is_loopback
from vlrl.services.ray_cluster import ADDRESS
from vlrl.services.token_guard import BODY_VARIABLE
from vlrl.types import Completion, Prompt, Request

if TYPE_CHECKING:
    from vlrl.plugins.contexts import PhaseContext, StageContext

UNLABELLED = "default"  # vLLM's name of the weights before the first label
log = logging.getLogger(__name__)


@dataclass
class ServerState(VLLMState):
    """`root` holds one folder per version; `weights` is the newest (folder with all weights, folder with what
    has changed since, version), `base` the folder that new processes start from.

    `ranks` are the training processes that share the replicas. `servers` are the replicas with their clients,
    `watch` the thread that replaces dead ones for other ranks, `pool` the threads that wait for answers,
    `media` the pictures and clips under way.
    """

    ranks: Ranks = transient(factory=Ranks)
    watch: ServerMonitor | None = transient()

    root: Path | None = transient()
    base: Path | None = transient()
    weights: tuple[Path, Path | None, int] | None = transient()
    servers: list[tuple[Server | RemoteServer, JsonClient]] = transient(factory=list)
    pool: ThreadPoolExecutor | None = transient()
    nccl: NCCLTransfer | None = transient()
    media: ServedMedia = transient(factory=ServedMedia)


def load_in_place(client: JsonClient, loads: Sequence[Mapping[str, Any]], version: int) -> None:
    """Let a replica load weights, and drop what depends on the old ones. No step may come between: it would
    look for image embeddings that a load has dropped."""
    client.post("/pause?mode=keep")
    for arguments in loads:
        client.post("/collective_rpc", {"method": "vlrl_load", "kwargs": arguments})
    client.post("/reset_prefix_cache?reset_running_requests=true")
    for path in ("/reset_mm_cache", "/reset_encoder_cache"):
        client.post(path)
    client.post("/update_weight_version", {"new_version": str(version)})
    client.post("/resume")


@register("vllm_server")
@dataclass(frozen=True)
class VLLMServer(VLLMEngine):
    """Samples with `replicas` vLLM servers that the trainer launches, watches and ends.

    Kwon et al. 2023, arXiv:2309.06180. Requests and completions are token ids (vLLM's token endpoint).
    Media: see `ServedMedia`. Weights are saved to a folder per version, and every replica loads them in
    place. Each server requires a random token on every path. A replica that dies is replaced and gets the
    present weights, and its requests are sent again: a completion is delivered once. Several training
    processes share the replicas: the first launches, loads and replaces them, the others get addresses and
    token from it. Log-probs and seeds are as in engine 'vllm'. Edge: callables as logits processors
    cannot be sent: ValueError.

    Attributes:
        parallel: Requests in flight per replica.
        host: Address that the servers listen on (loopback by default); with training processes on several
            machines, an address of the first.
        max_body_mb: Largest request in MiB.
        restarts: Replacements of each replica at most.
        transfer: "nccl" broadcasts the weights to servers on GPUs of their own; a server that dies then ends
            the run.
        devices: CUDA_VISIBLE_DEVICES of the servers, one entry per replica.
        arguments: Further flags of `vllm serve` (data parallel, Ray ...).
        env: Further environment variables.
    """

    state_class = ServerState
    own_weights = True  # it can sample while the trainer trains
    replicas: int = 1
    parallel: int = 64
    host: str = "127.0.0.1"
    restarts: int = 3
    start_timeout: float = 600.0
    folder: str = ""
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    transfer: str = "folder"
    devices: tuple[str, ...] = ()
    max_body_mb: int = 512

    def __post_init__(self) -> None:
        for name in ("replicas", "parallel", "max_body_mb"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.transfer not in ("folder", "nccl"):
            raise ValueError(f"transfer is {self.transfer!r}; known: folder, nccl")
        if self.devices and len(self.devices) != self.replicas:
            raise ValueError(
                f"devices has {len(self.devices)} entries for {self.replicas} replicas; give each its own, "
                "for instance [1, 2]"
            )

    # --- start and end --------------------------------------------------------------------------------------

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if self.transfer == "nccl" and not torch.cuda.is_available():
            raise ConfigError(
                "engine.transfer: nccl needs CUDA devices, one for the trainer and others for the servers; "
                "use folder"
            )
        if not is_loopback(self.host):
            log.warning(
                (
                    "engine.host: %s can be reached from other machines; requests and the token are not "
                    "encrypted on the way"
                ),
                self.host,
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.ranks > 1:
            self._check_machines(run)
            self.state.ranks = Ranks(run.rank, run.ranks, run.gather)
        self.attach(run.policy)

    def _check_machines(self, run: StageContext) -> None:
        machines = sorted(set(run.gather([socket.gethostname()])))
        if len(machines) > 1 and is_loopback(self.host) and ADDRESS not in os.environ:
            raise ConfigError(
                f"engine.host: {self.host} is out of reach of the ranks on other machines "
                f"({', '.join(machines)}); "
                "name an address of the first machine that the others can reach"
            )
        if torch.cuda.is_available() and not self.devices:
            run.warn(
                f"engine 'vllm_server': {run.ranks} processes train, and engine.devices names no GPUs for "
                f"the {self.replicas} servers"
            )

    def attach(self, policy: Any) -> VLLMServer:
        """Save the policy, launch the replicas with it and wait until all are ready. A collective of the
        ranks that share them."""
        state, ranks = self.state, self.state.ranks
        root = Path(ranks.broadcast(self.folder or (server_folder() if ranks.first else "")))
        if ranks.first:
            root.mkdir(parents=True, exist_ok=True)
        state.policy, state.lm, state.root, state.version = (
            policy,
            SamplingModel(policy),
            root,
            policy.version,
        )
        # servers read `root`; ranks write there on the first one's machine, and where Ray's nodes share it
        writes = ranks.broadcast(socket.gethostname()) == socket.gethostname() or ADDRESS in os.environ
        state.media = ServedMedia(media_folder(root) / str(ranks.rank) if writes else None)
        state.has = SentWeights()
        state.base = self._save(policy)
        launched = self._launch(root) if ranks.first else []
        reached = ranks.broadcast([(server.url, server.token) for server in launched])
        servers: list[Server | RemoteServer] = [*launched] or [
            RemoteServer(url, token, self.start_timeout) for url, token in reached
        ]
        state.servers = [
            (server, JsonClient(server.url, server.token, before_retry=server.ensure)) for server in servers
        ]
        state.pool = ThreadPoolExecutor(self.replicas * self.parallel, thread_name_prefix="vlrl-server")
        if ranks.first:
            for _, client in state.servers:
                self._prepare(client)
                client.post("/update_weight_version", {"new_version": str(state.version)})
        if self.transfer == "nccl":
            state.nccl = self._open_nccl(policy)
        if ranks.ranks > 1:
            state.watch = ServerMonitor(launched)
            ranks.wait()
        return self

    def _launch(self, root: Path) -> list[Server]:
        """Start the replicas and wait until all are ready. What others are told to reach keeps its port when
        it is replaced."""
        servers = [
            launch_server(
                self.command,
                root / f"server-{i}.log",
                self.host,
                shared=self.state.ranks.ranks > 1,
                gpus=self.tensor_parallel if torch.cuda.is_available() else 0,
                restarts=self.restarts,
                start_timeout=self.start_timeout,
                env=self._environment(i),
                after_start=self._bring_up_to_date,
            )
            for i in range(self.replicas)
        ]
        return [server.wait() for server in servers]

    def command(self, port: int, host: str = "") -> list[str]:
        """The command line of a replica that starts from the first weights, at `host` instead of the
        engine's own."""
        policy = self.state.policy
        check_heads(self.lm.text_config, torch.cuda.is_available())
        own: dict[str, Any] = {
            "host": host or self.host,
            "port": port,
            "served_model_name": "policy",
            "middleware": f"{IN_SERVER}.TokenGuard",
            "media_io_kwargs": READS_CLIPS,
            "allowed_local_media_path": str(media_folder(self.state.root)),
            "disable_uvicorn_access_log": True,
            "enable_scale_out": True,
            **({"weight_transfer_config": {"backend": "nccl"}} if self.transfer == "nccl" else {}),
        }
        flags = as_flags({**self.common_arguments(policy), **own})
        return [sys.executable, "-m", SERVER_MODULE, "--model", str(self.state.base), *flags, *self.arguments]

    def _environment(self, replica: int) -> dict[str, str]:
        own = {
            "VLLM_SERVER_DEV_MODE": "1",
            BODY_VARIABLE: str(self.max_body_mb << 20),
            **self.environment_variables,
        }
        devices = {"CUDA_VISIBLE_DEVICES": self.devices[replica]} if self.devices else {}
        return {**own, "VLLM_DO_NOT_TRACK": "1", **devices, **self.env}

    def close(self) -> None:
        state = self.state
        if state.watch is not None:
            state.watch.close()
            state.watch = None
        for server, client in state.servers:
            server.close()
            client.close()
        state.servers = []
        if state.pool is not None:
            state.pool.shutdown(cancel_futures=True)
            state.pool = None
        if state.root is not None and not self.folder and state.ranks.first:
            shutil.rmtree(state.root, ignore_errors=True)
            state.root = None

    # --- weights --------------------------------------------------------------------------------------------

    def sync(self, policy: Any) -> None:
        """Broadcast the weights that can have changed; or save a new version of them, let every replica load
        it in place, and delete the old one.

        A collective of the ranks that share the replicas: none samples before all replicas have the new
        weights.
        """
        state, names = self.state, self.to_send(policy)
        if state.nccl is not None:
            self.counters["sync_bytes"] += state.nccl.send(policy.version, names)
            state.has.sent(policy.model)
            state.version = policy.version
            state.ranks.wait()
        else:
            old = {*state.weights[:2]}
            self._save(policy, names)
            state.version = policy.version
            if state.ranks.first:
                for server, client in state.servers:
                    self._load(server.url, client, whole=names is None)
                # a replacement starts from `base`, so that folder stays until the end
                for folder in old - {state.base, None, *state.weights[:2]}:
                    shutil.rmtree(folder)
            state.ranks.wait()
        self.counters["syncs"] += 1

    def _save(self, policy: Any, names: Collection[str] | None = None) -> Path:
        """Write the present weights, or these of them (the first rank does). Returns their folder."""
        state, folder = self.state, self.state.root / f"version-{policy.version}"
        if names is None:
            save_for_vllm(policy, folder)
            state.weights = (folder, None, policy.version)
            state.has.sent(policy.model)
        else:  # what has changed since all were written: a replacement loads both
            folder = state.root / f"changed-{policy.version}"
            save_changed(policy, folder, names)
            state.weights = (state.weights[0], folder, policy.version)
        if state.ranks.first:
            self.counters["sync_bytes"] += sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        return folder

    def _load(self, url: str, client: JsonClient, whole: bool = True) -> None:
        """Let a replica load the newest weights in place; `whole`: those that have not changed too."""
        client.url = url  # a replacement may have another port
        # read together: another thread may be saving the next version
        folder, changed, version = self.state.weights
        loads: list[dict[str, Any]] = [{"folder": str(folder)}] if whole or changed is None else []
        loads += [{"folder": str(changed), "part": True}] if changed is not None else []
        load_in_place(client, loads, version)

    def _bring_up_to_date(self, server: Server) -> None:
        """Give the present weights to a process that started from the first ones. Raises ServiceError if only
        the trainer has them."""
        if self.transfer == "nccl":
            raise ServiceError(
                f"a server died ({server.log}), and with it the NCCL group: continue with --resume, or use "
                "engine.transfer=folder"
            )
        client = JsonClient(server.url, server.token)
        self._prepare(client)
        self._load(server.url, client)

    def _prepare(self, client: JsonClient) -> None:
        """Make the model of a replica that has just started compute what the trainer's does."""
        client.post(
            "/collective_rpc", {"method": "vlrl_prepare", "kwargs": self.preparation(self.state.policy)}
        )

    def _open_nccl(self, policy: Any) -> NCCLTransfer:
        if not self.state.ranks.first:
            return NCCLTransfer(policy, None, self.host, 0, self.state.ranks.rank)
        clients = [JsonClient(server.url, server.token, attempts=1) for server, _ in self.state.servers]
        workers = [client.get("/get_world_size")["world_size"] for client in clients]
        return NCCLTransfer(policy, ReplicaClients(clients, workers), self.host, free_port(self.host))

    # --- sampling -------------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        state, version = self.state, self.version
        begin = state.ranks.rank % len(state.servers)  # ranks begin with different replicas
        clients = itertools.cycle(client for _, client in [*state.servers[begin:], *state.servers[:begin]])
        futures: dict[Future, Request] = {}
        try:
            for request in requests:
                self.counters["requests"] += 1
                if len(request.prefix_ids) >= request.sampling.max_tokens:
                    yield from finished_prefix(request, version, self.lm.decode(request.prefix_ids))
                    continue
                future = state.pool.submit(self._ask, next(clients), self._body(request))
                future.add_done_callback(partial(release, state.media, request.prompt))
                futures[future] = request
            for future in as_completed(list(futures)):
                request = futures.pop(future)
                for completion in completions_of(self.lm, request, future.result(), version):
                    sampled = len(completion.ids) - len(request.prefix_ids)
                    self.counters.update(completions=1, tokens=sampled)
                    yield completion
        finally:
            for future in futures:  # the caller may stop early: what has not been sent yet is not sent
                future.cancel()
            self.counters["retries"] = sum(client.retries for _, client in state.servers)
            self.counters["replaced"] = sum(server.starts - 1 for server, _ in state.servers)

    def _ask(self, client: JsonClient, body: dict[str, Any]) -> dict[str, Any]:
        """The answer of a replica. One that took another's place and has not got the present weights yet is
        asked again."""
        end = time.monotonic() + self.start_timeout
        while True:
            answer: dict[str, Any] = client.post("/inference/v1/generate", body)
            # a replica answers as soon as it is up, with the weights of `base`, before it gets the newest
            if not has_unlabelled(answer):
                return answer
            if time.monotonic() > end:
                raise ServiceError(
                    f"the server at {client.url} did not get its weights within {self.start_timeout:.0f} s "
                    "of its start"
                )
            time.sleep(0.5)

    def _body(self, request: Request) -> dict[str, Any]:
        """The HTTP body of a request."""
        sampling, prompt = request.sampling, request.prompt
        parameters = common_parameters(request, self.lm.eos_ids) | {
            "logprobs": sampling.top_logprobs,
            "prompt_logprobs": 0 if scored_prefix(request) else None,
            "extra_args": extra_args(request, in_process=False),
            "structured_outputs": dict(sampling.guided) if sampling.guided else None,
        }
        return self._body_of(prompt, request.prefix_ids, parameters)

    def _body_of(self, prompt: Prompt, ids: Sequence[int], parameters: dict[str, Any]) -> dict[str, Any]:
        body = {"model": "policy", "token_ids": [*prompt_ids(self.state.policy, prompt), *ids]}
        parts = self.state.media.parts(prompt)
        return {
            **body,
            "sampling_params": {k: v for k, v in parameters.items() if v is not None},
            **({"content_parts": parts} if parts else {}),
        }

    def seen(self, prompt: Prompt, ids: Sequence[int]) -> tuple[list[int], list[float]]:
        _, client = self.state.servers[0]
        body = self._body_of(prompt, ids, {"max_tokens": 1, "prompt_logprobs": 0})
        answer = self._ask(client, body | {"return_token_ids": True})
        self.state.media.release(prompt)
        shown = list(answer["prompt_token_ids"])
        return shown[: len(shown) - len(ids)], prompt_logp(answer, list(ids))


def release(media: ServedMedia, prompt: Prompt, _: Future) -> None:
    """The request is answered, or will never be sent."""
    media.release(prompt)


def media_folder(root: Path) -> Path:
    """Where the servers of a folder may read media."""
    return root.resolve() / "media"


def has_unlabelled(answer: Mapping[str, Any]) -> bool:
    """Whether a token was sampled with weights that have no label yet: those that a replacement starts
    from."""
    spans = [span for choice in answer.get("choices") or () for span in choice.get("weight_versions") or ()]
    return any(span["version"] == UNLABELLED for span in spans)


def prompt_logp(answer: Mapping[str, Any], ids: Sequence[int]) -> list[float]:
    """Log-probs (nats, temperature 1) of the last `ids` of a prompt."""
    if not ids:
        return []
    return [
        float(table[str(token)]["logprob"])
        for table, token in zip(answer["prompt_logprobs"][-len(ids) :], ids)
    ]


def completions_of(
    lm: SamplingModel, request: Request, answer: Mapping[str, Any], version: int
) -> Iterator[Completion]:
    """The completions in a server's answer to a request."""
    prefix = list(request.prefix_ids)
    prefix_logp = prompt_logp(answer, prefix) if scored_prefix(request) else [0.0] * len(prefix)
    wanted = request.sampling.top_logprobs
    for choice in answer["choices"]:
        entries = choice["logprobs"]["content"]
        ids = [*prefix, *choice["token_ids"]]
        top = [
            {e["token_id"]: e["logprob"] for e in entry["top_logprobs"][:wanted] if e["logprob"] > -9000}
            for entry in entries
        ]
        yield Completion(
            request=request,
            index=choice["index"],
            ids=ids,
            logp=[*prefix_logp, *(entry["logprob"] for entry in entries)],
            text=lm.decode(ids),
            finish=finish_reason(choice["finish_reason"]),
            version=versions_of(choice.get("weight_versions"), len(prefix), len(ids), version),
            top_logprobs=[{}] * len(prefix) + top if wanted else None,
        )
