"""Engine `vllm_server` for several training processes, which threads play here: the first launches the
replicas, all of them ask."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from run_kit import View
from test_vllm_server import FakeServerEngine

from vlrl.engine.vllm.ranks import RemoteServer
from vlrl.engine.vllm.server import has_unlabelled
from vlrl.plugins.registry import ConfigError
from vlrl.services.http import ServiceError
from vlrl.services.process import LAUNCHER


class Meeting:
    """`gather` of two threads: each passes its values and gets those of both."""

    def __init__(self):
        self.values, self.barrier = [None, None], threading.Barrier(2, timeout=60)

    def gather(self, rank, values):
        self.values[rank] = values[0]
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found


class Both:
    """Two ranks: `do(f)` calls f(engine, rank) in a thread for each."""

    def __init__(self, policy, folder, **more):
        self.meeting, self.threads = Meeting(), ThreadPoolExecutor(2)
        self.engines = [
            FakeServerEngine(folder=str(folder), replicas=2, start_timeout=60.0, **more) for _ in range(2)
        ]
        self.run = [
            View(
                rank=rank,
                ranks=2,
                policy=policy,
                gather=lambda values, rank=rank: self.meeting.gather(rank, values),
            )
            for rank in range(2)
        ]

    def do(self, act):
        return [
            one.result(120)
            for one in [self.threads.submit(act, engine, rank) for rank, engine in enumerate(self.engines)]
        ]

    def close(self):
        for engine in reversed(self.engines):
            engine.close()
        self.threads.shutdown()


@pytest.fixture
def both(policy, tmp_path):
    made = []

    def make(**more):
        env = {"FAKE_DIED": str(tmp_path / "died"), **more.pop("env", {})}
        made.append(Both(policy, tmp_path / "server", env=env, **more))
        made[-1].do(lambda engine, rank: engine.setup(made[-1].run[rank]))
        return made[-1]

    yield make
    for one in made:
        one.close()


def sampled(tools, n=6):
    return lambda engine, rank: list(
        engine.generate([tools.request(tools.prompt(f"Q {rank} {i}"), n=2, tag=(rank, i)) for i in range(n)])
    )


def test_both_ranks_sample_from_the_first_one_s_replicas_and_see_new_weights(both, policy, tools):
    pair = both()
    first, second = (engine.state for engine in pair.engines)
    assert [server.url for server, _ in first.servers] == [server.url for server, _ in second.servers]
    assert (
        all(isinstance(server, RemoteServer) for server, _ in second.servers) and second.watch.servers == []
    )
    policy.version += 1
    try:
        pair.do(lambda engine, rank: engine.sync(policy))
        for rank, done in enumerate(pair.do(sampled(tools))):
            assert sorted((c.request.tag, c.index) for c in done) == [
                ((rank, i), k) for i in range(6) for k in range(2)
            ]
            assert {c.version for c in done} == {policy.version}
    finally:
        policy.version -= 1


def test_a_replica_that_dies_under_another_rank_s_request_comes_back_with_the_present_weights(
    both, policy, tools, tmp_path
):
    pair = both(env={"FAKE_DIE_AT": "3"}, parallel=2)
    policy.version += 1
    try:
        pair.do(lambda engine, rank: engine.sync(policy))
        done = pair.do(lambda engine, rank: sampled(tools, 8)(engine, rank) if rank else [])[1]
    finally:
        policy.version -= 1
    assert sorted((c.request.tag, c.index) for c in done) == [((1, i), k) for i in range(8) for k in range(2)]
    assert (tmp_path / "died").exists() and sum(
        server.starts for server, _ in pair.engines[0].state.servers
    ) == 3
    assert {c.version for c in done} == {policy.version + 1}


def test_a_replica_that_stays_away_is_named():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(ServiceError, match="did not answer for 0 s"):
            RemoteServer(f"http://127.0.0.1:{held.getsockname()[1]}", "", 0.0).ensure()


def test_weights_without_a_label_are_those_that_a_process_starts_from():
    answer = {
        "choices": [
            {
                "weight_versions": [
                    {"version": "3", "start": 0, "end": 1},
                    {"version": "default", "start": 1, "end": 2},
                ]
            }
        ]
    }
    assert (
        has_unlabelled(answer)
        and not has_unlabelled({"choices": [{"weight_versions": None}]})
        and not has_unlabelled({})
    )


def test_what_cannot_be_shared_is_refused_before_a_server_starts(policy, tmp_path):
    def setup(engine, hosts=("a", "a")):
        run = View(ranks=2, policy=policy, gather=lambda values: list(hosts))
        with pytest.raises(ConfigError) as raised:
            engine.setup(run)
        return str(raised.value)

    assert "engine.host: 127.0.0.1 is out of reach of the ranks on other machines (a, b)" in setup(
        FakeServerEngine(folder=str(tmp_path)), ("a", "b")
    )


def test_a_server_is_not_told_the_launcher_s_ranks(both, monkeypatch, tmp_path):
    import psutil

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "1")
    server, _ = both().engines[0].state.servers[0]
    process = psutil.Process(server.process.pid)
    assert not [
        name for one in (process, *process.children()) for name in one.environ() if name.startswith(LAUNCHER)
    ]
