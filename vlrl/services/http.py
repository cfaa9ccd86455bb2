"""JSON over HTTP with retries: what is worth repeating is repeated, with growing pauses, the rest is an error at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx


class ServiceError(RuntimeError):
    """A service that refused a request, or that could not be reached in all attempts."""


@dataclass
class JsonClient:
    """Talks to one base URL. `token` is sent as a bearer token; `attempts` bounds the tries of a request, `pause` (seconds) doubles between them.

    Connection errors, timeouts, 429 and 5xx are tried again; `before_retry` is called each time (to replace a dead server, and say where it is now).
    """

    url: str
    token: str = ""
    timeout: float = 600.0
    attempts: int = 6
    pause: float = 0.25
    before_retry: Callable[[], str | None] = lambda: None
    retries: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self.client = httpx.Client(headers=headers, timeout=httpx.Timeout(self.timeout, connect=10.0), limits=httpx.Limits(max_connections=None))

    def post(self, path: str, body: Any = None) -> Any:
        """The answer's JSON (None if it is empty). Raises ServiceError."""
        return self._ask("POST", path, body)

    def get(self, path: str) -> Any:
        """As `post`, for what is only read."""
        return self._ask("GET", path, None)

    def _ask(self, method: str, path: str, body: Any) -> Any:
        problem = ""
        for attempt in range(self.attempts):
            if attempt:
                self.retries += 1
                time.sleep(min(self.pause * 2 ** (attempt - 1), 30.0))
                self.url = self.before_retry() or self.url
            try:
                answer = self.client.request(method, self.url + path, json=body)
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if answer.status_code == 429 or answer.status_code >= 500:
                problem = f"status {answer.status_code}: {answer.text[:300]}"
                continue
            if answer.status_code >= 400:
                raise ServiceError(f"{self.url}{path} refused the request: status {answer.status_code}: {answer.text[:500]}")
            return answer.json() if answer.content else None
        raise ServiceError(f"{self.url}{path} failed {self.attempts} times; the last time: {problem}")

    def status(self, path: str = "/health") -> int:
        """The status that the service answers with now; 0 if it does not answer."""
        try:
            return self.client.get(self.url + path, timeout=5.0).status_code
        except httpx.TransportError:
            return 0

    def close(self) -> None:
        """Drop the connections."""
        self.client.close()
