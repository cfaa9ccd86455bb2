"""Judges without a model: replies by a function of the prompt, or from a table; rewards that ask them."""

from __future__ import annotations

from types import SimpleNamespace

from vlrl.beside.judge import Judge, JudgeConfig
from vlrl.beside.service import ModelService
from vlrl.beside.templates import load_template
from vlrl.engine.fake import Fake
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Prompt, Rollout, Row


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


def group_of(*texts, answer="4", question="2 + 2?", rewards=None, correct=None, length=4, **meta):
    prompt = Prompt(Row("r", question, answer=answer, meta=meta), ({"role": "user", "content": question},))
    rollouts = []
    for place, text in enumerate(texts):
        rollout = Rollout(prompt, list(range(length)), text)
        rollout.reward = rewards[place] if rewards else 0.0
        rollout.correct = bool(correct[place]) if correct else False
        rollouts.append(rollout)
    return Group(prompt, rollouts)


def opened(spec, folder):
    reward = build(Reward, spec)
    reward.setup(SimpleNamespace(output=folder, rank=0, policy=None))
    return reward


def judge(table, options=("hm",), model="judge@1"):
    return {"model": model, "engine": {"name": "fake", "options": options, "table": table}}
