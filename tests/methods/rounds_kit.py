"""A run whose tokens are letters and whose engine says what a function says: for strategies that ask several
times."""

from __future__ import annotations

from types import SimpleNamespace

from make import run

from vlrl.types import Completion, Prompt, Rollout, Row, Sampling


class Letters:
    """Characters as tokens."""

    eos_token_id = 0

    def decode(self, ids):
        return "".join(map(chr, ids))

    def encode(self, text, add_special_tokens=False):
        return list(map(ord, text))


def said(prompt):
    """The whole text of a prompt."""
    return "|".join("".join(item["text"] for item in message["content"]) for message in prompt.messages)


def prompt(name="r", question="q", prefix="", **row):
    return Prompt(
        Row(name, question, "!", **row),
        ({"role": "user", "content": [{"type": "text", "text": question}]},),
        prefix=prefix,
    )


def letters(speak, rows=(), room=200, **parts):
    """A run in which sample `index` of a request is `speak(request, index)` behind what was given; what ends
    in "!" is correct. `run.asked` logs."""
    asked = []

    def generate(requests):
        for request in requests:
            asked.append(
                (
                    request.prompt.row.id,
                    said(request.prompt),
                    "".join(map(chr, request.prefix_ids)),
                    request.n,
                    request.sampling.max_tokens,
                )
            )
            for index in reversed(range(request.n)):  # engines promise no order
                text = "".join(map(chr, request.prefix_ids)) + speak(request, index)
                ids = [*map(ord, text), 0]
                yield Completion(request, index, ids, [-0.5] * len(ids), text, "stop")

    def score(groups):
        for rollout in (r for group in groups for r in group):
            rollout.rewards.setdefault("answer", float(rollout.text.endswith("!")))
            rollout.reward = rollout.outcome = rollout.rewards["answer"]
            rollout.correct = rollout.outcome == 1.0

    policy = SimpleNamespace(
        tokenizer=Letters(),
        encode_text=Letters().encode,
        encode=lambda prompt: list(said(prompt)),
        spaces=lambda prompt: (),
        version=0,
    )
    defaults = {
        "engine": SimpleNamespace(generate=generate), "score": score, "policy": policy, "sampling": lambda p,
        a: Sampling(max_tokens=8),
        "settings": SimpleNamespace(max_prompt_tokens=room, steps=10), "rows": {"main": list(rows)},
        "seed": 0, "phase_step": 0, "asked": asked,
        "make_rollout": lambda c: Rollout(c.request.prompt, list(c.ids), c.text, list(c.logp),
            temperature=c.request.sampling.temperature),
    }  # fmt: skip
    return run(**{**defaults, **parts})


def prepared(strategy, parts):
    strategy.setup(parts)
    return strategy
