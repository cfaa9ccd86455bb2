"""The policy's weights for vLLM: under checkpoint names, loaded in vLLM's worker, or broadcast to servers by
NCCL."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from vlrl.engine.vllm.changes import adapted_layers
from vlrl.policy.checkpoint_names import checkpoint_name
from vlrl.policy.experts import has_experts
from vlrl.policy.sharding import is_main, whole, whole_shares
from vlrl.services.failures import EngineMismatchError
from vlrl.services.http import JsonClient
from vlrl.services.lazy import Tensor, no_grad, torch


@no_grad
def named_weights(
    model: Any, only: Collection[str] | None = None, gather: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """(checkpoint name, tensor) of every parameter (of those in `only`), one at a time, without tied heads.
    LoRA deltas are added to a copy of their layer's weight; each expert of a mixture has names of its own.

    Other tensors are the policy's own memory: copy them before the next optimizer step (or before the
    policy's `gather_params` ends). `gather`: a share of a weight is made whole for its turn (a collective).
    """
    for name, parameter, layer in to_read(model, only):
        adapters = () if layer is None else adapters_on(layer)
        with whole_shares(parameter, layer) if gather else nullcontext():
            weight = whole(parameter.data, gather)
            for adapter in adapters:
                delta = whole(layer.get_delta_weight(adapter), gather)
                weight = weight.float() + delta.float()  # in float32: the engine rounds the sum once
            if hasattr(parameter, "ds_id") and gather and not adapters:
                weight = weight.clone()  # DeepSpeed takes the whole weight's memory back
        yield from by_expert(name, weight)


def weight_shapes(model: Any, only: Collection[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """`named_weights` on the meta device: nothing is gathered or added."""
    for name, parameter, layer in to_read(model, only):
        dtype = torch.float32 if layer is not None and adapters_on(layer) else parameter.dtype
        shape = getattr(parameter, "ds_shape", parameter.shape)
        yield from by_expert(name, torch.empty(shape, dtype=dtype, device="meta"))


def to_read(model: Any, only: Collection[str] | None) -> Iterator[tuple[str, Tensor, Any]]:
    """(checkpoint name, parameter, PEFT's layer around it or None) of what is sent of a model."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    released = checkpoint_name(model)
    adapted = adapted_layers(model)
    for name, parameter in model.named_parameters():
        if "lora_" in name or "modules_to_save.default" in name or (only is not None and name not in only):
            continue
        plain = (
            name.removeprefix("base_model.model.")
            .replace(".base_layer", "")
            .replace(".original_module.", ".")
        )
        if plain not in tied:
            yield released(plain), parameter, adapted.get(name)


def adapters_on(layer: Any) -> Sequence[str]:
    """The adapters of one of PEFT's layers that act beside its weight."""
    return () if layer.disable_adapters or layer.merged else layer.active_adapters


def by_expert(name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The matrices of a mixture's experts, which transformers holds as one tensor (experts, out, in) a layer,
    under the names by expert that every loader of vLLM reads; other weights as they are."""
    place, _, kind = name.rpartition(".")
    if not place.endswith(".experts") or weight.dim() != 3:
        yield name, weight
        return
    for e, matrix in enumerate(weight):
        parts = (
            zip(("gate_proj", "up_proj"), matrix.chunk(2)) if kind == "gate_up_proj" else ((kind, matrix),)
        )
        for part, values in parts:
            yield f"{place}.{e}.{part}.weight", values


def save_changed(policy: Any, folder: str | Path, names: Collection[str]) -> None:
    """Write these parameters alone, as `stored_weights` reads them (the main process does)."""
    with policy.gather_params():
        if is_main():
            Path(folder).mkdir(parents=True, exist_ok=True)
            weights = {name: weight.contiguous() for name, weight in named_weights(policy.model, names)}
            import_module("safetensors.torch").save_file(weights, Path(folder) / CHANGED)


def save_for_vllm(policy: Any, folder: str | Path) -> None:
    """`policy.save`, with a mixture's weights under the names that `named_weights` gives them: some releases
    have the experts' matrices transposed, which vLLM 0.32 does not turn back on a CPU."""
    policy.save(folder)
    if not has_experts(policy.model):
        return
    with policy.gather_params():
        if is_main():
            for path in Path(folder).glob("model*.safetensors*"):
                path.unlink()
            weights = {name: weight.contiguous() for name, weight in named_weights(policy.model)}
            import_module("safetensors.torch").save_file(
                weights, Path(folder) / "model.safetensors", {"format": "pt"}
            )


def stored_weights(folder: str | Path | None) -> Iterator[tuple[str, Tensor]]:
    """The weights of a folder that `save_changed` wrote."""
    with import_module("safetensors").safe_open(f"{folder}/{CHANGED}", "pt") as file:
        for name in file.keys():  # noqa: SIM118 (no mapping)
            yield name, file.get_tensor(name)


CHANGED = "changed.safetensors"
NEVER = -1e4  # a logit whose share of a softmax is 0, and which fits into float16 and JSON


class WeightLoader:
    """Methods that vLLM adds to its worker class (`worker_extension_cls`): making its model compute what the
    trainer's does, and loading weights."""

    model_runner: Any

    def vlrl_prepare(self, runs: Sequence[Sequence[int]], patch: str = "") -> None:
        """Make the model compute what the trainer's does; once per worker, before its first request.

        The ids of `runs`, [first, one after the last], are taken out of every log-prob: no logits processor
        sees those of a prompt. `patch` is the family's `engine_patch`.
        """
        # it warns about each layer without new weights, which are all frozen ones
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
        model = self.model_runner.get_model()
        if patch:
            module, _, function = patch.partition(":")
            getattr(import_module(module), function)(model)
        if not runs:
            return
        inner: Callable[..., Tensor | None] = model.compute_logits
        ids = torch.tensor([i for first, end in runs for i in range(first, end)], dtype=torch.long)

        def compute_logits(*args: Any, **kwargs: Any) -> Tensor | None:
            logits = inner(*args, **kwargs)
            return None if logits is None else logits.index_fill_(-1, ids.to(logits.device), NEVER)

        model.compute_logits = compute_logits

    def vlrl_load(self, weights: Any = None, folder: str | None = None, part: bool = False) -> None:
        """Load weights from an iterator of (name, tensor) in this process, or from a checkpoint folder.
        `part`: they are some of the model's; layers without any of them stay as they are."""
        runner = self.model_runner
        if not part:
            runner.reload_weights(weights_iterator=weights, weights_path=folder)
            self._pack(runner.get_model().modules())
            return
        self._pack(self._load_part(stored_weights(folder) if weights is None else weights))
        runner.reset_lora_state()
        runner.reset_encoder_cache()
        runner.reset_mm_cache()

    def _load_part(self, weights: Iterable[tuple[str, Tensor]]) -> list[Any]:
        """Load some weights. Returns the layers that got any. Raises EngineMismatchError for a layer that got
        only a part of its weights: vLLM would make up the rest."""
        from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
        from vllm.model_executor.model_loader import reload

        model, info = self.model_runner.get_model(), reload.layerwise.get_layerwise_info
        reload.initialize_layerwise_reload(model)
        model.load_weights(weights)
        waiting = {name: module for name, module in model.named_modules() if info(module).can_load()}
        partial = [
            name
            for name, module in waiting.items()
            if 0 < info(module).load_numel < (info(module).load_numel_total or 0)
            and not isinstance(module, VocabParallelEmbedding)  # its padding is in no checkpoint
        ]
        if partial:
            raise EngineMismatchError(
                f"engine: a sync has only some of the weights of vLLM's layers {', '.join(partial[:3])}; set "
                "engine.send_all to true"
            )
        stay = {id(module) for module in waiting.values() if not info(module).load_numel}
        reload.finalize_layerwise_reload(model, self.model_runner.model_config)
        return [module for module in model.modules() if id(module) not in stay]

    def _pack(self, loaded: Iterable[Any]) -> None:
        """What a reload leaves out, once: of the head in any case, of experts among the `loaded` modules."""
        # A head that is tied to the embedding gets no weights of its own in a reload, whole or in part, and
        # on a CPU it computes from a repacked copy. Packing leaves its weight as it is.
        for module in self.model_runner.get_model().modules():
            if (
                type(module).__name__ == "ParallelLMHead"
                and method_of(module) == "UnquantizedEmbeddingMethod"
            ):
                module.quant_method.process_weights_after_loading(module)
        # vLLM 0.32 packs experts for its kernel on a CPU at the first load alone; those it rounds, at each.
        for module in loaded:
            if method_of(module) == "UnquantizedFusedMoEMethod" and module.w13_weight.device.type == "cpu":
                module.quant_method.moe_kernel.fused_experts.process_weights_after_loading(module)

    def vlrl_adapter(self, number: int) -> tuple[int, list[str]]:
        """How many modules an adapter is bound to, and the adapter's modules that the model lacks (of several
        that vLLM fuses, it names the fused one)."""
        manager = self.model_runner.lora_manager._adapter_manager
        adapter = manager.get_adapter(number)
        bound = [name for name in manager.modules if manager._get_lora_layer_weights(adapter, name)]
        return len(bound), sorted(set(adapter.loras) - set(manager.modules))

    def vlrl_model(self) -> Any:
        """The worker's model; in this process only."""
        return self.model_runner.get_model()

    def vlrl_load_some(self, weights: Any) -> None:
        """Load (name, tensor) pairs into the model as it is; the other weights stay."""
        self.model_runner.get_model().load_weights(weights)


def method_of(module: Any) -> str:
    """The class of vLLM's that says how a layer multiplies; "" for other modules."""
    method = getattr(module, "quant_method", None)
    return "" if method is None else type(method).__name__


class ReplicaClients:
    """All servers as one client, with the interface of vLLM's `VLLMWeightSyncClient`: every call goes to all
    servers at once.

    They must be called together, because all take part in the same collectives. `clients` must not retry:
    half a collective cannot be repeated. `workers` is the number of ranks of each server.
    """

    def __init__(self, clients: Sequence[JsonClient], workers: Sequence[int]) -> None:
        self.clients = list(clients)
        self.offsets = [sum(workers[:i]) for i in range(len(workers))]
        self.world_size = 1 + sum(workers)

    def _call_all(self, call: Callable[[int, JsonClient], Any]) -> None:
        with ThreadPoolExecutor(len(self.clients)) as pool:
            for future in [pool.submit(call, i, client) for i, client in enumerate(self.clients)]:
                future.result()

    def post(self, path: str, body: Any = None) -> None:
        """The same request to every server."""
        self._call_all(lambda i, client: client.post(path, body))

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Every server's workers get the ranks after those of the servers before it."""
        first = init_info["rank_offset"]
        self._call_all(
            lambda i, c: c.post(
                "/init_weight_transfer_engine",
                {"init_info": {**init_info, "rank_offset": first + self.offsets[i]}},
            )
        )

    def shutdown_weight_transfer_engine(self) -> None:
        self.post("/shutdown_weight_transfer_engine")

    def start_weight_update(self) -> None:
        self.post("/start_weight_update")

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        self.post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.post(
            "/finish_weight_update", None if weight_version is None else {"weight_version": weight_version}
        )


class PolicyWeightSource:
    """The policy's weights as vLLM's `WeightSource`: names, dtypes and shapes, and the tensors in the same
    order, adapters merged; those of the parameters in `only` (None: all). `bytes` is their size."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.only: Collection[str] | None = None
        self.bytes = 0

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        shapes = weight_shapes(self.policy.model, self.only)
        found = [(ParamMeta(name, one.dtype, tuple(one.shape)), one.nbytes) for name, one in shapes]
        self.bytes = sum(size for _, size in found)
        return [meta for meta, _ in found]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return named_weights(self.policy.model, self.only, gather=True)


class NCCLTransfer:
    """NCCL broadcast through vLLM 0.32's weight-transfer engines: the first training process sends, the
    servers' workers follow. Others (`rank`) take part where weights are shared over ranks, which makes each
    whole in its turn; they have no `replicas`.

    The group is opened once; `send` is one update. A server that dies breaks it.
    """

    def __init__(
        self, policy: Any, replicas: ReplicaClients | None, address: str, port: int, rank: int = 0
    ) -> None:
        from vllm.distributed.weight_transfer.nccl_engine import (
            NCCLTrainerInitInfo,
            NCCLTrainerWeightTransferEngine,
        )

        size = replicas.world_size if replicas else 1
        info = NCCLTrainerInitInfo(rank=rank, master_address=address, master_port=port, world_size=size)
        self.replicas = replicas
        self.source = PolicyWeightSource(policy)
        source: Any = self.source  # of vLLM's abstract class, which is not imported at the top
        client: Any = replicas
        self.sender = NCCLTrainerWeightTransferEngine.trainer_init(info, client=client, source=source)

    def send(self, version: int, only: Collection[str] | None = None) -> int:
        """Send the parameters in `only` (None: all), a collective of the training processes. Running requests
        are paused meanwhile; they continue under the new weights, their keys and values recomputed. Returns
        the bytes sent."""
        self.source.only = only
        self._post("/pause?mode=keep")
        self.sender.send_weights()
        self._post("/reset_prefix_cache?reset_running_requests=true")
        self._post("/reset_mm_cache")
        self._post("/reset_encoder_cache")
        self._post("/update_weight_version", {"new_version": str(version)})
        self._post("/resume")
        return self.source.bytes if self.replicas else 0

    def _post(self, path: str, body: Any = None) -> None:
        if self.replicas:
            self.replicas.post(path, body)
