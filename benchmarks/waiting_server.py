"""The paths of `vllm serve` without a model: a request takes `SECONDS`, `SLOTS` of them at a time. For
benchmarks/scaling.py."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks import cli

SECONDS, SLOTS, TOKENS = 1.0, 8, 64
FREE = threading.Semaphore(SLOTS)
ENTRY = {"logprob": -1.0, "top_logprobs": []}


class Server(ThreadingHTTPServer):
    """Takes as many connections at once as the engine opens."""

    request_queue_size = 256


class Handler(BaseHTTPRequestHandler):
    """Answers the token endpoint after a wait, everything else at once."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""

    def answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer({})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        if self.path != "/inference/v1/generate":
            self.answer({})
            return
        with FREE:
            time.sleep(SECONDS)
        content = {
            "token_ids": [5] * TOKENS,
            "finish_reason": "length",
            "logprobs": {"content": [ENTRY] * TOKENS},
        }
        self.answer({"choices": [{"index": i, **content} for i in range(body["sampling_params"]["n"])]})


def main(port: int) -> None:
    """Serve until it is killed."""
    Server(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    cli.run(main, __doc__)
