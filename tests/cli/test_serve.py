"""`vlrl serve`: the commands of vLLM's and transformers' servers, and each server's answer about a
picture."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from PIL import Image

from vlrl.cli import serve as command
from vlrl.cli.transformers_server import limits_of
from vlrl.config import load
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Engine
from vlrl.policy import Family, Policy
from vlrl.services.request_guard import RequestGuard
from vlrl.types import Media, Prompt, Request, Row, Sampling

TOKEN = "a-token"


def tiny(folder: Path, hidden: int) -> Policy:
    """The policy of a tiny model, saved as a folder. It has 4 heads of hidden / 4."""
    spec = load(["models/tiny_qwen2_5_vl"]).tree["policy"]
    shape = spec["tiny"] | {"hidden": hidden, "layers": 2, "std": 0.2}
    policy = Policy(build(Family, spec | {"tiny": shape}, "policy"))
    policy.save(folder)
    return policy


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- which server, and its command --------------------------------------------------------------------------


def test_auto_takes_vllm_where_it_can_run_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(tmp_path, 96)
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr("vlrl.engine.vllm.common.check_installed", lambda *_: None)
    assert command.chosen("auto", tmp_path) == command.chosen("transformers", tmp_path) == "transformers"
    assert "transformers serves: engine: attention heads of 24" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="attention heads of 24, but vLLM on CPU takes 32, 64"):
        command.chosen("vllm", tmp_path)
    tiny(tmp_path / "fits", 128)
    assert command.chosen("auto", tmp_path / "fits") == "vllm"


def test_without_a_server_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"no server; pip install -e '.*\[vllm\]', or pip install 'transformers"
    ):
        command.chosen("auto", tmp_path)


def test_a_taken_port_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="--port: cannot listen on .*; give another one"):
            command.serve(tmp_path, port=taken.getsockname()[1])


def test_the_servers_listen_on_this_machine_and_flags_come_last(tmp_path: Path) -> None:
    flags = ["--tensor-parallel-size", "2"]
    pytest.importorskip("vllm")
    words = command.vllm_command(tmp_path, "mine", 8000, flags)
    assert words[-2:] == flags and words[words.index("--host") + 1] == "127.0.0.1"
    assert words[words.index("--middleware") + 1].endswith("TokenGuard")
    assert words[words.index("--allowed-media-domains") + 1].endswith(".invalid")
    words = command.transformers_command(tmp_path, 8000, flags)
    assert words[-2:] == flags and words[words.index("--host") + 1] == "127.0.0.1"


def test_the_token_is_in_the_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("vllm")
    (tmp_path / "config.json").write_text("{}")
    started: list[Any] = []
    monkeypatch.setattr(command, "vllm_problem", lambda folder: None)
    monkeypatch.setattr(command.os, "execve", lambda *given: started.extend(given))
    monkeypatch.setenv("VLLM_API_KEY", TOKEN)
    command.serve(tmp_path, port=port)
    _, words, environment = started
    assert TOKEN not in " ".join(words) and environment["VLLM_API_KEY"] == TOKEN
    assert f"OPENAI_API_KEY={TOKEN}" in capsys.readouterr().err


# --- what is refused ---------------------------------------------------------------------------------------


MESSAGE = {"role": "user", "content": "one two"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 900}}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"messages": [MESSAGE]}, ""),
        ({"messages": [{**MESSAGE, "content": [PICTURE]}]}, ""),
        ({"messages": [{**MESSAGE, "content": "a " * 30}]}, "31 tokens of text, and the model takes 20"),
        ({"messages": [MESSAGE] * 15}, "has 45 tokens of text"),  # role and content
        ({"input": "a" * 400}, "400 characters of text"),
        ({"messages": [MESSAGE], "tools": [{"type": "function"}]}, "no place for tools"),
        ({"messages": [{**MESSAGE, "content": [{"image_url": "http://127.0.0.1/x"}]}]}, "no data URI"),
        ({"messages": [{**MESSAGE, "content": [{"image_url": {"url": "/etc/passwd"}}]}]}, "no data URI"),
        ({"messages": [{**MESSAGE, "content": [{"video_url": {"url": "file:///x"}}]}]}, "no data URI"),
        ([1], "no JSON object"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_what_a_request_may_hold(body: Any, said: str) -> None:
    guard = RequestGuard(None, most=20, has_tools=False, count=lambda text: len(text.split()))
    found = guard.problem(body.encode() if isinstance(body, str) else json.dumps(body).encode())
    assert (said in found) if said else not found
    assert "\n" not in found and len(found) < 200


def test_a_body_passes_whole_and_is_bounded() -> None:
    async def echo(scope: Any, receive: Any, send: Any) -> None:
        await send((await receive())["body"])

    def answered(parts: list[bytes]) -> list[Any]:
        waiting = [{"body": part, "more_body": i + 1 < len(parts)} for i, part in enumerate(parts)]
        sent: list[Any] = []

        async def receive() -> Any:
            return waiting.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        guard = RequestGuard(echo, most=20, has_tools=True, count=len)
        asyncio.run(guard({"type": "http", "method": "POST"}, receive, send))
        return sent

    assert answered([b'{"tools"', b": [1]}"]) == [b'{"tools": [1]}']
    assert answered([b" " * (1 << 20)] * 65)[0]["status"] == 413
    assert answered([b"{"])[0]["status"] == 400


def test_what_a_model_takes_is_read_from_its_folder(tmp_path: Path) -> None:
    tiny(tmp_path, 96)
    most, has_tools = limits_of(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert most == config.get("text_config", config)["max_position_embeddings"] and not has_tools
    (tmp_path / "chat_template.jinja").write_text("{% if tools %}{{ tools }}{% endif %}")
    assert limits_of(tmp_path)[1]


# --- the servers themselves ---------------------------------------------------------------------------------


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


def status(url: str) -> int:
    """The status of a request without a token; 0 where nothing listens."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, ConnectionError):
        return 0


@dataclass(frozen=True)
class Coloured(Media):
    """A picture of one colour, whose name is the key."""

    key: str = ""
    kind: Literal["image", "video"] = "image"

    def load(self) -> Any:
        return Image.new("RGB", (56, 56), self.key)


VLLM = ["--distributed-executor-backend", "uni", "--max-num-seqs", "4"]
SERVERS = [
    pytest.param("transformers", "fastapi", [], id="transformers"),
    pytest.param("vllm", "vllm", VLLM, marks=[pytest.mark.vllm, pytest.mark.slow], id="vllm"),
]


@pytest.mark.parametrize(("engine", "package", "flags"), SERVERS)
@pytest.mark.timeout(1800)  # vLLM's start takes minutes on a busy machine
def test_a_question_about_a_picture_is_answered_as_our_engine_does(
    engine: str, package: str, flags: list[str], tmp_path: Path, port: int
) -> None:
    pytest.importorskip(package)
    policy = tiny(tmp_path / "mine", 128)
    ours = build(Engine, {"name": "hf"}, "engine").attach(policy)
    words = ["serve", str(tmp_path / "mine"), "--engine", engine, "--port", str(port), "--", *flags]
    environment = {**os.environ, "VLLM_API_KEY": TOKEN, "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "vlrl", *words], stderr=log, stdout=log, env=environment
        )
    try:
        url = f"http://127.0.0.1:{port}"
        while status(f"{url}/health") != 200:
            assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
            time.sleep(0.2)
        for color in ("red", "blue"):
            picture = Coloured(color)
            buffer = io.BytesIO()
            picture.load().save(buffer, "PNG")
            link = {"url": f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"}
            said = {"type": "text", "text": "Which color?"}
            sent = [{"role": "user", "content": [said, {"type": "image_url", "image_url": link}]}]
            model = "mine" if engine == "vllm" else str(tmp_path / "mine")
            body = {"model": model, "messages": sent, "temperature": 0, "max_tokens": 6}
            answer = post(f"{url}/v1/chat/completions", body)
            read = ({"role": "user", "content": [said, {"type": "image"}]},)
            prompt = Prompt(Row("a", "", images=(picture,)), read, images=(picture,))
            (expected,) = ours.generate([Request(prompt, Sampling(temperature=0.0, max_tokens=6))])
            assert answer["choices"][0]["message"]["content"] == expected.text
            assert answer["usage"]["prompt_tokens"] == len(policy.encode(prompt))
        assert [status(url + path) for path in ("/v1/models", "/reset", "/collective_rpc")] == [401] * 3
        link = {"type": "image_url", "image_url": {"url": f"{url}/health"}}
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        wrong: list[dict[str, Any]] = [
            {"messages": [{"role": "user", "content": [link]}]},
            {"messages": [{"role": "user", "content": "word " * 400_000}]},  # 2 MB
            {"tools": [tool]},
        ]
        with ThreadPoolExecutor() as pool:
            good = [pool.submit(post, f"{url}/v1/chat/completions", body) for _ in range(3)]
            bad = [pool.submit(post, f"{url}/v1/chat/completions", body | one) for one in wrong]
            for fault in bad:
                with pytest.raises(urllib.error.HTTPError, match="400"):
                    fault.result()
        assert all(done.result()["choices"] == answer["choices"] for done in good)
    finally:
        process.terminate()
        process.wait(180)
    assert status(f"{url}/health") == 0
