"""A served teacher: a server with vLLM's `prompt_logprobs` says what the same model in the process says; its
faults are no scores."""

from __future__ import annotations

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from run_kit import last_step
from tiny import steps, text_run, vision_run

from vlrl.engine.openai import scores_of
from vlrl.methods.common.served_teacher import likely
from vlrl.plugins.registry import ConfigError, build
from vlrl.policy.family import Family
from vlrl.policy.policy import Policy

SPEC = {"name": "text", "tiny": {"hidden": 48, "layers": 1, "heads": 2, "kv_heads": 1, "seed": 7}}
SMALL = "{name: text, tiny: {hidden: 48, layers: 1, heads: 2, kv_heads: 1, seed: 7}}"


class Server(ThreadingHTTPServer):
    """Serves a policy's log-probs; `faults` are what it does before it answers, by call."""

    daemon_threads = True

    def __init__(self, policy=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.policy, self.faults, self.seen, self.lock = policy, {}, [], threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.seen.append((self.path, body))
            fault = self.server.faults.get(len(self.server.seen) - 1)
            reply = fault if fault is not None else self.answer(body)
        status, said = reply if isinstance(reply, tuple) else (200, reply)
        content = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def answer(self, body):
        policy, ids = self.server.policy, body.get("prompt")
        if ids is None:  # a chat: the completion's tokens, all equally likely
            text = body["messages"][-1]["content"]
            ids = [0, *policy.encode_text(text)]
            listed = [None, *({str(token): {"logprob": -1.0, "rank": 1}} for token in ids[1:])]
            return {"choices": [{}], "prompt_logprobs": listed, "usage": {"prompt_tokens": len(ids)}}
        with torch.no_grad():
            hidden = policy.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states[-1]
            law = policy.logits(hidden[0]).float().log_softmax(-1)
        listed = [None]
        for place, token in enumerate(ids[1:]):
            top = law[place].topk(body["prompt_logprobs"])
            values = dict(zip(top.indices.tolist(), top.values.tolist()))
            values.setdefault(token, float(law[place, token]))
            listed.append({str(name): {"logprob": max(v, -9999.0), "rank": 1} for name, v in values.items()})
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1}
        return {"choices": [{"text": "x", "prompt_logprobs": listed}], "usage": usage}

    def log_message(self, *_):
        return


@pytest.fixture
def server():
    made = Server(Policy(build(Family, SPEC, "policy")))
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def served(server, tokens="sampled", more="", extra=()):
    engine = f"{{name: openai, url: '{server.url}', model: t, retries: 1, wait: 0.0, deadline: 20}}"
    teacher = f"{{model: t@1, engine: {engine}{more}}}"
    return [f"loss_terms.teacher={{name: distill, tokens: {tokens}, k: 8, teacher: {teacher}}}", *extra]


def scores(run):
    term = run.objective.loss_terms["teacher"]
    rollouts = [rollout for group in last_step(run).groups for rollout in group]
    return term.scores(rollouts), rollouts


@pytest.mark.parametrize("tokens", ["sampled", "top_k"])
def test_it_says_what_the_same_model_says_in_the_process(server, tmp_path, tokens):
    out = [f"output={tmp_path}"]
    far = text_run(["methods/grpo"], served(server, tokens, extra=out))
    own = f"loss_terms.teacher={{name: distill, tokens: {tokens}, k: 8, teacher: {{policy: {SMALL}}}}}"
    near = text_run(["methods/grpo"], [own])
    (first,), (second,) = steps(far, 1), steps(near, 1)
    assert first["teacher/failed"] == 0
    assert first["teacher/divergence"] == pytest.approx(second["teacher/divergence"], abs=1e-4)
    assert first["grad_norm"] == pytest.approx(second["grad_norm"], rel=1e-3)
    assert {path for path, _ in server.seen} == {"/v1/completions"}
    assert len(server.seen) == 24 and server.seen[0][1]["prompt_logprobs"] == (8 if tokens == "top_k" else 1)
    usage = far.objective.loss_terms["teacher"].state.teachers.distinct[0].service.usage
    assert usage.calls == 24 and usage.prompt_tokens > 24 and usage.failed == 0


def test_a_failure_masks_its_rollout_and_is_counted(server, tmp_path):
    """A refusal and a broken reply are two rollouts without teacher; a passing fault is tried again."""
    server.faults = {
        0: (400, {"error": "no"}),
        1: (503, {}),
        2: {"choices": [{}]},
        3: {"choices": [{}]},
    }
    run = text_run(["methods/grpo"], served(server, more=", concurrency: 1", extra=[f"output={tmp_path}"]))
    (metrics,) = steps(run, 1)
    assert metrics["teacher/failed"] == pytest.approx(2 / 24) and metrics["teacher/divergence"] > 0
    server.faults = {n: (400, {}) for n in range(len(server.seen), 1000)}
    found, rollouts = scores(run)
    assert all("HTTP 400" in score.failure and not score.logp for score in found)
    for rollout in rollouts:
        rollout.signals.pop("teacher_logp")
    values = run.current.aux_tensors["teacher_logp"](run.policy, run.batch(last_step(run).groups))
    assert (values == 1.0).all()  # no log-prob


def test_an_endpoint_that_is_gone_ends_no_run(server, tmp_path):
    words = served(server, "top_k", extra=[f"output={tmp_path}"])
    server.shutdown()
    server.server_close()
    (metrics,) = steps(text_run(["methods/grpo"], words), 1)
    assert (
        metrics["teacher/failed"] == 1.0 and metrics["teacher/divergence"] == 0 and metrics["grad_norm"] > 0
    )


def test_the_budget_ends_in_failures(server, tmp_path):
    run = text_run(["methods/grpo"], served(server, more=", max_calls: 6", extra=[f"output={tmp_path}"]))
    (metrics,) = steps(run, 1)
    assert metrics["teacher/failed"] == pytest.approx(18 / 24) and len(server.seen) == 6


def test_pictures_go_as_messages_and_the_completion_as_text(server, tmp_path):
    run = vision_run(
        ["methods/grpo"],
        [
            *served(server, extra=[f"output={tmp_path}"]),
            "policy.tiny.hidden=32",
            "policy.tiny.layers=1",
            "engine={name: fake, options: ['<answer>{answer}</answer>', '<answer>3</answer>']}",
        ],
    )
    server.policy = run.policy
    (metrics,) = steps(run, 1)
    assert metrics["teacher/failed"] == 0
    path, body = server.seen[0]
    assert (
        path == "/v1/chat/completions"
        and body["continue_final_message"]
        and not body["add_generation_prompt"]
    )
    assert body["messages"][0]["content"][0]["image_url"]["url"].startswith("data:image/png")
    assert body["messages"][-1]["role"] == "assistant"
    found, rollouts = scores(run)
    assert all(score.logp[:-1] == [-1.0] * (len(r) - 1) for score, r in zip(found, rollouts))
    assert all(score.logp[-1] is None for score in found)  # the end of the turn is no part of the text


def test_another_tokenizer_behind_an_endpoint(server, tmp_path):
    other = Policy(build(Family, {**SPEC, "tiny": {**SPEC["tiny"], "vocabulary": 300}}, "policy"))
    other.save(tmp_path / "teacher")
    server.policy = other
    more = f", tokenizer: {tmp_path / 'teacher'}"
    far = text_run(["methods/grpo"], served(server, more=more, extra=[f"output={tmp_path / 'run'}"]))
    own = SMALL.replace("seed: 7", "seed: 7, vocabulary: 300")
    near = text_run(["methods/grpo"], [f"loss_terms.teacher={{name: distill, teacher: {{policy: {own}}}}}"])
    (first,), (second,) = steps(far, 1), steps(near, 1)
    assert first["teacher/failed"] == 0
    assert first["teacher/divergence"] == pytest.approx(second["teacher/divergence"], abs=1e-4)


def test_temperatures_that_a_server_does_not_know(server, tmp_path):
    run = text_run(["methods/grpo"], served(server, extra=[f"output={tmp_path}", "sampling.temperature=0.7"]))
    with pytest.raises(ConfigError, match=r"at 0.7; set sampling.temperature=1 or logp_temperature=1"):
        steps(run, 1)
    at_one = ["sampling.temperature=0.7", "logp_temperature=1.0"]
    run = text_run(["methods/grpo"], served(server, extra=[f"output={tmp_path / 'one'}", *at_one]))
    assert steps(run, 1)[0]["teacher/failed"] == 0
    with pytest.raises(ConfigError, match="whole vocabulary"):
        text_run(["methods/grpo"], served(server, "full", extra=[f"output={tmp_path}"]))


def test_the_reply_of_a_server():
    place = {"7": {"logprob": -0.5, "rank": 1, "decoded_token": "a"}, "9": {"logprob": -1.0}}
    reply = {"choices": [{"prompt_logprobs": [None, {"1": {"logprob": 0.0}}, place]}]}
    assert scores_of(reply, [9]) == [{7: -0.5, 9: -1.0}]
    assert scores_of({"choices": [{}], "prompt_logprobs": [None, place]}, [7]) == [{7: -0.5, 9: -1.0}]
    for wrong, said in (
        ({"error": {"message": "busy"}}, "an error"),
        ({"choices": [{"prompt_logprobs": None}]}, "no prompt_logprobs"),
        ({"choices": [{"prompt_logprobs": [None]}]}, "no prompt_logprobs"),
        ({"choices": [{"prompt_logprobs": [None, {"7": -0.5}]}]}, "another form"),
        ({"choices": [{"prompt_logprobs": [None, place]}]}, "other tokens"),
    ):
        with pytest.raises(ValueError, match=said):
            scores_of(wrong, [8])


def test_the_rest_of_rounded_numbers():
    ids, logp = likely({3: math.log(0.6), 4: math.log(0.3), 5: math.log(0.05)}, 2)
    assert ids == [3, 4] and [math.exp(v) for v in logp] == pytest.approx([0.6, 0.3, 0.1])
    assert math.exp(likely({3: 0.001}, 1)[1][-1]) == pytest.approx(1e-6)  # more than 1: rounded
