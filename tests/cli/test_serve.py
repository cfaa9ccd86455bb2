"""`vlrl serve`: OpenAI's chat completions with pictures, on the loopback interface, behind a token; the
built-in server, and vLLM's."""

import base64
import io
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from PIL import Image

from vlrl.cli import serve as command
from vlrl.config import load
from vlrl.interop.serve import BadRequest, ChatServer, Worker, parse_messages, parse_request
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Engine
from vlrl.policy import Family, Policy
from vlrl.types import Prompt, Request, Row, Sampling

TOKEN = "a-token"


def picture(color):
    buffer = io.BytesIO()
    Image.new("RGB", (56, 56), color).save(buffer, "PNG")
    return {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()},
    }


def asked(*parts):
    return [{"role": "user", "content": list(parts)}]


def text(words):
    return {"type": "text", "text": words}


@pytest.fixture(scope="module")
def server():
    policy = Policy(build(Family, load(["models/tiny_qwen2_5_vl"]).tree["policy"], "policy"))
    engine = build(Engine, {"name": "hf"}, "engine")
    from vlrl.eval.model import ServedModel

    engine.setup(ServedModel(policy, engine))
    with ChatServer(Worker(engine, policy), TOKEN, "tiny", limit=16) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def call(server, path, body=None, token=TOKEN, raw=None):
    """(status, body) of a request."""
    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    url = server if isinstance(server, str) else server.url.removesuffix("/v1")
    request = urllib.request.Request(
        url + path, data, {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            content = answer.read().decode()
            return answer.status, json.loads(content) if path != "/stream" and content.startswith(
                "{"
            ) else content
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_an_answer_is_that_of_the_engine(server):
    status, answer = call(
        server,
        "/v1/chat/completions",
        {"messages": asked(text("Which color?"), picture("red")), "temperature": 0, "max_tokens": 6},
    )
    assert status == 200
    messages, pictures = parse_messages(asked(text("Which color?"), picture("red")))
    prompt = Prompt(Row("a", "", images=tuple(pictures)), tuple(messages), images=tuple(pictures))
    expected = next(
        iter(server.worker.engine.generate([Request(prompt, Sampling(temperature=0.0, max_tokens=6))]))
    )
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": expected.text}
    assert choice["finish_reason"] == expected.finish and answer["model"] == "tiny"
    asked_tokens = len(server.worker.policy.encode(prompt))
    assert answer["usage"] == {
        "prompt_tokens": asked_tokens,
        "completion_tokens": len(expected.ids),
        "total_tokens": asked_tokens + len(expected.ids),
    }


def test_the_picture_is_seen(server):
    def said(color):
        body = {"messages": asked(text("Which color?"), picture(color)), "max_tokens": 12, "seed": 3}
        return call(server, "/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]

    assert said("red") == said("red") and said("red") != said("blue")


def test_n_and_stream(server):
    body = {
        "messages": [{"role": "system", "content": "Be short."}, *asked(text("Hello"))],
        "n": 3,
        "max_completion_tokens": 4,
        "seed": 1,
    }
    status, answer = call(server, "/v1/chat/completions", body)
    assert status == 200 and [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    status, streamed = call(server, "/v1/chat/completions", body | {"stream": True})
    first, last = streamed.strip().split("\n\n")
    chunk = json.loads(first.removeprefix("data: "))
    assert last == "data: [DONE]" and chunk["object"] == "chat.completion.chunk"
    assert [one["delta"]["content"] for one in chunk["choices"]] == [
        one["message"]["content"] for one in answer["choices"]
    ]


def test_requests_at_once_are_answered_each_by_its_own(server):
    answers = {}

    def ask(n):
        answers[n] = call(
            server, "/v1/chat/completions", {"messages": asked(text("Hi")), "n": n, "max_tokens": 2}
        )[1]["choices"]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(1, 6)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert {n: len(choices) for n, choices in answers.items()} == {n: n for n in range(1, 6)}


def test_only_who_has_the_token_is_answered_and_only_from_this_machine(server):
    assert server.server_address[0] == "127.0.0.1"
    body = {"messages": asked(text("Hello")), "max_tokens": 1}
    assert call(server, "/v1/chat/completions", body, token="wrong")[0] == 401
    assert call(server, "/v1/models", token="")[0] == 401
    assert call(server, "/v1/models")[1]["data"][0]["id"] == "tiny"
    assert call(server, "/health", token="")[0] == 200
    assert call(server, "/v1/embeddings", body)[0] == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "root", "content": "x"}]}, "role"),
        ({"messages": asked({"type": "input_audio"})}, "part"),
        (
            {"messages": asked({"type": "image_url", "image_url": {"url": "http://127.0.0.1/secret.png"}})},
            "data URI",
        ),
        ({"messages": asked({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}})}, "data URI"),
        (
            {"messages": asked({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})},
            "no readable picture",
        ),
        (
            {"messages": asked({"type": "image_url", "image_url": {"url": "data:image/png;base64,***"}})},
            "messages[0].content[0]",
        ),
        ({"messages": asked(text("x")), "temperature": "hot"}, "temperature"),
        ({"messages": asked(text("x")), "n": 10**9}, "n:"),
        ({"messages": asked(text("x")), "stop": [1]}, "stop"),
        ([1, 2], "object"),
    ],
)
def test_a_bad_request_is_refused_with_its_place(server, body, said):
    status, answer = call(server, "/v1/chat/completions", body)
    assert status == 400 and said in answer["error"]["message"]
    with pytest.raises(BadRequest):
        parse_request(body, 16)


def test_what_is_no_json_is_refused_and_the_server_goes_on(server):
    assert call(server, "/v1/chat/completions", raw=b"\xff{")[0] == 400
    assert call(server, "/v1/chat/completions", raw=b"[" * 100_000)[0] == 400
    assert call(server, "/v1/models")[0] == 200


def test_tokens_are_bounded_by_the_server():
    prompt, sampling, n, seed = parse_request(
        {"messages": asked(text("x")), "max_tokens": 10**6, "stop": "END"}, 16
    )
    assert (sampling.max_tokens, sampling.stop, n, seed) == (16, ("END",), 1, None)
    assert prompt.messages == ({"role": "user", "content": [{"type": "text", "text": "x"}]},)


# --- the command, and vLLM's server -------------------------------------------------------------------------


def tiny(folder, hidden):
    """The policy of a tiny model, saved as a folder. It has 4 heads of hidden / 4."""
    spec = load(["models/tiny_qwen2_5_vl"]).tree["policy"]
    policy = Policy(
        build(Family, spec | {"tiny": spec["tiny"] | {"hidden": hidden, "layers": 2, "std": 0.2}}, "policy")
    )
    policy.save(folder)
    return policy


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_auto_takes_the_built_in_server_where_vllm_cannot_run_the_model(tmp_path, monkeypatch, capsys):
    tiny(tmp_path, 96)
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr("vlrl.engine.vllm.chat_server.check_installed", lambda: None)
    assert not command.takes_vllm("auto", tmp_path) and not command.takes_vllm("hf", tmp_path)
    assert "the built-in server is used: engine: attention heads of 24" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="attention heads of 24, but vLLM on CPU takes 32, 64"):
        command.takes_vllm("vllm", tmp_path)
    tiny(tmp_path / "fits", 128)
    assert command.takes_vllm("auto", tmp_path / "fits")


def test_a_taken_port_is_refused_before_the_model_is_loaded(server, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="--port: cannot listen on .*; give another one"):
        command.serve(tmp_path, port=server.server_address[1])


def test_the_command_of_vllm_s_server_opens_no_links_and_holds_no_token(tmp_path):
    from vlrl.engine.vllm.chat_server import command as line

    words = line(tmp_path, "mine", 8000, ["--tensor-parallel-size", "2"])
    assert words[-2:] == ["--tensor-parallel-size", "2"] and words[words.index("--host") + 1] == "127.0.0.1"
    assert words[words.index("--middleware") + 1].endswith("TokenGuard") and words[
        words.index("--allowed-media-domains") + 1
    ].endswith(".invalid")


def test_the_first_error_of_a_log_is_named(tmp_path):
    from vlrl.engine.vllm.chat_server import fault

    (tmp_path / "log").write_text(
        "(Worker) ERROR ValueError: too little memory\nRuntimeError: Engine core initialization failed\n"
    )
    assert fault(tmp_path / "log") == "ValueError: too little memory"
    (tmp_path / "log").write_text("")
    assert fault(tmp_path / "log") == "(empty)"


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(1800)  # the start takes minutes on a busy machine
def test_vllm_answers_a_question_about_a_picture_as_our_engine_does(tmp_path):
    pytest.importorskip("vllm")
    policy, port = tiny(tmp_path / "mine", 128), free_port()
    words = [
        "serve",
        str(tmp_path / "mine"),
        "--engine",
        "vllm",
        "--port",
        str(port),
        "--",
        "--distributed-executor-backend",
        "uni",
        "--max-num-seqs",
        "4",
    ]
    environment = {**os.environ, "VLRL_SERVE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "vlrl", *words], stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert "loading mine into vLLM" in process.stderr.readline()
        assert process.stderr.readline() == f"serving mine at http://127.0.0.1:{port}/v1\n"
        url = f"http://127.0.0.1:{port}"
        engine = build(Engine, {"name": "hf"}, "engine").attach(policy)
        for color in ("red", "blue"):
            messages = asked(text("Which color?"), picture(color))
            status, answer = call(
                url,
                "/v1/chat/completions",
                {"model": "mine", "messages": messages, "temperature": 0, "max_tokens": 6},
            )
            parsed, pictures = parse_messages(messages)
            prompt = Prompt(Row("a", "", images=tuple(pictures)), tuple(parsed), images=tuple(pictures))
            (expected,) = engine.generate([Request(prompt, Sampling(temperature=0.0, max_tokens=6))])
            assert status == 200 and answer["choices"][0]["message"]["content"] == expected.text
            assert answer["usage"]["prompt_tokens"] == len(policy.encode(prompt))
        assert call(url, "/v1/models")[1]["data"][0]["id"] == "mine"
        assert [call_status(url, path) for path in ("/health", "/v1/models", "/collective_rpc")] == [
            200,
            401,
            401,
        ]
        link = {"type": "image_url", "image_url": {"url": f"{url}/health"}}
        assert call(url, "/v1/chat/completions", {"messages": asked(link), "max_tokens": 1})[0] == 400
    finally:
        process.terminate()
        process.wait(180)
    assert process.returncode == 0
    assert call_status(url, "/health") == 0


def call_status(url, path):
    """The status of a request without a token; 0 where nothing listens."""
    try:
        with urllib.request.urlopen(url + path, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError:
        return 0
