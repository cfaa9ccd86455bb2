"""Replies that are no completion: every JSON type at every field, errors with status 200, drip-fed bodies."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from vlrl.engine.openai import OpenAI, text_of
from vlrl.types import Prompt, Request, Row, Sampling

WHOLE = {"choices": [{"message": {"content": "7"}, "finish_reason": "stop"}]}
TYPES = [None, True, 5, 0.5, "x", [], {}, [1], {"a": 1}, [None], [[]]]


def everywhere(value, other):
    """`value` with each of its parts replaced by `other`."""
    yield other
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in parts:
        for changed in everywhere(inner, other):
            copy = json.loads(json.dumps(value))
            copy[key] = changed
            yield copy


@pytest.mark.parametrize("other", TYPES)
def test_every_json_type_at_every_field_is_a_text_or_a_value_error(other):
    replies = list(everywhere(WHOLE, other))
    assert len(replies) == 6
    for reply in replies:
        try:
            text, finish = text_of(reply)
        except ValueError as error:
            assert "\n" not in str(error) and len(str(error)) < 300
        else:
            assert isinstance(text, str) and finish in ("stop", "length")


def test_an_error_with_status_200_and_a_content_of_parts():
    with pytest.raises(ValueError, match="the reply is an error: .*overloaded"):
        text_of({"error": {"message": "overloaded"}})
    parts = [{"type": "text", "text": "The answer"}, {"type": "text", "text": " is 7"}, {"type": "image"}]
    assert text_of({"choices": [{"message": {"content": parts}}]}) == ("The answer is 7", "stop")


class Hostile(BaseHTTPRequestHandler):
    """Answers by the model that is asked for."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        if body["model"] == "error":
            self.wfile.write(b'{"error": {"message": "overloaded"}}')
        elif body["model"] == "half":
            self.wfile.write(b'{"choices": [')
        else:
            try:
                for _ in range(200):
                    self.wfile.write(b" ")
                    self.wfile.flush()
                    time.sleep(0.05)
            except OSError:
                return

    def log_message(self, *_):
        """Nothing is printed."""


@pytest.fixture
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("model", "said"),
    [("error", "overloaded"), ("half", "JSONDecodeError"), ("drip", "took more than 0.3 s")],
)
def test_a_reply_that_is_none_fails_in_one_line_and_a_bounded_time(url, model, said):
    engine = OpenAI(url=url, model=model, retries=1, wait=0.01, timeout=0.3)
    request = Request(Prompt(Row("r", "?"), ({"role": "user", "content": "?"},)), Sampling())
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match=said) as failure:
        list(engine.generate([request]))
    assert time.monotonic() - begun < 30 and "\n" not in str(failure.value)
