"""Tools of a real MCP server: calls, pictures, the server's faults, no process left."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vlrl.environments.mcp import MCP
from vlrl.episodes import Action
from vlrl.registry import ConfigError
from vlrl.services.process import free_port
from vlrl.services.reaper import REAPER
from vlrl.trainer.episode_pool import EpisodePool
from vlrl.types import Row

pytest.importorskip("mcp")
SERVER = (sys.executable, str(Path(__file__).with_name("mcp_server.py")))


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture(scope="module")
def environment():
    made = MCP(command=SERVER, allow=("add", "picture", "fails", "hangs", "dies", "endless"), call_seconds=20.0, start_seconds=60.0)
    made.check(None)
    yield made
    made.close()
    assert not REAPER.watched and not REAPER.folders


def play(environment, *turns):
    """The answers to these turns, and the error that ended the episode."""
    said = []
    with EpisodePool(environment) as pool:
        handle = pool.start("x", Row("r", "q"), 0)
        pool.collect(60.0)
        for number, text in enumerate(turns, 1):
            if handle.error is not None:
                break
            pool.step(handle, Action(text, number))
            pool.collect(60.0)
            said.append(handle.observation)
    return said, handle.error


def test_the_tools_of_a_server(environment):
    schema = next(tool["function"] for tool in environment.tools() if tool["function"]["name"] == "add")
    assert schema["description"] == "Adds two numbers." and set(schema["parameters"]["properties"]) == {"a", "b"}
    said, error = play(environment, call("add", a=20, b=22), call("fails"), call("add", a="x", b=1), call("add"), call("shell"), "done")
    assert error is None and said[0].text == "42" and said[0].calls == 1 and said[-1].done
    assert (
        "no such page" in said[1].text
        and "must be of type integer" in said[2].text
        and "missing" in said[3].text
        and "no tool 'shell'" in said[4].text
    )
    assert all(one.invalid and one.reward is None for one in said[1:5])


def test_pictures_and_long_texts(environment):
    said, error = play(environment, call("picture"), call("endless"))
    assert error is None and said[0].media[0].load().size == (30, 20) and "not shown" in said[0].text and "seen" in said[0].text
    assert len(said[1].text) < (1 << 20) + 20 and said[1].reward is None and not said[1].done, "what a server asks for is text"


@pytest.mark.slow
def test_a_server_that_hangs_or_dies_is_no_wrong_answer(environment):
    first = environment.session()
    quick = MCP(command=SERVER, call_seconds=0.5, start_seconds=60.0)
    said, error = play(quick, call("hangs"))
    assert said == [None] and "within 0.5 seconds" in str(error)
    quick.close()
    said, error = play(environment, call("dies"))
    assert said == [None] and error is not None and first.dead
    said, error = play(environment, call("add", a=1, b=1))
    assert error is None and said[0].text == "2" and environment.session() is not first, "the next episode starts it again"


@pytest.mark.slow
def test_faults_are_said_before_a_run(environment):
    with pytest.raises(ValueError, match="give one of them"):
        MCP()
    with pytest.raises(ConfigError, match="no tool 'paint'; it has add"):
        unknown = MCP(command=SERVER, allow=("paint",), start_seconds=60.0)
        try:
            unknown.check(None)
        finally:
            unknown.close()
    from vlrl.episodes import EnvironmentFailure

    with pytest.raises(EnvironmentFailure, match="did not start"):
        MCP(command=(sys.executable, "-c", "raise SystemExit(3)"), start_seconds=20.0).session()
    assert environment.toolbox()[0].name == "add"


@pytest.mark.slow
def test_a_server_on_http_and_one_per_episode():
    port = free_port("127.0.0.1")
    process = REAPER.spawn([*SERVER, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    environment = MCP(url=f"http://127.0.0.1:{port}/mcp", start_seconds=30.0)
    limit = time.monotonic() + 60
    while True:
        try:
            environment.session()
            break
        except Exception:
            assert time.monotonic() < limit
            time.sleep(0.5)
    said, error = play(environment, call("add", a=2, b=3))
    assert error is None and said[0].text == "5"
    environment.close()
    REAPER.end(process)
    before = set(REAPER.watched)
    alone = MCP(command=SERVER, isolated=True, start_seconds=60.0)
    said, error = play(alone, call("add", a=2, b=4))
    assert error is None and said[0].text == "6" and set(REAPER.watched) == before
