"""A run in the browser while it goes on: `vlrl report RUN --serve`.

The page is that of `report.html`. Its server listens on 127.0.0.1 alone, answers requests that carry the
token of the printed address and name this machine as their host, and tells the page by server-sent events
when the run has written more.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from vlrl.logging.live import total_steps
from vlrl.logging.overlay import overlay_text
from vlrl.logging.recorder import EVENTS, KEYS, METRICS
from vlrl.logging.report import read_config, report_text, sections_of
from vlrl.services.files import parse_jsonl

HOST = "127.0.0.1"
EVERY = 1.0  # seconds between two looks at the run's files
BEAT = 15.0  # seconds after which a silent connection is written to, so that a closed one is noticed


class Follower:
    """What the server knows of its runs: the page, its sections, and a mark of how far they are."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)
        self._total = total_steps(read_config(self.folders[0]))

    def page(self, groups: bool = True) -> str:
        """The whole page; of several runs, the overlay. `groups`: with rollouts."""
        if len(self.folders) > 1:
            return overlay_text(self.folders, follows=True)
        return report_text(self.folders[0], follows=True, groups=groups)

    def sections(self) -> dict[str, Any]:
        """The parts of the page that can change, but for rollouts."""
        found = sections_of(self.page(groups=False))
        return {"sections": found, "order": list(found)}

    def mark(self) -> tuple[tuple[int, int], ...]:
        """Changes whenever the run writes a step, an event or its summary."""
        paths = [folder / n for folder in self.folders for n in (METRICS, EVENTS, "summary.json")]
        return tuple((s.st_size, s.st_mtime_ns) for path in paths if (s := _stat(path)) is not None)

    def state(self) -> dict[str, Any]:
        """How far the first run is."""
        folder = self.folders[0]
        rows = parse_jsonl(folder / METRICS, KEYS[METRICS]) if (folder / METRICS).is_file() else []
        step = int(rows[-1][0]["step"]) if rows else 0
        return {"step": step, "total": self._total, "finished": (folder / "summary.json").is_file()}


def _stat(path: Path) -> Any:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


class ReportServer(ThreadingHTTPServer):
    """Serves the report of runs; `url` is the address with its token."""

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], port: int = 0, token: str = "", every: float = EVERY) -> None:
        self.follower = Follower(folders)
        self.token, self.every, self.ended = token or secrets.token_urlsafe(24), every, False
        super().__init__((HOST, port), ReportRequest)

    @property
    def url(self) -> str:
        """The address to open."""
        return f"http://{HOST}:{self.server_port}/?token={self.token}"

    def server_close(self) -> None:
        """End the open connections too."""
        self.ended = True
        super().server_close()


class ReportRequest(BaseHTTPRequestHandler):
    """One request: the page, its sections as JSON, or the stream of events."""

    server: ReportServer

    def do_GET(self) -> None:
        """Answers with 403 without the token, and to a request for another host (DNS rebinding)."""
        asked = urlsplit(self.path)
        given = parse_qs(asked.query).get("token", [""])[0]
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in (HOST, "localhost") or not hmac.compare_digest(
            given.encode(), self.server.token.encode()
        ):
            self._reply(403, "text/plain", "open the address that `vlrl report --serve` printed\n")
            return
        routes: dict[str, Callable[[], None]] = {
            "/": lambda: self._reply(200, "text/html", self.server.follower.page()),
            "/sections": lambda: self._reply(
                200, "application/json", json.dumps(self.server.follower.sections())
            ),
            "/events": self._events,
        }
        routes.get(asked.path, lambda: self._reply(404, "text/plain", "nothing is here\n"))()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not printed: they hold the token."""

    def _reply(self, code: int, kind: str, text: str) -> None:
        content = text.encode("utf-8", "replace")
        self._head(code, kind, {"Content-Length": str(len(content))})
        self.wfile.write(content)

    def _head(self, code: int, kind: str, more: dict[str, str]) -> None:
        self.send_response(code)
        fixed = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in (fixed | more).items():
            self.send_header(name, value)
        self.end_headers()

    def _events(self) -> None:
        self._head(200, "text/event-stream", {})
        follower, written = self.server.follower, time.monotonic()
        seen: tuple[tuple[int, int], ...] | None = None
        try:
            while not self.server.ended:
                mark = follower.mark()
                if mark != seen:
                    self.wfile.write(f"data: {json.dumps(follower.state())}\n\n".encode())
                    seen, written = mark, time.monotonic()
                elif time.monotonic() - written > BEAT:
                    self.wfile.write(b": still here\n\n")
                    written = time.monotonic()
                self.wfile.flush()
                time.sleep(self.server.every)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the reader closed the page
