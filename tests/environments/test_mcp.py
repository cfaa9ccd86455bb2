"""Tools of a real MCP server: calls, pictures, the server's faults, no process left."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from vlrl.environments.mcp import MCP
from vlrl.plugins.episode_pool import EpisodePool
from vlrl.plugins.episodes import Action
from vlrl.plugins.registry import ConfigError
from vlrl.services.process import free_port
from vlrl.services.reaper import REAPER
from vlrl.types import Row

pytest.importorskip("mcp")
SERVER = (sys.executable, str(Path(__file__).with_name("mcp_server.py")))


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture(scope="module")
def environment():
    made = MCP(
        command=SERVER,
        allow=("add", "picture", "fails", "hangs", "dies", "endless"),
        call_seconds=20.0,
        start_seconds=60.0,
        pictures=True,
    )
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
    assert schema["description"] == "Adds two numbers." and set(schema["parameters"]["properties"]) == {
        "a",
        "b",
    }
    said, error = play(
        environment,
        call("add", a=20, b=22),
        call("fails"),
        call("add", a="x", b=1),
        call("add"),
        call("shell"),
        "done",
    )
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
    assert (
        error is None
        and said[0].media[0].load().size == (30, 20)
        and "not shown" in said[0].text
        and "seen" in said[0].text
    )
    assert len(said[1].text) < (1 << 20) + 20 and said[1].reward is None and not said[1].done, (
        "what a server asks for is text"
    )


def test_pictures_that_are_off_are_named(environment):
    from mcp_types import CallToolResult, ImageContent

    from vlrl.environments.mcp import shown

    result = CallToolResult(
        content=[ImageContent(type="image", data="AAAA", mime_type="image/png")], is_error=False
    )
    assert (
        shown(result, False).text == "[image, not shown]"
        and not MCP(command=SERVER).provides
        and environment.provides
    )


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
    assert error is None and said[0].text == "2" and environment.session() is not first, (
        "the next episode starts it again"
    )


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
    from vlrl.plugins.episodes import EnvironmentFailure

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


def test_headers_reach_the_server_and_no_message(monkeypatch, capfd, caplog):
    from vlrl.plugins.episodes import EnvironmentFailure
    from vlrl.plugins.registry import build
    from vlrl.plugins.stages import Environment

    seen = []

    class Refuses(BaseHTTPRequestHandler):
        def do_POST(self):
            seen.append(self.headers.get("Authorization"))
            self.send_error(401, explain=f"no {self.headers.get('Authorization')}")

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("MCP_TEST_TOKEN", "very-secret-4711")
    url = f"http://127.0.0.1:{server.server_address[1]}/mcp"
    made = build(
        Environment,
        {
            "name": "mcp",
            "url": url,
            "headers": {"Authorization": "Bearer ${MCP_TEST_TOKEN}"},
            "start_seconds": 20.0,
        },
    )
    try:
        with pytest.raises(EnvironmentFailure) as caught:
            made.check(None)
        assert seen and set(seen) == {"Bearer very-secret-4711"}
        said = f"{caught.value} {made!r} {caplog.text} {capfd.readouterr()}"
        assert "4711" not in said
    finally:
        made.close()
        server.shutdown()
        server.server_close()
    monkeypatch.delenv("MCP_TEST_TOKEN")
    with pytest.raises(ConfigError, match="MCP_TEST_TOKEN is not set"):
        build(
            Environment, {"name": "mcp", "url": url, "headers": {"Authorization": "Bearer ${MCP_TEST_TOKEN}"}}
        )


@pytest.mark.parametrize(
    "headers", [{"Authorization": "a\nInjected: b"}, {"Bad Name": "4711"}, {"X-Key": "\u00e9"}]
)
def test_headers_that_are_none_are_refused_without_their_value(headers):
    with pytest.raises(ValueError, match=f"headers.{next(iter(headers))}: a header has") as caught:
        MCP(url="http://127.0.0.1:1/mcp", headers=headers)
    assert next(iter(headers.values())) not in str(caught.value)
    with pytest.raises(ValueError, match="give `url`, or `env`"):
        MCP(command=("a",), headers={"X-Key": "a"})


GUARDED = """
import os, sys, uvicorn
sys.argv[1:] = []
from mcp_server import server
app = server.streamable_http_app()

async def guarded(scope, receive, send):
    wanted = ("Bearer " + os.environ["WANTED"]).encode()
    if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != wanted:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        return await send({"type": "http.response.body", "body": b""})
    await app(scope, receive, send)

uvicorn.run(guarded, port=int(os.environ["PORT"]), log_level="error")
"""


@pytest.mark.slow
def test_a_server_that_wants_a_header(tmp_path):
    port = free_port("127.0.0.1")
    (tmp_path / "guarded.py").write_text(GUARDED)
    env = {**os.environ, "PORT": str(port), "WANTED": "token-1", "PYTHONPATH": str(Path(__file__).parent)}
    process = REAPER.spawn(
        [sys.executable, str(tmp_path / "guarded.py")],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url, limit = f"http://127.0.0.1:{port}/mcp", time.monotonic() + 90
    while socket.socket().connect_ex(("127.0.0.1", port)):
        assert time.monotonic() < limit and process.poll() is None
        time.sleep(0.2)
    from vlrl.plugins.episodes import EnvironmentFailure

    try:
        with pytest.raises(EnvironmentFailure):
            MCP(url=url, headers={"Authorization": "Bearer other"}, start_seconds=30.0).session()
        made = MCP(url=url, headers={"Authorization": "Bearer token-1"}, start_seconds=30.0)
        said, error = play(made, call("add", a=20, b=22))
        made.close()
        assert error is None and said[0].text == "42"
    finally:
        REAPER.end(process)
