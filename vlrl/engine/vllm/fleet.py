"""The part of engine `vllm_server` that runs the servers: launching, weights, replacement, the end."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vlrl.engine.hf.engine import LM
from vlrl.engine.vllm.common import VLLMFields, as_flags
from vlrl.engine.vllm.nccl import Link, Replicas
from vlrl.engine.vllm.versions import check_heads
from vlrl.services.http import JsonClient, ServiceError
from vlrl.services.process import Server, free_port


@dataclass(frozen=True)
class Fleet(VLLMFields):
    """Mixed into the engine, which it gives its fields."""

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

    def attach(self, policy: Any) -> Any:
        """Save the policy, launch the replicas with it and wait until all are ready."""
        root = Path(self.folder or tempfile.mkdtemp(prefix="vlrl-server-"))
        root.mkdir(parents=True, exist_ok=True)
        self.state.update(policy=policy, lm=LM(policy), root=root, version=policy.version, pictures={})
        self._save(policy, everything=True)
        servers = [
            Server(
                self.command, root / f"server-{i}.log", self.host, restarts=self.restarts, start_timeout=self.start_timeout,
                env=self._environment(i), after_start=self._replaced,
            )
            for i in range(self.replicas)
        ]  # fmt: skip
        self.state["spots"] = [(server.wait(), JsonClient(server.url, server.token, before_retry=server.ensure)) for server in servers]
        for _, client in self.state["spots"]:
            client.post("/update_weight_version", {"new_version": str(self.state["version"])})
        self.state["pool"] = ThreadPoolExecutor(self.replicas * self.parallel, thread_name_prefix="vlrl-server")
        if self.transfer == "nccl":
            self.state["link"] = self._link(policy)
        return self

    def _link(self, policy: Any) -> Link:
        clients = [JsonClient(server.url, server.token, attempts=1) for server, _ in self.state["spots"]]
        workers = [client.get("/get_world_size")["world_size"] for client in clients]
        return Link(policy, Replicas(clients, workers), self.host, free_port(self.host))

    def _environment(self, replica: int) -> dict[str, str]:
        own = {"VLLM_SERVER_DEV_MODE": "1", **self.environment}
        cards = {"CUDA_VISIBLE_DEVICES": self.devices[replica]} if self.devices else {}
        return {**own, "VLLM_DO_NOT_TRACK": "1", **cards, **self.env}

    def command(self, port: int) -> list[str]:
        """The command line of a replica, from the present weights."""
        policy = self.state["policy"]
        check_heads(self.state["lm"].text_config, torch.cuda.is_available())
        own: dict[str, Any] = {
            "host": self.host, "port": port, "served_model_name": "policy", "middleware": "vlrl.engine.vllm.guard.Guard",
            "disable_uvicorn_access_log": True, "enable_scale_out": True,
            **({"weight_transfer_config": {"backend": "nccl"}} if self.transfer == "nccl" else {}),
        }  # fmt: skip
        flags = as_flags({**self.common_arguments(policy), **own})
        module = "vllm.entrypoints.openai.api_server"  # what `vllm serve` runs; the CPU build's own command does not find its metadata
        return [sys.executable, "-m", module, "--model", str(self.state["base"]), *flags, *self.arguments]

    def sync(self, policy: Any) -> None:
        """Broadcast the weights; or save a new version, let every replica load it in place, forget the old one."""
        if self.transfer == "nccl":
            self.state["link"].send(policy.version)
            self.state["version"] = policy.version
            self.counters["syncs"] += 1
            return
        old, _ = self.state["weights"]
        self._save(policy)
        self.state["version"] = policy.version
        for server, client in self.state["spots"]:
            self._load(server.url, client)
        if old not in (self.state["base"], self.state["weights"][0]):
            shutil.rmtree(old)
        self.counters["syncs"] += 1

    def _save(self, policy: Any, everything: bool = False) -> None:
        folder = self.state["root"] / f"version-{policy.version}"
        policy.save(folder)
        self.state["weights"] = (folder, policy.version)
        if everything:
            self.state["base"] = folder

    def _load(self, url: str, client: JsonClient) -> None:
        client.url = url
        folder, version = self.state["weights"]  # read at once: another thread may be at the next version
        # a step between load and resets would look for embeddings of pictures that the load has dropped
        client.post("/pause?mode=keep")
        client.post("/collective_rpc", {"method": "vlrl_load", "kwargs": {"folder": str(folder)}})
        client.post("/reset_prefix_cache?reset_running_requests=true")
        client.post("/reset_mm_cache")
        client.post("/reset_encoder_cache")
        client.post("/update_weight_version", {"new_version": str(version)})
        client.post("/resume")

    def _replaced(self, server: Server) -> None:
        """A new process started from the first weights: give it the present ones. Raises ServiceError where they are nowhere but in the trainer."""
        if self.transfer == "nccl":
            raise ServiceError(f"a server died ({server.log}), and with it the NCCL group: go on with --resume, or use engine.transfer=folder")
        self._load(server.url, JsonClient(server.url, server.token))

    def close(self) -> None:
        for server, client in self.state.pop("spots", ()):
            server.close()
            client.close()
        if "pool" in self.state:
            self.state.pop("pool").shutdown(cancel_futures=True)
        if "root" in self.state and not self.folder:
            shutil.rmtree(self.state.pop("root"), ignore_errors=True)
