"""No response makes a perception reward raise, run long, or leave its range; the same response always earns
the same."""

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


@pytest.mark.sweep
@pytest.mark.parametrize("kind", sorted(SEEDS))
def test_mutated_answers(kind):
    kinds()
    seed, rng = SEEDS[kind], random.Random(kind)
    for i in range(40):
        body = mutated(rng, rng.choice((seed.right, *seed.wrong)))
        text = (f"<answer>{body}</answer>", body, mutated(rng, f"<think>x</think><answer>{body}</answer>"))[
            i % 3
        ]
        started = time.thread_time()
        first, second = (
            verify(seed.gold, text, kind=kind, choices=seed.choices, **seed.options) for _ in range(2)
        )
        assert time.thread_time() - started < 4.0, text
        assert 0 <= first.score <= 1 and isinstance(first.correct, bool), text
        assert (first.score, first.correct, first.reason) == (second.score, second.correct, second.reason), (
            text
        )
        if first.correct:
            assert first.score > 0, text


@pytest.mark.parametrize("text", ['["\\ud800"]', "['\\ud800']", '{"label": "\\udc00"}'])
def test_verdicts_can_always_be_written(text):
    """Half a surrogate pair is legal in JSON, and in no file."""
    for kind, gold in (
        ("labels", ["cat"]),
        ("label", "cat"),
        ("extraction", {"a": "b"}),
        ("triples", [["a", "b", "c"]]),
    ):
        verdict = verify(gold, f"<answer>{text}</answer>", kind=kind)
        assert not verdict.correct and json.dumps(verdict.to_dict(), ensure_ascii=False).encode()


# --- values of every type under every key -------------------------------------------------------------------

KEYS = [
    "bbox",
    "bbox_2d",
    "box",
    "label",
    "id",
    "name",
    "x",
    "y",
    "x1",
    "y1",
    "x2",
    "y2",
    "point",
    "coordinate",
    "action",
    "arguments",
    "type",
    "text",
    "direction",
    "objects",
    "relationships",
    "subject",
    "predicate",
    "object",
    "counts",
    "size",
    "keypoints",
    "nose",
    "polygon",
    "start",
    "end",
    "value",
    "ids",
    "answer",
    "final_answer",
    "Position",
    "Confidence",
    "steps",
    "nodes",
    "width",
    "height",
    "top_left",
    "score",
]
NUMBERS = [
    0,
    -1,
    1,
    10**9,
    10**18,
    10**400,
    -(10**30),
    0.5,
    -0.0,
    1e308,
    1e-300,
    2.5,
    float("nan"),
    float("inf"),
]
TEXTS = ["", "click", "none", "[1,2]", "\ud800", "a" * 50, "1,2,3,4", "0", "PPYo0", "cat", "²", "१२"]
STRUCTURED = {
    "mask": {"counts": [0, 100], "size": [100, 100]},
    "gui_action": {"action": "click", "arguments": {"point": [30, 30]}},
    "keypoints": {"keypoints": {"nose": [1, 2]}},
    "scene_graph": SEEDS["scene_graph"].gold,
}


def any_value(rng: random.Random, depth: int = 0) -> object:
    """A value of any type that JSON has, and some that it has not."""
    makers = [
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice([*TEXTS, *KEYS]),
        lambda: [rng.randint(-5, 120) for _ in range(rng.choice([0, 1, 2, 3, 4, 5, 6, 8]))],
        lambda: [[rng.randint(0, 100), rng.randint(0, 100)] for _ in range(rng.randrange(6))],
        lambda: rng.randint(0, 100),
        lambda: [any_value(rng, depth + 1) for _ in range(rng.randrange(4))],
        lambda: {rng.choice(KEYS): any_value(rng, depth + 1) for _ in range(rng.randrange(5))},
    ]
    return rng.choice(makers[: 7 if depth >= 4 else None])()


def changed(rng: random.Random, value: object) -> object:
    """The value with one member replaced, or under another key."""
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [changed(rng, member) if i == at else member for i, member in enumerate(value)]
    if not isinstance(value, dict) or not value or rng.random() < 0.2:
        return any_value(rng)
    key = rng.choice(list(value))
    return {
        rng.choice(KEYS) if k == key and rng.random() < 0.3 else k: changed(rng, v) if k == key else v
        for k, v in value.items()
    }


@pytest.mark.parametrize("kind", sorted(SEEDS))
def test_values_of_every_type(kind):
    kinds()
    seed, rng = SEEDS[kind], random.Random(f"structured {kind}")
    for i in range(60):
        value = changed(rng, STRUCTURED[kind]) if kind in STRUCTURED and i % 2 else any_value(rng)
        text = (json.dumps, repr)[i % 3 == 0](value)
        text = text[: rng.randrange(len(text) + 1)] if i % 4 == 0 else text
        verdict = verify(
            seed.gold, f"<answer>{text}</answer>", kind=kind, choices=seed.choices, **seed.options
        )
        assert 0 <= verdict.score <= 1, text
