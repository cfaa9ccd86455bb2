"""Started by torchrun with two processes, whose weights are spread by FSDP2 or ZeRO-3. vLLM's sender runs as
it is; in place of NCCL's broadcast, what the first process packs goes to a stand-in of a server's worker."""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).parents[1] / "policy"))

from samples import policy_of  # noqa: E402
from vllm.distributed.weight_transfer import nccl_engine  # noqa: E402
from vllm.distributed.weight_transfer.packed_tensor import pack_tensors  # noqa: E402

from vlrl.engine.vllm.weights import NCCLTransfer, ReplicaClients, named_weights  # noqa: E402
from vlrl.methods.core.trainable import LoRA  # noqa: E402

KINDS = ("fsdp2", "fsdp2 with an adapter", "fsdp2, some", "zero3", "zero3 with an adapter")
CHUNK = 50_000  # bytes: several chunks, of several tensors and of one
distributed.init_process_group("gloo")
rank = distributed.get_rank()


def made(kind: str):
    """A policy; equal in both processes."""
    policy = policy_of("qwen2_5_vl")
    torch.manual_seed(0)
    for parameter in LoRA(r=4)(policy)[0]["params"] if "adapter" in kind else ():
        parameter.data.normal_(std=0.1)
    return policy


def spread(policy, kind: str) -> None:
    """Each process keeps its share of the weights."""
    if kind.startswith("fsdp2"):
        mesh = init_device_mesh("cpu", (2,))
        for module in policy.params.net.modules():
            if type(module).__name__ == "Qwen2_5_VLDecoderLayer":
                fully_shard(module, mesh=mesh)
        policy.params.wrapped = fully_shard(policy.params.net, mesh=mesh)
        return
    import deepspeed

    settings = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    deepspeed.init_distributed("gloo")
    deepspeed.zero.Init(module=policy.model, config_dict_or_path=settings, dtype=torch.float32)


def check(kind: str) -> None:
    """A whole update; what arrives is what one process alone would send."""
    chunks: list[torch.Tensor] = []
    told: dict = {}
    asked: list[str] = []

    def broadcast(iterator, group, src, post_iter_func, **_) -> None:
        while (chunk := pack_tensors(iterator, post_iter_func, CHUNK)) is not None:
            chunks.append(chunk.packed_tensor)

    def post(path: str, body=None) -> None:
        asked.append(path)
        if path == "/update_weights":
            told.update(body["update_info"])

    nccl_engine.packed_nccl_broadcast_producer = broadcast
    nccl_engine.open_trainer_endpoint = lambda info: "the group"
    policy, alone = made(kind), made(kind)
    names = [name for name, _ in policy.model.named_parameters()]
    only = {name for name in names if ".layers.0." in name} if "some" in kind else None
    spread(policy, kind)
    replicas = ReplicaClients([SimpleNamespace(post=post)], [1]) if rank == 0 else None
    sent = NCCLTransfer(policy, replicas, "127.0.0.1", 0, rank).send(3, only)
    parameters = [p for n, p in policy.model.named_parameters() if "lora_" not in n]
    assert all(hasattr(p, "device_mesh") or not p.numel() for p in parameters), "they are shares again"
    if rank:
        assert not (sent or asked or chunks)
        return
    assert asked[0] == "/init_weight_transfer_engine" and asked[-1] == "/resume" and len(chunks) > 2
    expected = dict(named_weights(alone.model, only))
    assert list(expected) == told["names"] and sent == sum(w.nbytes for w in expected.values())
    stream = torch.cat(chunks).split([w.nbytes for w in expected.values()])
    for piece, (name, wanted), shape, dtype in zip(
        stream, expected.items(), told["shapes"], told["dtype_names"], strict=True
    ):
        got = piece.clone().view(getattr(torch, dtype)).view(shape)
        told_by = {"msg": lambda text, name=name: f"{name}: {text}"}
        torch.testing.assert_close(got, wanted, atol=1e-6 if "adapter" in kind else 0, rtol=0, **told_by)
    print(f"received {len(stream)} tensors of {kind}", flush=True)


for kind in sys.argv[1:] or KINDS:
    check(kind)
    distributed.barrier()
distributed.destroy_process_group()
