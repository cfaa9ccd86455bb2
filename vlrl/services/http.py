"""JSON over HTTP: transient failures are retried with growing pauses, other failures raise at once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vlrl.services.lazy import httpx


class ServiceError(RuntimeError):
    """A service refused a request, or could not be reached in all attempts."""


@dataclass
class JsonClient:
    """A client of one base URL. `token` is sent as a bearer token; a request is tried `attempts` times, with
    a `pause` (seconds) that doubles.

    Connection errors, timeouts, 429 and 5xx are retried. An answer has at most `max_answer` bytes and arrives
    within `deadline` seconds (0: within `timeout`, which also bounds each wait for a part of it); redirects
    are not followed. `before_retry` is called before each retry; it may replace a dead server and return its
    new URL.
    """

    url: str
    token: str = ""
    timeout: float = 600.0
    attempts: int = 6
    pause: float = 0.25
    max_answer: int = 1 << 30
    deadline: float = 0.0
    before_retry: Callable[[], str | None] = lambda: None
    retries: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self.client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(self.timeout, connect=10.0),
            limits=httpx.Limits(max_connections=None),
        )

    def post(self, path: str, body: Any = None) -> Any:
        """The answer's JSON (None if it is empty). Raises ServiceError."""
        return self._ask("POST", path, body)

    def get(self, path: str) -> Any:
        """The JSON of a GET request. Raises ServiceError."""
        return self._ask("GET", path, None)

    def _ask(self, method: str, path: str, body: Any) -> Any:
        problem = ""
        for attempt in range(self.attempts):
            if attempt:
                self.retries += 1
                time.sleep(min(self.pause * 2 ** (attempt - 1), 30.0))
                self.url = self.before_retry() or self.url
            try:
                with self.client.stream(method, self.url + path, json=body) as answer:
                    content = self._content(answer, path)
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if answer.status_code == 429 or answer.status_code >= 500:
                problem = f"status {answer.status_code}: {_text(content)[:300]}"
                continue
            if answer.status_code >= 300:
                raise ServiceError(
                    f"{self.url}{path} refused the request: status {answer.status_code}: "
                    f"{_text(content)[:500]}"
                )
            return self._parsed(content, path)
        raise ServiceError(f"{self.url}{path} failed {self.attempts} times; the last time: {problem}")

    def _content(self, answer: httpx.Response, path: str) -> bytes:
        content, begun = bytearray(), time.monotonic()
        for part in answer.iter_bytes():
            limit = self.deadline or self.timeout
            if time.monotonic() - begun > limit:
                raise ServiceError(f"{self.url}{path}: the answer took more than {limit:g} s")
            content += part
            if len(content) > self.max_answer:
                raise ServiceError(f"{self.url}{path}: the answer has more than {self.max_answer} bytes")
        return bytes(content)

    def _parsed(self, content: bytes, path: str) -> Any:
        try:
            return json.loads(content) if content else None
        except (ValueError, RecursionError) as error:
            raise ServiceError(
                f"{self.url}{path}: the answer is no JSON ({type(error).__name__}): {_text(content)[:200]}"
            ) from None

    def status(self, path: str = "/health") -> int:
        """The HTTP status of one request without retries; 0 if there is no answer."""
        try:
            return self.client.get(self.url + path, timeout=5.0).status_code
        except httpx.TransportError:
            return 0

    def close(self) -> None:
        """Close the connections."""
        self.client.close()


def _text(content: bytes) -> str:
    return content.decode(errors="replace")
