"""The server engine: against a fake server that dies during a run, and against the real vLLM (CPU build)."""

import subprocess
import sys
import time
from pathlib import Path

import engine_kit
import httpx
import psutil
import pytest
import torch

from vlrl.engine.hf.engine import HF
from vlrl.engine.vllm.prompts import versions_of
from vlrl.engine.vllm.served_media import ServedMedia
from vlrl.engine.vllm.server import VLLMServer
from vlrl.engine.vllm.weights import stored_weights
from vlrl.services import watchdog
from vlrl.services.http import JsonClient, ServiceError
from vlrl.services.process import Server


class FakeServerEngine(VLLMServer):
    """The engine, with the command of the fake server."""

    def command(self, port):
        return [sys.executable, str(Path(__file__).parent / "fake_vllm.py"), str(port)]


def make(policy, tmp_path, **more):
    env = more.pop("env", {})
    return FakeServerEngine(
        folder=str(tmp_path / "server"), env={"FAKE_DIED": str(tmp_path / "died"), **env}, **more
    ).attach(policy)


@pytest.fixture
def servers():
    """Engines to close at the end."""
    engines = []
    yield engines
    for engine in engines:
        engine.close()


def test_completions_match_their_requests(policy, tools, tmp_path, servers):
    servers.append(engine := make(policy, tmp_path, replicas=2))
    prompts = [tools.prompt(f"Question {i}", *[tools.Noise(i)] * (i % 2)) for i in range(10)]
    done = list(engine.generate([tools.request(p, n=3, max_tokens=9, tag=i) for i, p in enumerate(prompts)]))
    assert sorted((c.request.tag, c.index) for c in done) == [(i, k) for i in range(10) for k in range(3)]
    for c in done:
        ids = policy.tokenizer(policy.render(c.request.prompt), add_special_tokens=False).input_ids
        assert (
            c.ids == [sum(ids) % 50 + len(c.request.prompt.images) + c.index] * 3
            and c.logp == [-1.0] * 3
            and c.version == 0
        )
    assert engine.state.media.folder.is_relative_to(tmp_path / "server"), "the server reads files"
    (full,) = engine.generate([tools.request(prompts[0], max_tokens=2, prefix_ids=(5, 6))])
    (more,) = engine.generate([tools.request(prompts[0], max_tokens=4, prefix_ids=(5, 6))])
    assert (
        (full.ids, full.finish) == ([5, 6], "length")
        and more.ids[:2] == [5, 6]
        and len(more.ids) == 4
        and more.logp[:2] == [-2.0, -2.0]
    )
    assert engine.score(prompts[0], [1, 2, 3]) == [-2.0] * 3
    engine.end_step(None)
    assert engine.metrics()["engine/completions"] == (31, 0)
    engine.end_step(None)
    assert engine.metrics()["engine/completions"] == (0, 0)


def test_a_dead_replica_is_replaced_and_nothing_is_lost_or_counted_twice(policy, tools, tmp_path, servers):
    servers.append(engine := make(policy, tmp_path, replicas=1, parallel=4, env={"FAKE_DIE_AT": "6"}))
    policy.version += 1
    engine.sync(policy)
    engine.sync(policy)  # as a run does where one phase follows another
    folders = sorted(p.name for p in (tmp_path / "server").glob("version-*"))
    assert folders == [f"version-{policy.version - 1}", f"version-{policy.version}"], (
        "the first stays: new processes start from it"
    )
    done = list(engine.generate([tools.request(tools.prompt(f"Q {i}"), n=2, tag=i) for i in range(16)]))
    assert sorted((c.request.tag, c.index) for c in done) == [(i, k) for i in range(16) for k in range(2)]
    assert (
        (tmp_path / "died").exists()
        and engine.counters["replaced"] == 1
        and engine.counters["completions"] == 32
    )
    assert {c.version for c in done} <= {policy.version}, "the replacement was brought to the present weights"
    policy.version -= 1


def test_a_replacement_gets_all_weights_where_the_others_got_those_that_changed(tools, tmp_path, servers):
    policy, loaded = engine_kit.make_policy("text"), tmp_path / "loaded"
    env = {"FAKE_DIE_AT": "3", "FAKE_LOADED": str(loaded)}
    servers.append(engine := make(policy, tmp_path, replicas=1, parallel=1, env=env))
    policy.model.requires_grad_(False)
    norm = policy.model.model.norm.weight.requires_grad_(True)
    whole, sizes = engine.counters["sync_bytes"], []
    for version in (1, 2):
        with torch.no_grad():
            norm.add_(1.0)
        policy.version, before = version, engine.counters["sync_bytes"]
        engine.sync(policy)
        sizes.append(engine.counters["sync_bytes"] - before)
    assert max(sizes) < 1000 + 4 * norm.numel() < whole / 10
    assert sorted(p.name for p in (tmp_path / "server").glob("*-*/")) == ["changed-2", "version-0"]
    stored = dict(stored_weights(tmp_path / "server" / "changed-2"))
    assert list(stored) == ["model.norm.weight"] and torch.equal(stored["model.norm.weight"], norm.detach())
    assert loaded.read_text() == "changed-1 changed-2"
    done = list(engine.generate([tools.request(tools.prompt(f"Q {i}"), tag=i) for i in range(6)]))
    assert len(done) == 6 and engine.counters["replaced"] == 1 and {c.version for c in done} == {2}
    assert loaded.read_text() == "version-0 changed-2"
    with torch.no_grad():
        policy.model.model.embed_tokens.weight.add_(1.0)  # a frozen one that something else wrote
    policy.version = 3
    engine.sync(policy)
    assert "model.embed_tokens.weight" in dict(stored_weights(tmp_path / "server" / "changed-3"))


def test_a_server_that_keeps_dying_raises(policy, tools, tmp_path, servers):
    servers.append(engine := make(policy, tmp_path, restarts=0, env={"FAKE_DIE_AT": "1"}))
    with pytest.raises(ServiceError, match="died 1 times"):
        list(engine.generate([tools.request(tools.prompt("Q"))]))
    with pytest.raises(ServiceError, match="ended with code"):
        Server(lambda port: [sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log").wait()


def test_unsupported_requests_are_refused(policy, tools, tmp_path, servers):
    servers.append(engine := make(policy, tmp_path))
    with pytest.raises(ValueError, match="callables"):
        list(engine.generate([tools.request(tools.prompt("Q"), processors=(lambda ids, logits: logits,))]))
    with pytest.raises(ServiceError, match="401"):
        JsonClient(engine.state.servers[0][0].url, "wrong").post("/collective_rpc", {})


def test_closing_ends_the_process(policy, tmp_path):
    engine = make(policy, tmp_path)
    process = engine.state.servers[0][0].process
    begun = time.monotonic()
    engine.close()
    assert time.monotonic() - begun < watchdog.GRACE, "a server that ends on SIGTERM is not waited for"
    assert process.poll() is not None and engine.close() is None


def test_killing_the_owner_ends_the_server_and_its_workers(tmp_path):
    worker = "import time; time.sleep(600)"
    server = (
        f"import subprocess, sys; w = subprocess.Popen([sys.executable, '-c', {worker!r}]); print(w.pid, "
        "flush=True); w.wait()"
    )
    owner = f"""
import sys, time
from pathlib import Path
from vlrl.services.process import Server
server = Server(lambda port: [sys.executable, "-c", {server!r}], Path({str(tmp_path / "log")!r}))
print(server.process.pid, flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True)
    watchdog = int(process.stdout.readline())
    end = time.monotonic() + 60
    while not (said := (tmp_path / "log").read_text().split()) and time.monotonic() < end:
        time.sleep(0.05)
    process.kill()
    process.communicate()
    while alive := [
        pid
        for pid in (watchdog, int(said[0]))
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]:
        assert time.monotonic() < end, alive
        time.sleep(0.05)


def test_versions_by_token():
    spans = [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 4}]
    assert versions_of(spans, 1, 5, 4) == [4, 3, 3, 4, 4]
    assert versions_of(spans[:1], 0, 2, 9) == 3 and versions_of(None, 0, 3, 7) == 7


@pytest.mark.vllm
@pytest.mark.timeout(1800)  # a server's start takes minutes on a busy machine
def test_the_real_server(tools, tmp_path):
    pytest.importorskip("vllm")
    torch.set_num_threads(1)
    policy = engine_kit.make_policy("qwen2_5_vl", hidden=128, layers=2)
    arguments = ("--max-num-seqs", "16", "--distributed-executor-backend", "uni")
    engine = VLLMServer(folder=str(tmp_path / "server"), max_model_len=1024, arguments=arguments).attach(
        policy
    )
    try:
        ours = HF().attach(policy)
        prompts = [
            tools.prompt("What is it?"),
            tools.prompt("Look", tools.Noise(0)),
            tools.prompt("Compare", tools.Noise(1), tools.Noise(2, (84, 56))),
            tools.prompt("When?", tools.Noise(3, frames=6)),
            tools.prompt("Is it there?", tools.Noise(4), tools.Noise(5, (84, 56), frames=4)),
        ]

        def check_agreement():
            requests = [tools.request(p, temperature=0.0, max_tokens=6, tag=i) for i, p in enumerate(prompts)]
            expected = {c.request.tag: c for c in ours.generate(requests)}
            for c in engine.generate(requests):
                assert c.ids == expected[c.request.tag].ids and c.version == policy.version
                assert c.logp == pytest.approx(expected[c.request.tag].logp, abs=1e-3)

        check_agreement()
        engine.state.media = ServedMedia()  # as for servers on another machine
        check_agreement()
        server = engine.state.servers[0][0]
        assert httpx.post(f"{server.url}/collective_rpc", json={"method": "vlrl_load"}).status_code == 401
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.add_(
                    0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
                )
        policy.version += 1
        engine.sync(policy)
        check_agreement()
    finally:
        engine.close()
