"""The policy's weights for vLLM: checkpoint names, merged adapters; the requests of an NCCL update (vLLM's
own trainer side, without collectives)."""

import copy
from types import SimpleNamespace

import engine_kit
import pytest
import torch
from peft import LoraConfig, get_peft_model

from vlrl.engine.vllm.inprocess import _plain_llvmlite
from vlrl.engine.vllm.server import VLLMServer
from vlrl.engine.vllm.weights import NCCLTransfer, PolicyWeightSource, ReplicaClients, named_weights
from vlrl.plugins.registry import ConfigError


@pytest.mark.parametrize("family", ["qwen2_5_vl", "text"])
def test_plain_weights_are_the_checkpoints(family):
    policy = engine_kit.make_policy(family)
    weights = dict(named_weights(policy.model))
    state = {name: value for name, value in policy.model.state_dict().items() if name != "lm_head.weight"}
    assert set(weights) == set(state)
    assert all(weights[name].data_ptr() == state[name].data_ptr() for name in state), "no copies"


def test_adapters_are_merged_without_changing_the_model():
    policy = engine_kit.make_policy("text")
    model = get_peft_model(
        policy.model, LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = {name: value.clone() for name, value in named_weights(model)}
    merged = copy.deepcopy(model).merge_and_unload().state_dict()
    assert set(weights) == set(merged) - {"lm_head.weight"}
    for name, value in weights.items():
        torch.testing.assert_close(value, merged[name], atol=1e-6, rtol=1e-6)
    adapted = [name for name in weights if name.endswith(("q_proj.weight", "up_proj.weight"))]
    assert len(adapted) == 6
    assert all(
        not torch.equal(
            weights[name], before[f"base_model.model.{name.removesuffix('weight')}base_layer.weight"]
        )
        for name in adapted
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Recording:
    """A client that records its requests."""

    def __init__(self):
        self.asked = []

    def post(self, path, body=None):
        self.asked.append((path, body))


def test_every_worker_has_a_rank_of_its_own():
    clients = [Recording(), Recording(), Recording()]
    replicas = ReplicaClients(clients, [2, 1, 4])
    assert replicas.world_size == 8
    replicas.init_weight_transfer_engine({"rank_offset": 1, "world_size": 8})
    given = [client.asked[0][1]["init_info"] for client in clients]
    assert given == [{"rank_offset": first, "world_size": 8} for first in (1, 3, 4)]


@pytest.mark.vllm
def test_the_requests_of_one_update(text_policy, monkeypatch):
    nccl = pytest.importorskip("vllm.distributed.weight_transfer.nccl_engine")
    opened, sent = [], {}
    monkeypatch.setattr(nccl, "open_trainer_endpoint", opened.append)

    def broadcast(self, source, meta):
        tensors = dict(source)
        assert [(m.name, m.dtype, m.shape) for m in meta] == [
            (n, t.dtype, tuple(t.shape)) for n, t in tensors.items()
        ]
        sent.update({name: tensor.clone() for name, tensor in tensors.items()})

    monkeypatch.setattr(nccl.NCCLTrainerWeightTransferEngine, "_broadcast", broadcast)
    clients = [Recording(), Recording()]
    transfer = NCCLTransfer(text_policy, ReplicaClients(clients, [2, 2]), "127.0.0.1", 4321)
    assert (opened[0].master_port, opened[0].world_size, opened[0].rank) == (4321, 5, 0)
    transfer.send(7)
    for client, first in zip(clients, (1, 3)):
        paths = [path for path, _ in client.asked]
        assert paths == [
            "/init_weight_transfer_engine", "/pause?mode=keep", "/start_weight_update", "/update_weights",
            "/finish_weight_update",
            "/reset_prefix_cache?reset_running_requests=true", "/reset_mm_cache", "/reset_encoder_cache",
            "/update_weight_version", "/resume",
        ]  # fmt: skip
        bodies = dict(client.asked)
        worker = nccl.NCCLWeightTransferInitInfo(**bodies["/init_weight_transfer_engine"]["init_info"])
        assert (worker.rank_offset, worker.world_size, worker.master_port, worker.packed) == (
            first,
            5,
            4321,
            True,
        )
        told = nccl.NCCLWeightTransferUpdateInfo(**bodies["/update_weights"]["update_info"])
        assert (
            told.names == list(sent)
            and set(told.dtype_names) == {"float32"}
            and told.shapes == [list(t.shape) for t in sent.values()]
        )
        assert bodies["/update_weight_version"] == {"new_version": "7"}
    state = text_policy.model.state_dict()
    assert set(sent) <= set(state) and all(torch.equal(tensor, state[name]) for name, tensor in sent.items())
    assert [name for name, _ in PolicyWeightSource(text_policy)] == list(sent)


def test_invalid_settings_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="known: folder, nccl"):
        VLLMServer(transfer="rdma")
    with pytest.raises(ValueError, match="1 entries for 2 replicas"):
        VLLMServer(replicas=2, devices=("1",))
    assert [
        VLLMServer(replicas=2, devices=("1", "2,3"))._environment(i)["CUDA_VISIBLE_DEVICES"] for i in (0, 1)
    ] == ["1", "2,3"]
    monkeypatch.setattr("vlrl.engine.vllm.common.check_installed", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="needs CUDA"):
        VLLMServer(transfer="nccl").check(SimpleNamespace(family=None))


def test_vars_of_llvmlites_library_can_be_read():
    """vLLM's start reads `vars` of the attributes of every module; llvmlite's library answers `__dict__` with
    a foreign function."""
    ffi = pytest.importorskip("llvmlite.binding.ffi")
    _plain_llvmlite()
    assert vars(ffi.lib).get("kernel") is None
