"""Weights to vLLM servers by NCCL broadcast, through vLLM 0.32's own weight-transfer engines: the trainer is rank 0, the servers' workers follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import Tensor

from vlrl.engine.named_weights import named_weights
from vlrl.services.http import JsonClient


class Replicas:
    """All servers as one, in the terms of vLLM's `VLLMWeightSyncClient`: every call goes to all at once, since all meet in the same collectives.

    `clients` must not retry: half a collective cannot be repeated. `workers` says how many ranks each server has.
    """

    def __init__(self, clients: Sequence[JsonClient], workers: Sequence[int]) -> None:
        self.clients = list(clients)
        self.offsets = [sum(workers[:i]) for i in range(len(workers))]
        self.world_size = 1 + sum(workers)

    def _all(self, call: Callable[[int, JsonClient], Any]) -> None:
        with ThreadPoolExecutor(len(self.clients)) as pool:
            for future in [pool.submit(call, i, client) for i, client in enumerate(self.clients)]:
                future.result()

    def post(self, path: str, body: Any = None) -> None:
        """The same request to every server."""
        self._all(lambda i, client: client.post(path, body))

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Every server's workers take the ranks after those of the servers before it."""
        first = init_info["rank_offset"]
        self._all(lambda i, c: c.post("/init_weight_transfer_engine", {"init_info": {**init_info, "rank_offset": first + self.offsets[i]}}))

    def shutdown_weight_transfer_engine(self) -> None:
        self.post("/shutdown_weight_transfer_engine")

    def start_weight_update(self) -> None:
        self.post("/start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.post("/finish_weight_update", None if weight_version is None else {"weight_version": weight_version})


class Weights:
    """The policy's weights as vLLM's `WeightSource`: names, types and shapes, and the tensors one after the other, adapters folded in."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, weight.dtype, tuple(weight.shape)) for name, weight in self]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return named_weights(self.policy.model)


class Link:
    """The group of trainer and servers, opened once; `send` is a whole update. A server that dies breaks it."""

    def __init__(self, policy: Any, replicas: Replicas, address: str, port: int) -> None:
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

        info = NCCLTrainerInitInfo(rank=0, master_address=address, master_port=port, world_size=replicas.world_size)
        self.policy, self.replicas = policy, replicas
        self.sender = NCCLTrainerWeightTransferEngine.trainer_init(info, client=replicas, source=Weights(policy))

    def send(self, version: int) -> None:
        """Requests under way stand still meanwhile, and go on under the new weights with their keys and values recomputed."""
        self.replicas.post("/pause?mode=keep")
        with self.policy.gather_params():
            self.sender.send_weights()
        for path in ("/reset_prefix_cache?reset_running_requests=true", "/reset_mm_cache", "/reset_encoder_cache"):
            self.replicas.post(path)
        self.replicas.post("/update_weight_version", {"new_version": str(version)})
        self.replicas.post("/resume")
