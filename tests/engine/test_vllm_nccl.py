"""Weights by NCCL: what the servers are told, by vLLM's own trainer side, with the collectives left out (there is no GPU here)."""

import pytest
import torch

from vlrl.engine.vllm.nccl import Replicas, Weights
from vlrl.engine.vllm.server import VLLMServer
from vlrl.registry import ConfigError


class Recording:
    """A client that keeps what it is asked."""

    def __init__(self):
        self.asked = []

    def post(self, path, body=None):
        self.asked.append((path, body))


def test_every_worker_has_a_rank_of_its_own():
    clients = [Recording(), Recording(), Recording()]
    replicas = Replicas(clients, [2, 1, 4])
    assert replicas.world_size == 8
    replicas.init_weight_transfer_engine({"rank_offset": 1, "world_size": 8})
    given = [client.asked[0][1]["init_info"] for client in clients]
    assert given == [{"rank_offset": first, "world_size": 8} for first in (1, 3, 4)]


@pytest.mark.vllm
def test_a_whole_update_as_the_servers_see_it(text_policy, monkeypatch):
    nccl = pytest.importorskip("vllm.distributed.weight_transfer.nccl_engine")
    from vlrl.engine.vllm.nccl import Link

    opened, sent = [], {}
    monkeypatch.setattr(nccl, "open_trainer_endpoint", opened.append)

    def broadcast(self, source, meta):
        tensors = dict(source)
        assert [(m.name, m.dtype, m.shape) for m in meta] == [(n, t.dtype, tuple(t.shape)) for n, t in tensors.items()]
        sent.update({name: tensor.clone() for name, tensor in tensors.items()})

    monkeypatch.setattr(nccl.NCCLTrainerWeightTransferEngine, "_broadcast", broadcast)
    clients = [Recording(), Recording()]
    link = Link(text_policy, Replicas(clients, [2, 2]), "127.0.0.1", 4321)
    assert (opened[0].master_port, opened[0].world_size, opened[0].rank) == (4321, 5, 0)
    link.send(7)
    for client, first in zip(clients, (1, 3)):
        paths = [path for path, _ in client.asked]
        assert paths == [
            "/init_weight_transfer_engine", "/pause?mode=keep", "/start_weight_update", "/update_weights", "/finish_weight_update",
            "/reset_prefix_cache?reset_running_requests=true", "/reset_mm_cache", "/reset_encoder_cache", "/update_weight_version", "/resume",
        ]  # fmt: skip
        bodies = dict(client.asked)
        worker = nccl.NCCLWeightTransferInitInfo(**bodies["/init_weight_transfer_engine"]["init_info"])
        assert (worker.rank_offset, worker.world_size, worker.master_port, worker.packed) == (first, 5, 4321, True)
        told = nccl.NCCLWeightTransferUpdateInfo(**bodies["/update_weights"]["update_info"])
        assert told.names == list(sent) and set(told.dtype_names) == {"float32"} and told.shapes == [list(t.shape) for t in sent.values()]
        assert bodies["/update_weight_version"] == {"new_version": "7"}
    state = text_policy.model.state_dict()
    assert set(sent) <= set(state) and all(torch.equal(tensor, state[name]) for name, tensor in sent.items())
    assert [name for name, _ in Weights(text_policy)] == list(sent)


def test_what_cannot_be_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="known: folder, nccl"):
        VLLMServer(transfer="rdma")
    with pytest.raises(ValueError, match="1 entries for 2 replicas"):
        VLLMServer(replicas=2, devices=("1",))
    assert [VLLMServer(replicas=2, devices=("1", "2,3"))._environment(i)["CUDA_VISIBLE_DEVICES"] for i in (0, 1)] == ["1", "2,3"]
    monkeypatch.setattr("vlrl.engine.vllm.server.check_installed", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="needs CUDA"):
        VLLMServer(transfer="nccl").check(None)
