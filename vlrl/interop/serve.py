"""A small server with OpenAI's chat completions over a model of this project, on the engine `hf`.

    POST /v1/chat/completions   messages with text and pictures (data URIs); `stream` sends the whole text as
    one chunk GET  /v1/models, /health

It listens on the loopback interface alone, and every request but /health needs the bearer token. Pictures are
read from data URIs only: the server opens no URL and no file that a request names. Requests that wait are
sampled as one batch.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import queue
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from vlrl.eval.model import ServedModel, policy_spec
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Engine
from vlrl.services.media_files import open_picture
from vlrl.types import Completion, Media, MediaError, Message, Prompt, Request, Row, Sampling

HOST = "127.0.0.1"
MAX_BODY = 64 * 2**20  # bytes of a request
MAX_SAMPLES = 64


class BadRequest(ValueError):
    """A request that cannot be answered; its text goes to the client with status 400."""


@dataclass(frozen=True)
class SentPicture(Media):
    """A picture that came with a request, as the bytes of its file."""

    content: bytes = field(repr=False)
    kind: Literal["image", "video"] = field(default="image", init=False)

    @cached_property
    def key(self) -> str:
        """The SHA-256 of the file."""
        return hashlib.sha256(self.content).hexdigest()

    def load(self) -> Any:
        """The picture in RGB. Raises MediaError for what is no picture, and for one of too many pixels."""
        from PIL import Image

        try:
            with open_picture(self.content) as picture:
                return picture.convert("RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise MediaError(f"image_url: no readable picture ({error})") from None


# --- a request ----------------------------------------------------------------------------------------------


def parse_request(body: Any, limit: int) -> tuple[Prompt, Sampling, int, int | None]:
    """(prompt, sampling, n, seed) of a chat-completions body; `limit` is the default and the largest number
    of new tokens. Raises BadRequest."""
    if not isinstance(body, Mapping):
        raise BadRequest("the body must be a JSON object")
    messages, pictures = parse_messages(body.get("messages"))
    tokens = body.get("max_completion_tokens") or body.get("max_tokens") or limit
    stop = body.get("stop") or ()
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    n, seed = body.get("n") or 1, body.get("seed")
    sampling = Sampling(
        temperature=number(body, "temperature", 1.0, 0, 2),
        top_p=number(body, "top_p", 1.0, 0, 1),
        max_tokens=min(tokens, limit) if isinstance(tokens, int) and tokens > 0 else limit,
        stop=stop,
    )
    if not all(isinstance(text, str) and text for text in stop):
        raise BadRequest("stop: a string or a list of strings")
    if not isinstance(n, int) or not 1 <= n <= MAX_SAMPLES:
        raise BadRequest(f"n: a number from 1 to {MAX_SAMPLES}")
    if seed is not None and not isinstance(seed, int):
        raise BadRequest("seed: a whole number")
    row = Row("request", "", images=tuple(pictures))
    return Prompt(row, tuple(messages), images=tuple(pictures)), sampling, n, seed


def number(body: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    """A number of the body between `low` and `high`. Raises BadRequest."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise BadRequest(f"{name}: a number from {low} to {high}, got {value!r}")
    return float(value)


def parse_messages(messages: Any) -> tuple[list[Message], list[SentPicture]]:
    """Chat messages as prompts have them, and their pictures in order. Raises BadRequest."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise BadRequest("messages: a list of {role, content}")
    out: list[Message] = []
    pictures: list[SentPicture] = []
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        if not isinstance(message, Mapping) or message.get("role") not in (
            "system",
            "developer",
            "user",
            "assistant",
        ):
            raise BadRequest(f"{where}: needs a role (system, user, assistant) and a content")
        role = "system" if message["role"] == "developer" else message["role"]
        content = message.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(parts, Sequence) or isinstance(parts, str):
            raise BadRequest(f"{where}.content: a text or a list of parts")
        items = [_part(part, f"{where}.content[{number}]", pictures) for number, part in enumerate(parts)]
        out.append({"role": role, "content": items})
    return out, pictures


def _part(part: Any, where: str, pictures: list[SentPicture]) -> dict[str, str]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "image_url":
        link = part.get("image_url")
        pictures.append(_picture(link.get("url") if isinstance(link, Mapping) else link, where))
        return {"type": "image"}
    raise BadRequest(f"{where}: a part is {{type: text, text}} or {{type: image_url, image_url: {{url}}}}")


def _picture(url: Any, where: str) -> SentPicture:
    head, _, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise BadRequest(
            f"{where}: pictures are sent as data URIs (data:image/png;base64,...); this server opens no links"
        )
    try:
        picture = SentPicture(base64.b64decode(data, validate=True))
        picture.load()
    except (binascii.Error, MediaError) as error:
        raise BadRequest(f"{where}: {error}") from None
    return picture


def open_engine(run: Path, folder: Path) -> ServedModel:
    """The engine `hf` over a checkpoint, with the policy's settings (pixels, chat template) of its run.
    Raises ConfigError."""
    import torch

    from vlrl.policy import Family, Policy

    spec = policy_spec(str(run)) | {"model": str(folder)}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = Policy(build(Family, spec, "policy"), device=device)
    served = ServedModel(policy, build(Engine, {"name": "hf"}, "engine"))
    served.engine.setup(served)
    return served


# --- sampling -----------------------------------------------------------------------------------------------


class Worker:
    """Samples in one thread: all requests that wait at a moment are one batch of the engine."""

    def __init__(self, engine: Any, policy: Any, seed: int = 0) -> None:
        self.engine, self.policy, self.seed = engine, policy, seed
        self._waiting: queue.Queue[tuple[Prompt, Sampling, int, int | None, Future]] = queue.Queue()
        self._count = 0
        threading.Thread(target=self._work, daemon=True, name="sampling").start()

    def submit(
        self, prompt: Prompt, sampling: Sampling, n: int, seed: int | None
    ) -> Future[list[Completion]]:
        """The completions of a prompt, when they are done."""
        answer: Future[list[Completion]] = Future()
        self._waiting.put((prompt, sampling, n, seed, answer))
        return answer

    def _work(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while not self._waiting.empty():
                batch.append(self._waiting.get())
            self._sample(batch)

    def _sample(self, batch: list[tuple[Prompt, Sampling, int, int | None, Future]]) -> None:
        requests = []
        for place, (prompt, sampling, n, seed, _) in enumerate(batch):
            self._count += 1
            requests.append(
                Request(
                    prompt, sampling, n=n, seed=self.seed + self._count if seed is None else seed, tag=place
                )
            )
        done: list[list[Completion]] = [[] for _ in batch]
        try:
            for completion in self.engine.generate(requests):
                place = completion.request.tag
                done[place].append(completion)
                if len(done[place]) == batch[place][2]:
                    batch[place][4].set_result(sorted(done[place], key=lambda one: one.index))
        except (
            Exception
        ) as error:  # whatever the model raises is the answer to these requests; the server goes on
            for *_, answer in batch:
                if not answer.done():
                    answer.set_exception(error)


# --- HTTP ---------------------------------------------------------------------------------------------------


class ChatServer(ThreadingHTTPServer):
    """The server; `serve_forever` runs it. `port` 0 takes a free one. `limit`: the largest number of new
    tokens of a completion."""

    daemon_threads = True

    def __init__(self, worker: Worker, token: str, model: str, port: int = 0, limit: int = 1024) -> None:
        super().__init__((HOST, port), Handler)
        self.worker, self.token, self.model, self.limit = worker, token, model, limit

    @property
    def url(self) -> str:
        """The base URL for OpenAI's clients."""
        return f"http://{HOST}:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: ChatServer
    protocol_version = "HTTP/1.1"
    timeout = 600

    def do_GET(self) -> None:
        """/health and /v1/models."""
        if self.path == "/health":
            self._send(200, {"status": "ok"})
        elif self._allowed():
            models = {
                "object": "list",
                "data": [{"id": self.server.model, "object": "model", "owned_by": "vlrl"}],
            }
            self._send(200, models) if self.path == "/v1/models" else self._fail(
                404, f"no such path: {self.path}"
            )

    def do_POST(self) -> None:
        """/v1/chat/completions."""
        if not self._allowed():
            return
        if self.path != "/v1/chat/completions":
            self._fail(404, f"no such path: {self.path}")
            return
        try:
            body = self._body()
            prompt, sampling, n, seed = parse_request(body, self.server.limit)
            completions = self.server.worker.submit(prompt, sampling, n, seed).result()
        except BadRequest as error:
            self._fail(400, str(error))
        except Exception as error:  # the model's failure is this request's, not the server's
            self._fail(500, f"{type(error).__name__}: {error}")
        else:
            answer = self._answer(prompt, completions)
            self._stream(answer) if body.get("stream") else self._send(200, answer)

    def _allowed(self) -> bool:
        sent = self.headers.get("Authorization", "").encode()
        if hmac.compare_digest(sent, f"Bearer {self.server.token}".encode()):
            return True
        self._fail(401, "the bearer token is missing or wrong")
        return False

    def _body(self) -> Any:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_BODY:
            self.close_connection = True
            raise BadRequest(f"Content-Length: needed, and at most {MAX_BODY} bytes")
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise BadRequest("the body is not JSON") from None

    def _answer(self, prompt: Prompt, completions: Sequence[Completion]) -> dict[str, Any]:
        asked, written = (
            len(self.server.worker.policy.encode(prompt)),
            sum(len(one.ids) for one in completions),
        )
        choices = [
            {
                "index": place,
                "message": {"role": "assistant", "content": one.text},
                "finish_reason": "length" if one.finish == "length" else "stop",
                "logprobs": None,
            }
            for place, one in enumerate(completions)
        ]
        usage = {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written}
        head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.server.model,
        }
        return {**head, "choices": choices, "usage": usage}

    def _stream(self, answer: dict[str, Any]) -> None:
        choices = [
            {"index": one["index"], "delta": one["message"], "finish_reason": one["finish_reason"]}
            for one in answer["choices"]
        ]
        chunk = {**answer, "object": "chat.completion.chunk", "choices": choices}
        self._write(200, f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode(), "text/event-stream")

    def _fail(self, status: int, message: str) -> None:
        self.close_connection = True  # the rest of a refused body is not read
        self._send(
            status,
            {
                "error": {
                    "message": message,
                    "type": "invalid_request_error" if status < 500 else "server_error",
                }
            },
        )

    def _send(self, status: int, value: Any) -> None:
        self._write(status, json.dumps(value).encode(), "application/json")

    def _write(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed per request."""
