"""The service of a model beside the policy: cache, failures, budget, and what an endpoint is asked."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from vlrl.beside.judge import JudgeConfig, Question, check_judge, expected_value
from vlrl.beside.service import ModelAsk, ModelService, Reply, Usage
from vlrl.engine.fake import Fake
from vlrl.engine.openai import OpenAI
from vlrl.plugins.registry import ConfigError


def service_of(function, folder, **options):
    return ModelService("m@1", Fake(function=lambda request, _: function(request)), folder, **options)


def text_of(request):
    return request.prompt.messages[-1]["content"]


def test_replies_are_cached_by_everything_that_matters(tmp_path):
    sent = []

    def say(request):
        sent.append(text_of(request))
        return f"about {text_of(request)}"

    service = service_of(say, tmp_path / "judge")
    one, two = ModelAsk("one"), ModelAsk("two")
    assert [reply.text for reply in service.ask([one, two, one])] == ["about one", "about two", "about one"]
    assert sent == ["one", "two"]  # equal asks are sent once
    assert service.usage.calls == 2 and service.usage.prompt_tokens == 0 + 0
    again = service_of(say, tmp_path / "judge")
    assert again.ask([two])[0].text == "about two" and again.usage == Usage(cached=1) and len(sent) == 2
    for other in (
        replace(two, temperature=0.5),
        replace(two, seed=1),
        replace(two, max_tokens=9),
        replace(two, system="be brief"),
        replace(two, logprobs=5),
        replace(two, schema="{}"),
    ):
        assert other.key("m@1") != two.key("m@1")
    assert two.key("m@2") != two.key("m@1")


def test_a_torn_cache_is_read_as_far_as_it_goes(tmp_path):
    service_of(lambda request: "yes", tmp_path).ask([ModelAsk("a"), ModelAsk("b")])
    file = tmp_path / "replies.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    calls = []
    service = service_of(lambda request: calls.append(1) or "yes", tmp_path)
    assert [reply.text for reply in service.ask([ModelAsk("a"), ModelAsk("b")])] == ["yes", "yes"] and len(
        calls
    ) == 1


def test_the_budget_ends_in_failures_and_sends_nothing_more(tmp_path):
    service = service_of(lambda request: "yes", tmp_path, max_calls=2)
    replies = service.ask([ModelAsk(str(number)) for number in range(4)])
    assert [reply.failure for reply in replies[:2]] == ["", ""]
    assert all("budget of 2 calls" in reply.failure and not reply.text for reply in replies[2:])
    assert service.usage.calls == 2 and service.usage.failed == 2
    assert service.ask([ModelAsk("0")])[0].text == "yes"  # what is cached costs nothing
    tokens = service_of(lambda request: "y" * 40, tmp_path / "other", max_tokens=30)
    assert not tokens.ask([ModelAsk("a")])[0].failure
    assert "budget of 30 tokens" in tokens.ask([ModelAsk("b")])[0].failure


def test_a_model_must_be_pinned(tmp_path):
    with pytest.raises(ConfigError, match="not pinned"):
        ModelService("gpt-4o", Fake(), tmp_path)


def test_the_price_counts_what_is_not_cached(tmp_path):
    service = service_of(lambda request: "yes", tmp_path)
    service.ask([ModelAsk("known")])
    usage = service.estimate([ModelAsk("known"), ModelAsk("x" * 4_000_000)], reply_tokens=2)
    assert (usage.calls, usage.prompt_tokens, usage.reply_tokens) == (1, 1_000_000, 2)
    assert usage.cost((1.0, 2.0)) == pytest.approx(1.000004)


@pytest.mark.parametrize(
    ("judge", "match"),
    [
        ({}, "got nothing"),
        ({"model": "m@1", "engine": {"name": "fake"}, "url": "x"}, "unknown field"),
        ({"model": "m@1", "engine": {"name": "fake"}, "votes": 3}, "temperature"),
        ({"model": "m@1", "engine": {"name": "fake"}, "concurrency": 0}, "concurrency"),
        ({"model": "m@1", "engine": {"name": "fake"}, "template": "corectness"}, "correctness"),
    ],
)
def test_a_wrong_judge_names_the_mistake(judge, match):
    with pytest.raises(ConfigError, match=match):
        check_judge(judge, "judge")
    assert check_judge({"model": "m@1", "engine": {"name": "fake"}}, "judge") == JudgeConfig(
        "m@1", {"name": "fake"}
    )


# --- an endpoint --------------------------------------------------------------------------------------------


class Endpoint(ThreadingHTTPServer):
    """An OpenAI-compatible endpoint that fails by plan: a fault for each `every`-th call, in turn."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, every=0, faults=(), reply=None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.every, self.faults, self.calls, self.bodies = every, faults, 0, []
        self.reply = reply or (lambda body: {"content": "Verdict: yes"})
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        """A client that has gone is no error here."""

    @property
    def engine(self):
        return OpenAI(url=f"http://127.0.0.1:{self.server_port}/v1", model="m", wait=0.01, timeout=10)


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.calls += 1
            number = server.calls
            server.bodies = (server.bodies + [body])[-5:]
        fault = None
        if server.every and number % server.every == 0:
            fault = server.faults[number // server.every % len(server.faults)]
        if fault == "reset":
            return self.connection.close()
        status = fault if isinstance(fault, int) else 200
        message = server.reply(body)
        choice = {"message": {"content": message["content"]}, "finish_reason": "stop"}
        if "logprobs" in message:
            choice["logprobs"] = {"content": message["logprobs"]}
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        content = (
            b"<html>" if fault == "garbage" else json.dumps({"choices": [choice], "usage": usage}).encode()
        )
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Silent."""


def test_no_judgement_is_lost_to_faults_of_the_endpoint(tmp_path):
    """3% faults of every kind are asked again: each reply is there, and billed once."""
    server = Endpoint(every=33, faults=(429, 500, "reset", "garbage"))
    service = ModelService("m@1", server.engine, tmp_path, concurrency=32)
    asks = [ModelAsk(f"question {number}") for number in range(660)]
    replies = service.ask(asks)
    assert not [reply.failure for reply in replies if reply.failure or reply.text != "Verdict: yes"]
    assert server.calls > 660 and service.usage.calls == 660
    assert (service.usage.prompt_tokens, service.usage.reply_tokens) == (7 * 660, 3 * 660)
    before = server.calls
    assert ModelService("m@1", server.engine, tmp_path).ask(asks) == replies and server.calls == before
    server.shutdown()


def test_a_lasting_fault_fails_that_request_alone_and_is_not_cached(tmp_path):
    server = Endpoint(reply=lambda body: {"content": "yes"})
    server.faults, server.every = (401,), 3
    service = ModelService("m@1", server.engine, tmp_path, concurrency=1)
    replies = service.ask([ModelAsk(str(number)) for number in range(5)])
    assert [bool(reply.failure) for reply in replies] == [False, False, True, False, False]
    assert "HTTP 401" in replies[2].failure and service.usage.failed == 1
    server.every = 0
    assert service.ask([ModelAsk("2")])[0].text == "yes"
    server.shutdown()


def test_a_deadline_bounds_all_tries_of_a_request(tmp_path):
    server = Endpoint(every=1, faults=(503,))
    engine = replace(server.engine, retries=50, wait=0.05, deadline=0.3)
    (reply,) = ModelService("m@1", engine, tmp_path).ask([ModelAsk("a")])
    assert "deadline of 0.3 s" in reply.failure and server.calls < 10
    server.shutdown()


def test_an_endpoint_is_asked_for_log_probs_and_a_schema(tmp_path):
    top = [{"token": " yes", "logprob": math.log(0.6)}, {"token": " no", "logprob": math.log(0.2)}]
    logprobs = [{"token": "Verdict:", "top_logprobs": []}, {"token": " yes", "top_logprobs": top}]
    server = Endpoint(reply=lambda body: {"content": "Verdict: yes", "logprobs": logprobs})
    (reply,) = ModelService("m@1", server.engine, tmp_path).ask(
        [ModelAsk("a", logprobs=20, schema='{"type": "object"}')]
    )
    assert server.bodies[-1]["top_logprobs"] == 20
    assert server.bodies[-1]["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert expected_value(("no", "yes"), reply, 9) == pytest.approx(0.75)
    (cached,) = ModelService("m@1", server.engine, tmp_path).ask(
        [ModelAsk("a", logprobs=20, schema='{"type": "object"}')]
    )
    assert cached == reply
    server.shutdown()


def test_the_expected_value_of_ordered_choices():
    top = {"3": math.log(0.5), " 5": math.log(0.25), "1": math.log(0.25), "the": -1.0}
    reply = Reply("Score: 3", logprobs=[("Score: ", {}), ("3", top)])
    choices = ("1", "2", "3", "4", "5")
    assert expected_value(choices, reply, 7) == pytest.approx(0.25 * 0 + 0.5 * 0.5 + 0.25 * 1)
    assert expected_value(choices, reply, 3) is None  # no token begins there
    assert Question((("a", "b"),)) == Question((("a", "b"),))
