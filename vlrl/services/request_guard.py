"""ASGI middleware for a server of chat completions: a request that the model cannot answer is refused in one
line before anything is computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vlrl.services.token_guard import Message, Receive, Send, refuse

MAX_BODY = 64 << 20  # bytes: pictures and clips are in the body
MOST_CHARACTERS = 16  # per token of the context: a longer text is refused without being tokenized


class RequestGuard:
    """Checks the JSON body of every POST.

    Refused, with status 400: a body that is no JSON object; more text than `most` tokens; `tools` where the
    chat template has none (it would leave them out without a word); a picture, clip or sound that is no data
    URI, since the server would open a link or a file of this machine. With 413: a body above MAX_BODY.

    Args:
        app: the server.
        most: tokens that the model takes.
        has_tools: whether the chat template renders `tools`.
        count: number of tokens of a text.
    """

    def __init__(self, app: Any, most: int, has_tools: bool, count: Callable[[str], int]) -> None:
        self.app, self.most, self.has_tools, self.count = app, most, has_tools, count

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get("method") != "POST":
            await self.app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body") or b""
            if len(body) > MAX_BODY:
                await refuse(send, 413, f"the body has more than {MAX_BODY >> 20} MiB")
                return
            if not message.get("more_body"):
                break
        if problem := self.problem(body):
            await refuse(send, 400, problem)
            return
        sent = False

        async def again() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, again, send)

    def problem(self, body: bytes) -> str:
        """Why a request is refused; "" if it is not."""
        try:
            asked = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            return f"the body is no JSON: {error}"
        if not isinstance(asked, dict):
            return "the body is no JSON object"
        if asked.get("tools") and not self.has_tools:
            return "tools: the chat template of this model has no place for tools; put them into a message"
        texts: list[str] = []
        for name, value in _leaves(asked):
            if name in ("url", "image_url", "video_url", "audio_url") and not value.startswith("data:"):
                return f"{name}: {value[:60]!r} is no data URI; links and files are not opened"
            texts += [] if value.startswith("data:") else [value]
        length = sum(map(len, texts))
        tokens = length if length > MOST_CHARACTERS * self.most else self.count("\n".join(texts))
        if tokens > self.most:
            unit = "characters" if length > MOST_CHARACTERS * self.most else "tokens"
            return f"the request has {tokens} {unit} of text, and the model takes {self.most} tokens"
        return ""


def _leaves(value: Any) -> Iterator[tuple[str, str]]:
    """(name of its field, text) of every text of a request; a list's items have the name of the list."""
    waiting = [("", value)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += ((name, item) for item in value)
