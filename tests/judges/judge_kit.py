"""Judges without a model: replies by a function of the prompt."""

from __future__ import annotations

from vlrl.beside.judge import Judge, JudgeConfig
from vlrl.beside.service import ModelService
from vlrl.beside.templates import load_template
from vlrl.engine.fake import Fake


def judge_of(reply, folder, template="correctness", model="judge@1", **config):
    """A judge whose reply is a function of the prompt's text (and, with two arguments, of the seed)."""
    sent = []

    def respond(request, index):
        text = request.prompt.messages[-1]["content"]
        sent.append(text)
        return reply(text)

    made = JudgeConfig(model, {"name": "fake"}, **config)
    service = ModelService(
        model, Fake(function=respond), folder, "replies.jsonl", 16, made.max_calls, made.token_budget
    )
    judge = Judge(service, load_template(made.template or template), made)
    return judge, sent
