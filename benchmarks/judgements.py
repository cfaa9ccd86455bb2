"""Judgements through an endpoint that fails: how many are lost, or counted although they failed.

    python -m benchmarks.judgements 100000 0.03

An HTTP server in this process answers a yes or a no that the question tells, and fails a share of all calls:
429, 500, a connection that is closed, and HTML in place of JSON. The verdicts are compared with what the
server must say; then the same questions are asked again, from the cache.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks import cli
from vlrl.beside.judge import Judge, JudgeConfig, Question
from vlrl.beside.service import ModelService
from vlrl.beside.templates import load_template
from vlrl.engine.openai import OpenAI

FAULTS = (429, 500, "closed", "html")


class FaultyEndpoint(ThreadingHTTPServer):
    """Answers whether the number in a question is even; fails a share of all calls."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, share: float) -> None:
        super().__init__(("127.0.0.1", 0), FaultyHandler)
        self.share, self.draws, self.lock = share, random.Random(0), threading.Lock()
        self.calls = self.faults = 0

    def fault(self) -> int | str | None:
        """The fault of the next call."""
        with self.lock:
            self.calls += 1
            if self.draws.random() >= self.share:
                return None
            self.faults += 1
            return self.draws.choice(FAULTS)


class FaultyHandler(BaseHTTPRequestHandler):
    """One call."""

    server: FaultyEndpoint

    def do_POST(self) -> None:
        """Answer a chat completion."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = self.server.fault()
        if fault == "closed":
            self.connection.close()
            return
        text = body["messages"][-1]["content"]
        number = int(text.partition("Is ")[2].partition(" even")[0])
        reply = {"message": {"content": f"It is clear.\nVerdict: {'no' if number % 2 else 'yes'}"}}
        usage = {"prompt_tokens": 100, "completion_tokens": 8}
        content = json.dumps({"choices": [reply], "usage": usage}).encode()
        self.send_response(fault if isinstance(fault, int) else 200)
        content = b"<html>" if fault == "html" else content
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


def main(count: int, share: float) -> None:
    """Print one line of JSON."""
    endpoint = FaultyEndpoint(share)
    threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    engine = OpenAI(url=f"http://127.0.0.1:{endpoint.server_port}/v1", model="m", wait=0.02, timeout=30)
    questions = [
        Question((("question", f"Is {i} even?"), ("reference", "x"), ("answer", "x"))) for i in range(count)
    ]
    with tempfile.TemporaryDirectory() as folder:

        def ask() -> tuple[list[float | None], ModelService, float]:
            config = JudgeConfig("m@1", {}, concurrency=32)
            service = ModelService(config.model, engine, Path(folder), concurrency=config.concurrency)
            begun = time.monotonic()
            found = Judge(service, load_template("correctness"), config).ask(questions)
            return [judgement.value for judgement in found], service, time.monotonic() - begun

        values, service, seconds = ask()
        calls = endpoint.calls
        again, cached, seconds_again = ask()
    right = [float(i % 2 == 0) for i in range(count)]
    result = {
        "judgements": count,
        "faults": endpoint.faults,
        "lost": sum(value is None for value in values),
        "wrong": sum(a is not None and a != b for a, b in zip(values, right, strict=True)),
        "billed_calls": service.usage.calls,
        "http_calls": calls,
        "seconds": round(seconds, 1),
        "again": {
            "equal": again == values,
            "http_calls": endpoint.calls - calls,
            "cached": cached.usage.cached,
            "seconds": round(seconds_again, 1),
        },
    }
    print(json.dumps(result))


if __name__ == "__main__":
    cli.run(main, __doc__)
