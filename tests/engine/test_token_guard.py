"""Who may talk to the servers that a run starts, and how much they may say."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from vlrl.engine.openai import OpenAI, text_of
from vlrl.engine.vllm.served_media import IN_SERVER
from vlrl.engine.vllm.server import VLLMServer
from vlrl.services import token_guard
from vlrl.services.http import JsonClient, ServiceError
from vlrl.services.process import is_loopback
from vlrl.services.token_guard import BODY_VARIABLE, TOKEN_VARIABLE, TokenGuard

GOOD = (b"authorization", b"Bearer right")


async def app(scope, receive, send):
    """Echoes the length of a request, or of one message."""
    if scope["type"] == "http":
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(size).encode()})
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        message = await receive()
        await send({"type": "websocket.send", "text": message["text"]})


def talk(monkeypatch, scope, *messages, most=10):
    monkeypatch.setenv(TOKEN_VARIABLE, "right")
    monkeypatch.setenv(BODY_VARIABLE, str(most))
    waiting, said = list(messages), []

    async def receive():
        return waiting.pop(0)

    async def send(message):
        said.append(message)

    asyncio.run(TokenGuard(app)(scope, receive, send))
    return said


def http(*headers, path="/v1/x", method="POST"):
    return {"type": "http", "path": path, "method": method, "headers": list(headers)}


BODY = {"type": "http.request", "body": b"12345", "more_body": False}
HALF = {**BODY, "more_body": True}


@pytest.mark.parametrize(
    ("scope", "messages", "status"),
    [
        (http(GOOD), [BODY], 200),
        (http(), [BODY], 401),
        (http((b"authorization", b"Bearer wrong")), [BODY], 401),
        (http((b"authorization", b"right")), [BODY], 401),
        (http(GOOD, GOOD), [BODY], 401),
        (http((b"Authorization", b"Bearer right")), [BODY], 200),
        (http(path="/health", method="GET"), [{**BODY, "body": b""}], 200),
        (http(path="/health"), [BODY], 401),
        (http(path="/collective_rpc"), [BODY], 401),
        (http(GOOD, (b"content-length", b"11")), [BODY], 413),
        (http(GOOD, (b"content-length", b"10")), [BODY], 200),
        (http(GOOD, (b"content-length", b"-1")), [BODY], 413),
        (http(GOOD), [HALF, BODY], 200),
        (http(GOOD), [HALF, HALF, BODY], 413),
    ],
)
def test_http(monkeypatch, scope, messages, status):
    said = talk(monkeypatch, scope, *messages)
    assert said[0]["status"] == status and len(said) == 2


def test_websockets(monkeypatch):
    opened, text = {"type": "websocket.connect"}, {"type": "websocket.receive", "text": "hello"}
    scope = {"type": "websocket", "path": "/v1/realtime", "headers": [GOOD]}
    assert [message["type"] for message in talk(monkeypatch, scope, opened, text)] == [
        "websocket.accept",
        "websocket.send",
    ]
    refused = talk(monkeypatch, {**scope, "headers": []}, opened, text)
    assert refused == [{"type": "websocket.close", "code": 1008, "reason": "unauthorized"}]
    assert talk(monkeypatch, {**scope, "path": "/health", "headers": []}, opened, text) == refused
    assert talk(monkeypatch, scope, opened, {**text, "text": "x" * 11})[-1]["code"] == 1009
    assert talk(monkeypatch, {"type": "lifespan"}) == [] and talk(monkeypatch, {"type": "other"}) == []


def test_a_real_server_refuses_strangers(tmp_path):
    """uvicorn with FastAPI's own router below the guard, over HTTP and websockets."""
    pytest.importorskip("uvicorn")
    pytest.importorskip("starlette")
    websockets = pytest.importorskip("websockets.sync.client")
    (tmp_path / "guarded.py").write_text(
        "from starlette.applications import Starlette\nfrom starlette.responses import PlainTextResponse\n"
        "from starlette.routing import Route, WebSocketRoute\nfrom vlrl.services.token_guard import "
        "TokenGuard\n"
        "async def size(request): return PlainTextResponse(str(len(await request.body())))\n"
        "async def echo(ws):\n    await ws.accept()\n    await ws.send_text(await ws.receive_text())\n    "
        "await ws.close()\n"
        "app = Starlette(routes=[Route('/x', size, methods=['POST']), Route('/health', size), "
        "WebSocketRoute('/ws', echo)])\n"
        "app.add_middleware(TokenGuard)\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = str(Path(token_guard.__file__).parents[2])
    env = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{tmp_path}:{root}",
        TOKEN_VARIABLE: "right",
        BODY_VARIABLE: "1000",
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "guarded:app", "--port", str(port), "--log-level", "error"],
        env=env,
        cwd=tmp_path,
    )
    try:
        client, end = JsonClient(f"http://127.0.0.1:{port}", "right"), time.monotonic() + 60
        while client.status() != 200 and time.monotonic() < end:
            time.sleep(0.1)
        assert client.post("/x", {"a": 1}) == 7
        assert JsonClient(client.url, "wrong").status("/x") == 401
        with pytest.raises(ServiceError, match="413"):
            client.post("/x", "y" * 1000)
        chunks = httpx.post(
            f"{client.url}/x",
            headers={"Authorization": "Bearer right"},
            content=(b"z" * 400 for _ in range(4)),
        )
        assert chunks.status_code == 413
        with websockets.connect(
            f"ws://127.0.0.1:{port}/ws", additional_headers={"Authorization": "Bearer right"}, proxy=None
        ) as ws:
            ws.send("hello")
            assert ws.recv() == "hello"
        with pytest.raises(Exception, match="403"):
            websockets.connect(f"ws://127.0.0.1:{port}/ws", proxy=None)
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost", "127.1.2.3"])
def test_loopback(host):
    assert is_loopback(host)


def test_servers_listen_on_loopback_unless_told(caplog):
    assert is_loopback(VLLMServer().host)
    assert VLLMServer(max_body_mb=3)._environment(0)[BODY_VARIABLE] == str(3 << 20)
    with pytest.raises(ValueError, match="max_body_mb is 0"):
        VLLMServer(max_body_mb=0)
    assert (
        not is_loopback("0.0.0.0")
        and not is_loopback("10.0.0.3")
        and not is_loopback("node1.example")
        and not is_loopback("")
    )
    flags = Path(token_guard.__file__).parents[1].joinpath("engine", "vllm", "server.py").read_text()
    assert '"middleware": f"{IN_SERVER}.TokenGuard"' in flags
    in_server = (
        Path(token_guard.__file__)
        .parents[1]
        .joinpath(*IN_SERVER.split(".")[1:])
        .with_suffix(".py")
        .read_text()
    )
    assert f"from {token_guard.__name__} import TokenGuard" in in_server
    assert f"{token_guard.__name__}.TokenGuard" == token_guard.GUARD


class Answers(BaseHTTPRequestHandler):
    """Answers by path: a redirect, a large answer, no JSON."""

    seen: list = []

    def log_message(self, *_):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        type(self).seen.append((self.path, self.headers.get("Authorization")))
        if "redirect" in self.path:
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            return
        body = {"/large": b"[" + b"1," * 5000 + b"1]", "/deep": b"[" * 100_000, "/html": b"<html>"}.get(
            self.path.removesuffix("/chat/completions"), b"{}"
        )
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST


@pytest.fixture
def answers():
    server = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Answers.seen = []
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_answers_are_bounded_and_redirects_are_not_followed(answers, monkeypatch):
    client = JsonClient(answers, "secret", max_answer=1000)
    assert client.post("/fine") == {}
    for path, problem in {
        "/large": "more than 1000 bytes",
        "/deep": "no JSON|more than",
        "/html": "no JSON",
        "/redirect": "status 302",
    }.items():
        with pytest.raises(ServiceError, match=problem):
            client.post(path)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setattr("vlrl.engine.openai.MAX_ANSWER", 1000)
    for path, problem in {"/redirect": "HTTP 302", "/large": "more than 1000 bytes"}.items():
        with pytest.raises(RuntimeError, match=problem):
            OpenAI(url=answers + path, model="m", retries=0)._post("chat/completions", {}, text_of)
    assert not [path for path, _ in Answers.seen if path == "/elsewhere"]
