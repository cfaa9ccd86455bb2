"""No response makes a text verifier or reward raise, run long, change its verdict, or leave [0, 1]: what the
fuzzer found, and a short run of it."""

from __future__ import annotations

import json
import random

import pytest
from vlrl_rewards import verify
from vlrl_rewards.audit import fuzz
from vlrl_rewards.math import judge

# a subscript, a number, an interval, a function, a call that was read as far as its end and no further
FOUND = [
    ("5", "<answer>c_</answer>"),
    ("5", r"\boxed{x^2 + b_}"),
    ("7", "1e9999"),
    ("101_2", "1e9999_2"),
    ("101_2", "1e9999"),
    ("x < 3", r"\boxed{[|0|,(x))}"),
    ("[1, 3)", r"\boxed{[a, b)}"),
    ("7", r"{(-6)!\lim_{x\to3}x}"),
    ("7", r"\boxed{\Gamma(-6)! + (-2)!\sum_{i=1}^{3} i}"),
    ("7", r"\boxed{abs(1, 2)}"),
    ("7", r"\boxed{floor(1, 2)}"),
    ("7", r"\boxed{binom(1)}"),
    ("7", r"\boxed{gcd(1/2)}"),
    ("7", r"\boxed{\ln(1, 2, 3)}"),
]


@pytest.fixture(autouse=True)
def without_the_library(monkeypatch):
    """Math-verify runs in its own process, and is tested in test_bombs.py."""
    monkeypatch.setattr(judge, "compare", lambda gold, said: (None, "not asked"))


@pytest.mark.parametrize(("gold", "response"), FOUND)
@pytest.mark.parametrize("kind", ["math", "numeric", "auto"])
def test_what_was_found(kind, gold, response):
    verdict = verify(gold, response, kind)
    assert not verdict.correct and verdict.score == 0.0 and verdict.reason


@pytest.mark.parametrize(
    ("kind", "gold", "answer"),
    [
        (
            "scene_graph",
            {"objects": [{"id": "dog.1", "bbox": [0, 0, 9, 9]}], "relationships": []},
            '{"objects": 3}',
        ),
        ("chart_code", "plt.bar([1])", f"```python\nplt.bar([{10**400}])\n```"),
    ],
)
def test_what_was_found_in_values(kind, gold, answer):
    options = {"meta": {"size": (20, 20)}} if kind == "scene_graph" else {}
    assert verify(gold, answer, kind, **options).score < 1


@pytest.mark.parametrize(
    "kind", ["math", "numeric", "text", "mcq", "yes_no", "f1", "list", "ranking", "brier"]
)
def test_a_verdict_can_always_be_written(kind):
    """Half a surrogate pair is legal in JSON, and in no file."""
    gold = {"mcq": "B", "yes_no": "yes", "brier": 1, "list": ["a"], "ranking": ["a"]}.get(kind, "7")
    verdict = verify(gold, "<answer>a \ud800</answer>", kind)
    assert not verdict.correct and json.dumps(verdict.to_dict(), ensure_ascii=False).encode()


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(fuzz.subjects()))
def test_json_of_every_type(name):
    """Every part of every JSON answer left out, and replaced by values of every type: 60 of them, at
    random."""
    (subject,) = fuzz.subjects({name: None}).values()
    draw = random.Random(name)
    typed = [variant for text in subject.texts for variant in fuzz.retyped(text)]
    for response in draw.sample(typed, min(len(typed), 60)):
        body = response if "<answer>" in response else f"<answer>{response}</answer>"
        number = draw.randrange(subject.cases)
        assert not fuzz.fault(subject, number, body), (number, body)


@pytest.mark.timeout(60)
def test_long_digits_of_a_sequence_are_read_in_time():
    (subject,) = fuzz.subjects({"reward sequence": None}).values()
    for digits in ("1" + "0" * 400, "2: " + "12 " * 500 + "x", "2: " + "123456" * 60 + "x"):
        assert not fuzz.fault(subject, 0, f"<answer>{digits}</answer>")


@pytest.mark.sweep
@pytest.mark.timeout(60)  # an exponential pattern never ends
@pytest.mark.parametrize("name", sorted(fuzz.subjects()))
def test_repeated_texts_are_read_in_time(name):
    (subject,) = fuzz.subjects({name: None}).values()
    for response in random.Random(name).sample([*fuzz.pumped(subject, (60, 3000))], 16):
        assert not fuzz.fault(subject, 0, response), response


def test_retyped_reaches_every_part():
    made = set(fuzz.retyped('so {"a": [1, {"b": "c"}]} it is'))
    assert {
        'so {"a": 0} it is',
        "so {} it is",
        'so {"a": [1, {"b": null}]} it is',
        'so {"a": [1, {}]} it is',
        'so {"a": [{"b": "c"}]} it is',
    } <= made
    assert not [*fuzz.retyped("no value"), *fuzz.retyped("[1, ")]


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(fuzz.subjects()))
def test_a_short_run(name):
    (subject,) = fuzz.subjects({name: None}).values()
    for number, response in fuzz.responses(subject, random.Random(name), 40):
        assert not fuzz.fault(subject, number, response), (number, response)


@pytest.mark.needs("bwrap")
def test_programs_are_fuzzed_in_the_sandbox():
    """Of the seed's gold, the first of five; the right program, a wrong one, and random ones in fences."""
    (subject,) = fuzz.subjects({"kind code": None}).values()
    assert (
        "kind code" in fuzz.subjects(sandbox=True)
        and "kind code" not in fuzz.subjects()
        and subject.cases == 5
    )
    assert (
        subject.judge(0, "```python\nn = int(input())\nprint(n * n)\n```")[0] == 1.0
        and subject.judge(0, "```python\nprint(4)\n```")[0] == 0.0
    )
    made = list(fuzz.responses(subject, random.Random(0), 40))
    assert sum("```python" in response for _, response in made) > 20
    for number, response in made[:4]:
        assert not fuzz.fault(subject, number, response), (number, response)


def test_a_fault_is_found_and_shrunk():
    def judge_text(_, response):
        if "[" in response and "]" in response:
            raise KeyError("both brackets")
        return len(response)

    subject = fuzz.Subject("broken", judge_text, 1, ("a [b] c",))
    found = {fuzz.fault(subject, *case): case for case in fuzz.responses(subject, random.Random(0), 60)}
    fault = next(text for text in found if text)
    assert fault.startswith("KeyError") and "judge_text" in fault
    assert sorted(fuzz.shrunk(subject, *found[fault], fault)) == ["[", "]"]
    counter = iter(range(10**6))
    changing = fuzz.Subject("changing", lambda _, response: next(counter), 1, ("a",))
    assert fuzz.fault(changing, 0, "a") == "not deterministic"


def test_the_same_seed_gives_the_same_responses():
    (subject,) = fuzz.subjects({"kind math": None}).values()
    first, again = (list(fuzz.responses(subject, random.Random(3), 50)) for _ in range(2))
    assert first == again and len({response for _, response in first}) > 40
