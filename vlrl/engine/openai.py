"""Any OpenAI-compatible endpoint, for evaluation only: it returns text without token ids and log-probs, so it
cannot be used for training."""

from __future__ import annotations

import base64
import io
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Engine
from vlrl.types import Clip, Completion, Prompt, Request

if TYPE_CHECKING:
    from vlrl.plugins.views import PolicyView

MAX_ANSWER = 64 << 20  # bytes


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects are errors: following one would send the key to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def data_uri(image: Any) -> str:
    """A PIL image as a PNG data URI."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def api_messages(prompt: Prompt) -> list[dict[str, Any]]:
    """The prompt's messages with its images as data URIs; a video becomes its frames."""
    from PIL import Image

    images, videos = iter(prompt.images), iter(prompt.videos)
    out = []
    for message in prompt.messages:
        if isinstance(message["content"], str):
            out.append(dict(message))
            continue
        parts: list[dict[str, Any]] = []
        for item in message["content"]:
            if item["type"] == "text":
                parts.append({"type": "text", "text": item["text"]})
            elif item["type"] == "image":
                parts.append({"type": "image_url", "image_url": {"url": data_uri(next(images).load())}})
            elif item["type"] == "audio":
                raise ConfigError(
                    f"engine: row {prompt.row.id!r} has audio, which engine 'openai' does not send; use "
                    "engine 'hf'"
                )
            else:
                clip = next(videos).load()
                assert isinstance(clip, Clip)
                parts += [
                    {"type": "image_url", "image_url": {"url": data_uri(Image.fromarray(frame))}}
                    for frame in clip.frames_THWC
                ]
        out.append({"role": message["role"], "content": parts})
    if prompt.prefix:
        out.append({"role": "assistant", "content": prompt.prefix})
    return out


@register("openai")
@dataclass(frozen=True)
class OpenAI(Engine):
    """POST {url}/chat/completions for each sample, `parallel` at a time; `retries` with doubling waits after
    429, 5xx and broken connections.

    vlrl original. `url` ends before /chat/completions; `model` is the endpoint's name of the model; the key
    is read from the environment variable `key_env` (no key is sent if it is unset). Edge: after the last
    retry, or `deadline` seconds (0: none), the request fails with a RuntimeError that names status and URL.
    Completions have text, and no ids: use another engine to train. `top_logprobs` and a JSON schema
    (`guided`) of the sampling are asked of the endpoint.
    """

    needs_policy: ClassVar[bool] = False
    remote: ClassVar[bool] = True
    url: str = "http://127.0.0.1:8000/v1"
    model: str = ""
    key_env: str = "OPENAI_API_KEY"
    parallel: int = 8
    retries: int = 5
    timeout: float = 300.0
    wait: float = 1.0
    deadline: float = 0.0

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError(
                "engine.model: not set; give the endpoint's name of the model, for instance -E model=my-model"
            )
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"engine.url: {self.url!r} must begin with http:// or https://")

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        with ThreadPoolExecutor(self.parallel) as pool:
            futures = [
                pool.submit(self._one, request, index) for request in requests for index in range(request.n)
            ]
            for future in as_completed(futures):
                yield future.result()

    def _one(self, request: Request, index: int) -> Completion:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "messages": api_messages(request.prompt),
            "temperature": sampling.temperature_at(0),
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": (request.seed + index) % 2**31,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": min(sampling.top_logprobs, 20)}
        if schema := (sampling.guided or {}).get("json"):
            described = {"name": "reply", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": described}
        started = time.monotonic()
        reply = self._post("chat/completions", body, text_of)
        text, finish = text_of(reply)
        return Completion(
            request,
            index,
            [],
            [],
            text,
            finish,
            seconds=time.monotonic() - started,
            tokens=tokens_of(reply),
            text_logprobs=logprobs_of(reply) if sampling.top_logprobs else None,
        )

    def prompt_logprobs(
        self, prompt: Prompt, prompt_ids: Sequence[int], ids: Sequence[int], text: str, top: int
    ) -> tuple[list[dict[int, float]], int]:
        """As vLLM's server gives them (`prompt_logprobs`): one token more is sampled, which it asks for."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": top,
        }
        if prompt.media:
            continued = replace(prompt, prefix=prompt.prefix + text)
            body |= {"messages": api_messages(continued)}
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        else:
            body |= {"prompt": [*prompt_ids, *ids]}
        reply = self._post(
            "chat/completions" if prompt.media else "completions", body, lambda reply: scores_of(reply, ids)
        )
        return scores_of(reply, ids), sum(tokens_of(reply))

    def _post(self, path: str, body: dict[str, Any], read: Callable[[Any], object]) -> Any:
        """The reply, which `read` can read (it raises ValueError where it cannot). Raises RuntimeError after
        the last retry, or at the deadline."""
        key = os.environ.get(self.key_env, "")
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        problem, begun = "", time.monotonic()
        for attempt in range(self.retries + 1):
            pause = self.wait * 2 ** (attempt - 1) if attempt else 0.0
            left = self.deadline - (time.monotonic() - begun) if self.deadline else self.timeout + pause
            if left <= pause:
                problem += f"; the deadline of {self.deadline:g} s is over"
                break
            time.sleep(pause)
            post = urllib.request.Request(
                f"{self.url.rstrip('/')}/{path}", json.dumps(body).encode(), headers
            )
            try:
                limit = min(self.timeout, left - pause)
                with _OPENER.open(post, timeout=limit) as answer:
                    content = self._read(answer, limit)
                if len(content) > MAX_ANSWER:
                    problem = f"the answer has more than {MAX_ANSWER} bytes"
                    break
                reply = json.loads(content)
                read(reply)
                return reply
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}: {error.read()[:200].decode(errors='replace')}"
                if error.code != 429 and error.code < 500:
                    break
            except (OSError, HTTPException, ValueError, RecursionError) as error:
                problem = f"{type(error).__name__}: {error}"
        raise RuntimeError(f"engine openai: {self.url} did not answer ({problem})")

    def _read(self, answer: Any, seconds: float) -> bytes:
        """The body, in at most `seconds`: `urlopen`'s own limit is for each part of it. Raises
        TimeoutError."""
        content, until = bytearray(), time.monotonic() + seconds
        while part := answer.read1(1 << 16):
            content += part
            if len(content) > MAX_ANSWER:
                break
            if time.monotonic() > until:
                raise TimeoutError(f"the answer took more than {seconds:g} s")
        return bytes(content)

    def sync(self, policy: PolicyView) -> None:
        raise ConfigError(
            "engine 'openai' cannot load weights; it is for evaluation. Train with hf, vllm or vllm_server"
        )


def text_of(reply: Any) -> tuple[str, Literal["stop", "length"]]:
    """The text of a chat completion, and why it ended. A content of parts is the texts of its parts. Raises
    ValueError for what is no completion, such as an error that came with status 200."""
    if not isinstance(reply, dict) or reply.get("error"):
        raise ValueError(f"the reply is an error: {str(reply)[:200]}")
    choices = reply.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise ValueError(f"the reply has no choices[0].message: {str(reply)[:200]}")
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        content = "".join(part for part in parts if isinstance(part, str))
    if content is not None and not isinstance(content, str):
        raise ValueError(f"the reply's content is no text: {str(content)[:200]}")
    return content or "", "length" if choice.get("finish_reason") == "length" else "stop"


def scores_of(reply: Any, ids: Sequence[int]) -> list[dict[int, float]]:
    """Log-probs by id of the last `ids` of a prompt, from `prompt_logprobs`. Raises ValueError for a reply
    without them, and where the prompt ended with other tokens."""
    if not isinstance(reply, dict) or reply.get("error"):
        raise ValueError(f"the reply is an error: {str(reply)[:200]}")
    choices = reply.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    listed = choice.get("prompt_logprobs") or reply.get("prompt_logprobs")
    if not isinstance(listed, list) or len(listed) <= len(ids):
        raise ValueError("the reply has no prompt_logprobs for these tokens; serve the teacher with vLLM")
    try:
        found = [
            {int(token): float(entry["logprob"]) for token, entry in place.items()}
            for place in listed[len(listed) - len(ids) :]
        ]
    except (AttributeError, TypeError, KeyError) as error:
        raise ValueError(f"prompt_logprobs of another form: {error}") from error
    if any(token not in place for token, place in zip(ids, found)):
        raise ValueError("the server's prompt ends with other tokens than the completion's")
    return found


def tokens_of(reply: Mapping[str, Any]) -> tuple[int, int]:
    """What an endpoint bills: tokens of the prompt and of the reply; 0 where it does not say."""
    usage = reply.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    found = [usage.get(key) for key in ("prompt_tokens", "completion_tokens")]
    prompt, written = (int(n) if isinstance(n, (int, float)) and n > 0 else 0 for n in found)
    return prompt, written


def logprobs_of(reply: Mapping[str, Any]) -> list[tuple[str, dict[str, float]]] | None:
    """(text, top log-probs by text) of each token of a chat completion; None where it has none, or they are
    of another form."""
    logprobs = reply["choices"][0].get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    try:
        return [
            (str(token["token"]), {str(top["token"]): float(top["logprob"]) for top in token["top_logprobs"]})
            for token in content or ()
        ] or None
    except (TypeError, KeyError, ValueError):
        return None
