"""No response makes a perception reward raise, run long, or leave its range; the same response always earns the same."""

from __future__ import annotations

import json
import random
import time

import pytest
from vlrl_rewards.audit.perception import SEEDS
from vlrl_rewards.verification import kinds, verify

PIECES = [
    *"[](){}<>:,;.'\"\\/|-+*&%$#@!?=_~`^ \n\t0123456789",
    *(
        "nan",
        "inf",
        "1e308",
        "-1e9",
        "None",
        "true",
        "null",
        "0x1F",
        "²",
        "٣",
        "½",
        "−5",
        "<box>",
        "</box>",
        "<point x=",
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
    ),
    *(
        "\\boxed{",
        "```json",
        "bbox_2d",
        "label",
        "Confidence",
        "counts",
        "size",
        "objects",
        "relationships",
        "\u200b",
        "\ud83d\ude00",
        "a" * 300,
        "[" * 60,
        "9" * 60,
    ),
]


def mutated(rng: random.Random, text: str) -> str:
    """`text` with pieces put in, taken out, doubled or swapped."""
    parts = list(text)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(parts) + 1)
        action = rng.randrange(4)
        if action == 0:
            parts.insert(at, rng.choice(PIECES))
        elif action == 1 and parts:
            del parts[at : at + rng.randint(1, 5)]
        elif action == 2:
            parts[at:at] = parts[max(0, at - rng.randint(1, 30)) : at]
        else:
            rng.shuffle(tail := parts[at : at + 6])
            parts[at : at + 6] = tail
    return "".join(parts)


@pytest.mark.parametrize("kind", sorted(SEEDS))
def test_mutated_answers(kind):
    kinds()
    seed, rng = SEEDS[kind], random.Random(kind)
    for i in range(40):
        body = mutated(rng, rng.choice((seed.right, *seed.wrong)))
        text = (f"<answer>{body}</answer>", body, mutated(rng, f"<think>x</think><answer>{body}</answer>"))[i % 3]
        started = time.thread_time()
        first, second = (verify(seed.gold, text, kind=kind, choices=seed.choices, **seed.options) for _ in range(2))
        assert time.thread_time() - started < 4.0, text
        assert 0 <= first.score <= 1 and isinstance(first.correct, bool), text
        assert (first.score, first.correct, first.reason) == (second.score, second.correct, second.reason), text
        if first.correct:
            assert first.score > 0, text


@pytest.mark.parametrize("text", ['["\\ud800"]', "['\\ud800']", '{"label": "\\udc00"}'])
def test_verdicts_can_always_be_written(text):
    """Half a surrogate pair is legal in JSON, and in no file."""
    for kind, gold in (("labels", ["cat"]), ("label", "cat"), ("extraction", {"a": "b"}), ("triples", [["a", "b", "c"]])):
        verdict = verify(gold, f"<answer>{text}</answer>", kind=kind)
        assert not verdict.correct and json.dumps(verdict.to_dict(), ensure_ascii=False).encode()
