"""A run on a Ray cluster of two nodes: placed by Ray, and equal to an undisturbed run when a node is killed
in its midst.

`pytest tests/distributed/test_ray.py -m slow` has the killed node; the default suite a run of one rank that
the cluster places.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "reliability"))
from reliability_kit import CONFIGS, ENVIRONMENT, ROOT, WORDS, steps_of, verify_equal
from run_kit import View

from vlrl.plugins.registry import ConfigError
from vlrl.services.ray_cluster import RayServer
from vlrl.trainer.ranks.launch import Launch
from vlrl.trainer.ranks.ray_launch import RayLaunch, without

BOUND = 400  # seconds
ray = pytest.importorskip("ray", reason="needs the package ray")

pytestmark = pytest.mark.deepspeed


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without room, and two nodes with room for two ranks each."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=2)
    yield made
    ray.shutdown()
    made.shutdown()


def start(address: str, output: Path, log: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "vlrl", "train", *CONFIGS, *WORDS, f"output={output}", *words]
    path = os.pathsep.join([str(ROOT), str(ROOT / "rewards"), str(ROOT / "data")])
    environment = {**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}
    with log.open("wb") as file:
        return subprocess.Popen(
            [*command, *(["--ray", address] if address else [])],
            cwd=ROOT, env=environment, stdout=file, stderr=file,
        )  # fmt: skip


def finish(job: subprocess.Popen[bytes], log: Path) -> None:
    assert job.wait(timeout=BOUND) == 0, log.read_text()[-4000:]


def test_words_of_a_machine():
    words = ["a", "--ray", "auto", "--processes=4", "--json", "steps=2", "--nodes", "2"]
    assert without(words, ("--ray", "--processes", "--nodes")) == ["a", "--json", "steps=2"]


def test_no_cluster_is_one_line(tmp_path: Path):
    with pytest.raises(ConfigError, match="no cluster answers at '127.0.0.1:1'.*HOST:PORT"):
        RayLaunch("127.0.0.1:1", Launch(1), tmp_path).run([])


def test_the_cluster_places_a_run(cluster: Any, tmp_path: Path):
    """One rank on a node: the metrics and weights of the same run without Ray, and the summary of a run."""
    here, there = tmp_path / "here", tmp_path / "there"
    alone = start("", here, tmp_path / "alone", "--quiet", "steps=2")
    finish(start(cluster.address, there, tmp_path / "log", "--json", "steps=2"), tmp_path / "log")
    finish(alone, tmp_path / "alone")
    verify_equal(here, there)
    assert '"checkpoint"' in (tmp_path / "log").read_text()
    assert f"{there}" in (there / "ray-0.log").read_text()


def test_a_server_is_placed_and_replaced(cluster: Any, tmp_path: Path):
    """A server answers from a node; killed, it is replaced."""
    answer = "import http.server as h, sys; h.HTTPServer((sys.argv[1], int(sys.argv[2])), H).serve_forever()"
    handler = (
        "import http.server as b\n"
        "class H(b.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
    )
    server = RayServer(
        cluster.address, 0, lambda port, host: [sys.executable, "-c", handler + answer, host, str(port)],
        tmp_path / "server.log", start_timeout=60.0,
    )  # fmt: skip
    server.wait()
    assert server.exit_code() is None and (first := server.ensure()).startswith("http://")
    ray.get(server.machine.end.remote())
    assert server.exit_code() is not None
    assert server.ensure() != first and server.starts == 2
    server.close()
    assert server.exit_code() is not None


def node_with(cluster: Any, output: Path, rank: int) -> Any:
    """The node of the cluster whose raylet is an ancestor of a rank."""
    import psutil

    for node in cluster.worker_nodes:
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        for child in raylet.children(recursive=True):
            try:
                if child.environ().get("RANK") == str(rank) and f"output={output}" in child.cmdline():
                    return node
            except psutil.Error:
                continue
    return None


def kill(cluster: Any, node: Any) -> None:
    """The machine is gone at once: raylet and all that it has started."""
    import psutil

    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    for process in [*raylet.children(recursive=True), raylet]:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    cluster.remove_node(node, allow_graceful=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rank", [1, 0])
def test_a_killed_node_leaves_the_undisturbed_run(cluster: Any, tmp_path: Path, rank: int):
    """Two ranks on two nodes; one node is killed after some steps: the run goes on, on the other one alone,
    to the metrics and weights of a run that nothing happened to."""
    more = ["steps=24", "watch.checkpoint_every=4", "watch.rank_timeout=8"]
    two = ["--processes", "2", "--nodes", "2"]
    calm, output, log = tmp_path / "calm", tmp_path / "run", tmp_path / "log"
    finish(start(cluster.address, calm, tmp_path / "first", *more, *two), tmp_path / "first")
    job = start(cluster.address, output, log, *more, *two)
    until = time.monotonic() + BOUND
    while steps_of(output) < 6 and time.monotonic() < until and job.poll() is None:
        time.sleep(0.05)
    nodes = [node_with(cluster, output, index) for index in (0, 1)]
    assert None not in nodes and nodes[0] is not nodes[1], log.read_text()[-3000:]
    kill(cluster, nodes[rank])
    finish(job, log)
    assert "a node is lost; the run goes on" in log.read_text()
    verify_equal(calm, output)
    assert json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 24


def workers_of(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the package of this checkout."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "rewards"), str(ROOT / "data")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("VLRL_RAY", cluster.address)


def test_rewards_are_scored_by_workers(cluster: Any, monkeypatch: pytest.MonkeyPatch):
    """Scores, verdicts and a verifier's own error are those of the reward in this process; a killed worker is
    started again."""
    from vlrl.plugins.registry import build
    from vlrl.plugins.stages import Reward
    from vlrl.trainer.step.scoring import run_rewards
    from vlrl.types import Group, Prompt, Rollout, Row

    workers_of(cluster, monkeypatch)
    texts = ["<answer>12</answer>", "<answer>13</answer>", "no idea", "", "<answer>12<answer>" * 50]
    row = Row(id="a", question="5 + 7?", answer="12", task="sums")
    prompt = Prompt(row=row, messages=({"role": "user", "content": "5 + 7?"},))
    groups = [Group(prompt, [Rollout(prompt, [], text) for text in texts]) for _ in range(2)]
    broken = Prompt(row=Row(id="b", question="?", answer=None, task="sums"), messages=prompt.messages)
    groups.append(Group(broken, [Rollout(broken, [], texts[0])]))
    remote = build(
        Reward, {"name": "scored_on_ray", "of": {"name": "numeric"}, "workers": 2, "cpus": 0.5}, "rewards"
    )
    plain = build(Reward, {"name": "numeric"}, "rewards")
    remote.setup(View())
    failures = run_rewards(groups, {"there": remote})
    here = run_rewards(groups, {"here": plain})
    for group in groups[:2]:
        assert [one.rewards["there"] for one in group] == [one.rewards["here"] for one in group]
        right = [remote.correct(one, one.rewards["there"]) for one in group]
        assert right == [plain.correct(one, one.rewards["here"]) for one in group]
        assert right[:4] == [True, False, False, False]
    assert [type(error) for _, _, error in failures] == [type(error) for _, _, error in here] and failures
    for worker in remote.state.all:
        ray.kill(worker, no_restart=False)
    assert not run_rewards(groups[:2], {"again": remote})
    assert [one.rewards["again"] for one in groups[0]] == [one.rewards["here"] for one in groups[0]]


def test_episodes_are_played_by_workers(cluster: Any, monkeypatch: pytest.MonkeyPatch):
    """A tool answers as in this process; a killed worker is an environment's fault, and the next episode has
    a new one."""
    from vlrl.plugins.episodes import Action, EnvironmentFailure
    from vlrl.plugins.registry import build
    from vlrl.plugins.stages import Environment
    from vlrl.types import Row

    workers_of(cluster, monkeypatch)
    row = Row(id="a", question="5 + 7?", answer="12", task="sums")
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "5 + 7"}}</tool_call>'
    plain = build(Environment, {"name": "calculator"}, "environment")
    remote = build(
        Environment, {"name": "played_on_ray", "of": {"name": "calculator"}, "cpus": 0.5}, "environment"
    )
    assert remote.stops == plain.stops and remote.tools() == plain.tools()
    remote.setup(View())
    found = []
    for environment in (plain, remote):
        episode = environment.episode()
        found.append([episode.reset(row, 0), *(episode.step(Action(text)) for text in (call, "nonsense"))])
        episode.close()
    assert found[0] == found[1] and "12" in str(found[0][1])
    episode = remote.episode()
    episode.reset(row, 0)
    for worker in remote.state.workers:
        ray.kill(worker, no_restart=False)
    with pytest.raises(EnvironmentFailure, match="worker on Ray"):
        until = time.monotonic() + 60
        while time.monotonic() < until:  # the actor answers until the signal has reached it
            episode.step(Action(call))
    remote.close()
