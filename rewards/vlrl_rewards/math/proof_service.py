"""A proof checker as a service over HTTP: the client, and a local server for the small logic.

The protocol is that of the Kimina Lean Server (project-numina/kimina-lean-server 96dff081, app/schemas.py,
app/routers/backward.py), so that a Lean 4 with Mathlib behind it is asked in the same way:

    POST /verify  {"codes": [{"custom_id": "0", "proof": "..."}], "timeout": 60}
    -> {"results": [{"custom_id": "0", "error": null, "response": {"messages": [...], "sorries": [...]}}]}

    python -m vlrl_rewards.math.proof_service --port 8100     the small logic (`small_proofs.py`)
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from vlrl.services.http import JsonClient, ServiceError
from vlrl_rewards.math.small_proofs import SORRY, check

MAX_BODY = 1 << 24


class Checked(NamedTuple):
    """What the checker says of a text: `proved`, `sorry` (accepted but for `sorry`), and its message.
    `failure`: why it says nothing ("" if it says something); that is no verdict."""

    proved: bool = False
    sorry: bool = False
    message: str = ""
    failure: str = ""


@dataclass(eq=False)
class ProofClient:
    """Asks a checker about many texts at once.

    Attributes:
        url: Of the service; "": a server of the small logic in this process.
        seconds: What the checker may take for one text. A text that takes longer is asked again alone; if it
            does so again, it is not proved within that time.
        deadline: Seconds for the answer to a request.
    """

    url: str = ""
    seconds: int = 60
    deadline: float = 600.0
    attempts: int = 3
    client: JsonClient = field(init=False)

    def __post_init__(self) -> None:
        self.client = JsonClient(
            self.url or local_server().url,
            timeout=self.deadline,
            attempts=self.attempts,
            max_answer=MAX_BODY,
            deadline=self.deadline,
        )

    def reachable(self) -> bool:
        """Whether something answers."""
        return self.client.status("/health") != 0

    def check(self, texts: Sequence[str]) -> list[Checked]:
        """What the checker says of each text, in order; raises nothing."""
        wanted = list(dict.fromkeys(texts))
        found = dict(zip(wanted, self._ask(wanted), strict=True))
        for text in wanted:
            if timed_out(found[text].failure):
                (again,) = self._ask([text])
                late = timed_out(again.failure)
                found[text] = Checked(message=f"not proved within {self.seconds} s") if late else again
        return [found[text] for text in texts]

    def _ask(self, texts: Sequence[str]) -> list[Checked]:
        codes = [{"custom_id": str(place), "proof": text} for place, text in enumerate(texts)]
        if not codes:
            return []
        try:
            answer = self.client.post("/verify", {"codes": codes, "timeout": self.seconds})
        except ServiceError as error:
            return [Checked(failure=str(error))] * len(texts)
        results = answer.get("results") if isinstance(answer, Mapping) else None
        by_id = {
            str(one.get("custom_id")): one
            for one in (results if isinstance(results, list) else ())
            if isinstance(one, Mapping)
        }
        return [read(by_id.get(str(place))) for place in range(len(texts))]


def timed_out(failure: str) -> bool:
    """Whether the checker's own time was over."""
    return "timed out in" in failure


def read(result: Mapping[str, Any] | None) -> Checked:
    """One result of the service."""
    if result is None:
        return Checked(failure="the checker left a text out of its answer")
    if result.get("error"):
        return Checked(failure=str(result["error"])[:300])
    response = result.get("response")
    if not isinstance(response, Mapping):
        return Checked(failure=f"the checker's answer cannot be read: {str(result)[:200]}")
    messages = response.get("messages") or []
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        return Checked(failure=f"the checker's answer cannot be read: {str(result)[:200]}")
    wrong = [str(one.get("data")) for one in messages if one.get("severity") == "error"]
    if wrong:
        return Checked(message=wrong[0][:300])
    skipped = bool(response.get("sorries")) or any(SORRY in str(one.get("data")) for one in messages)
    return Checked(not skipped, skipped, SORRY if skipped else "")


class Handler(BaseHTTPRequestHandler):
    """The small logic behind the protocol."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply(200 if self.path == "/health" else 404, {"status": "ok"})

    def do_POST(self) -> None:
        try:
            size = int(self.headers.get("Content-Length") or 0)
            if self.path != "/verify" or not 0 < size <= MAX_BODY:
                raise ValueError(f"POST /verify with a body of 1 to {MAX_BODY} bytes")
            codes = json.loads(self.rfile.read(size))["codes"]
            results = [verified(str(one["custom_id"]), one.get("proof", one.get("code"))) for one in codes]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.close_connection = True
            self._reply(422, {"detail": f"{type(error).__name__}: {error}"})
            return
        self._reply(200, {"results": results})

    def _reply(self, status: int, body: Mapping[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:  # else the client sends its next request into a closed connection
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def verified(name: str, text: Any) -> dict[str, Any]:
    """The result of one text. Raises TypeError for no text."""
    if not isinstance(text, str):
        raise TypeError(f"proof: {text!r} is no text")
    said = check(text)
    severity = "warning" if said == SORRY else "error"
    place = {"line": 1, "column": 0}
    messages = [{"severity": severity, "pos": place, "data": said}] if said else []
    sorries = [{"pos": place, "endPos": place, "goal": ""}] if said == SORRY else []
    return {
        "custom_id": name,
        "error": None,
        "response": {"env": 0, "messages": messages, "sorries": sorries},
    }


class ProofServer:
    """A running server of the small logic."""

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        self.server = ThreadingHTTPServer((host, port), Handler)
        self.server.daemon_threads = True
        self.url = f"http://{host}:{self.server.server_address[1]}"

    def start(self) -> ProofServer:
        """Serve in a thread that ends with the process."""
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()


@cache
def local_server() -> ProofServer:
    """This process's server."""
    return ProofServer().start()


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="Check proofs of the small logic over HTTP.")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--host", default="127.0.0.1")
    chosen = parser.parse_args()
    server = ProofServer(chosen.port, chosen.host)
    sys.stdout.write(f"proofs of the small logic: POST {server.url}/verify\n")
    sys.stdout.flush()
    server.server.serve_forever()


if __name__ == "__main__":
    main()
