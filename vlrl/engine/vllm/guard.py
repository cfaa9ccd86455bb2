"""ASGI middleware for `vllm serve`: the token is asked for on every path but /health. vLLM's own check leaves its control endpoints open."""

from __future__ import annotations

import hmac
import os
from typing import Any


class Guard:
    """Wraps the app; the token is in VLLM_API_KEY."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.expected = f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: dict, receive: Any, send: Any) -> None:
        given = dict(scope.get("headers") or ()).get(b"authorization", b"")
        if scope["type"] != "http" or scope["path"] == "/health" or hmac.compare_digest(given, self.expected):
            await self.app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b'{"error": "unauthorized"}'})
