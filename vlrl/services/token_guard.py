"""ASGI middleware of a server that this project starts: who may talk to it, and how much a request may hold.
It needs no web framework."""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

GUARD = "vlrl.services.token_guard.TokenGuard"  # as a flag of vLLM's server names it
TOKEN_VARIABLE = "VLLM_API_KEY"  # read by vLLM; the token is never on a command line
BODY_VARIABLE = "VLRL_MAX_BODY_BYTES"
MAX_BODY = 1 << 30  # bytes
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class TokenGuard:
    """Requires the bearer token (VLLM_API_KEY) for HTTP and websockets on every path; refuses bodies and
    messages above VLRL_MAX_BODY_BYTES.

    Only `GET /health` needs no token. vLLM's own check leaves its control endpoints and its websockets open.
    HTTP: 401 without the token, 413 for a body that is too large, by its Content-Length or as it arrives.
    Websockets: closed before they are accepted (1008), or at the message (1009). Other connections than
    `lifespan` are refused.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.expected = f"Bearer {os.environ[TOKEN_VARIABLE]}".encode()
        self.most = int(os.environ.get(BODY_VARIABLE, MAX_BODY))

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            await self.app(scope, receive, send)
        elif kind == "http":
            await self._http(scope, receive, send)
        elif kind == "websocket":
            await self._websocket(scope, receive, send)

    def _has_token(self, scope: Mapping[str, Any]) -> bool:
        given = [value for name, value in scope.get("headers") or () if name.lower() == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self.expected)

    async def _http(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        free = scope["path"] == "/health" and scope.get("method", "GET") in ("GET", "HEAD")
        if not free and not self._has_token(scope):
            await refuse(send, 401, "unauthorized")
            return
        lengths = [value for name, value in scope.get("headers") or () if name.lower() == b"content-length"]
        if any(not length.isdigit() or int(length) > self.most for length in lengths):
            await refuse(send, 413, "the body is too large")
            return
        read, answered = 0, False

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body") or b"")
            if read > self.most:
                raise _TooLargeError
            return message

        async def noted(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self.app(scope, counted, noted)
        except _TooLargeError:
            if not answered:
                await refuse(send, 413, "the body is too large")

    async def _websocket(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if not self._has_token(scope):
            await receive()  # websocket.connect
            await send({"type": "websocket.close", "code": 1008, "reason": "unauthorized"})
            return

        async def bounded() -> Message:
            message = await receive()
            if max(len(message.get("bytes") or b""), len(message.get("text") or "")) > self.most:
                raise _TooLargeError
            return message

        try:
            await self.app(scope, bounded, send)
        except _TooLargeError:
            await send({"type": "websocket.close", "code": 1009, "reason": "the message is too large"})


class _TooLargeError(RuntimeError):
    """A body or message above the limit."""


async def refuse(send: Send, status: int, why: str) -> None:
    """Answer a request with a status and `{"error": why}`."""
    body = json.dumps({"error": why}).encode()
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"application/json"), (b"connection", b"close")],
        }
    )
    await send({"type": "http.response.body", "body": body})
