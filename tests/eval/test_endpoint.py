"""Suites on an OpenAI-compatible endpoint: requests, retries, refusals."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from vlrl.engine.openai import OpenAI, api_messages
from vlrl.eval.prompts import build_prompt
from vlrl.plugins.registry import ConfigError
from vlrl.types import Prompt, Request, Row, Sampling


class Endpoint(BaseHTTPRequestHandler):
    """Fails once, then answers with the last word of the question and the number of pictures."""

    seen: list = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Endpoint.seen.append((body, self.headers.get("Authorization")))
        if len(Endpoint.seen) == 1:
            self.send_response(503)
            self.end_headers()
            return
        if body["model"] == "wrong":
            self.send_response(404)
            self.end_headers()
            self.wfile.write(b"no such model")
            return
        content = body["messages"][-1]["content"]
        pictures = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
        assert all(url.startswith("data:image/png;base64,") for url in pictures)
        reply = {
            "choices": [
                {
                    "message": {"content": f"{content[-1]['text'].split()[-1]} {len(pictures)}"},
                    "finish_reason": "length",
                }
            ]
        }
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(reply).encode())

    def log_message(self, *arguments):
        pass


def test_any_compatible_endpoint(fixture_data, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    monkeypatch.setenv("VLRL_TEST_KEY", "secret")
    engine = OpenAI(url=url, model="m", key_env="VLRL_TEST_KEY", wait=0.01, parallel=1)
    prompt = build_prompt(fixture_data("vsi_bench"), 0).prompt
    (completion,) = engine.generate(
        [Request(prompt, Sampling(temperature=0.5, max_tokens=7, stop=("\n",)), seed=5)]
    )
    assert completion.text == "phrase. 16" and completion.finish == "length"  # the video's sixteen frames
    body, key = Endpoint.seen[-1]
    assert (body["temperature"], body["max_tokens"], body["seed"], body["stop"], key) == (
        0.5,
        7,
        5,
        ["\n"],
        "Bearer secret",
    )
    with pytest.raises(RuntimeError, match="HTTP 404: no such model"):
        list(OpenAI(url=url, model="wrong", wait=0.01).generate([Request(prompt, Sampling())]))
    server.shutdown()
    with pytest.raises(ConfigError, match="cannot load weights"):
        engine.sync(None)
    with pytest.raises(ConfigError, match=r"engine\.model"):
        OpenAI(url=url)
    with pytest.raises(ConfigError, match="must begin with http"):
        OpenAI(url="ftp://x", model="m")


def test_a_prompt_without_media_needs_no_policy():
    prompt = Prompt(Row("a", "hi"), ({"role": "user", "content": "hi"},))
    assert api_messages(prompt) == [{"role": "user", "content": "hi"}]
