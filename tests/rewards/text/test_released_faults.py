"""Faults measured in released verifiers and rewards; each is shown not to be ours. Where no project is named
the fault is common to several."""

import pytest
from vlrl_rewards import verify
from vlrl_rewards.math import pool as math_pool

from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward

FAULTS = [  # (fault, gold, response, kind, choices, right?)
    ("Math-Verify reads nothing in a bare answer tag", "6", "<answer>6</answer>", "math", (), True),
    ("Math-Verify merges two boxes into a set", "4", r"\boxed{3} no wait, \boxed{4}", "math", (), True),
    ("Math-Verify reads the thinking", "5", "<think>maybe 5</think><answer>6</answer>", "math", (), False),
    ("Math-Verify rounds to six places", "1e-7", "2e-7", "math", (), False),
    ("Math-Verify drops subscripts", "2516_8", "2516_9", "math", (), False),
    ("Math-Verify takes the last number of a range", "8", "between 6 and 8", "math", (), False),
    ("Math-Verify takes the number behind a refusal", "42", "I cannot solve this. 42", "math", (), False),
    ("Math-Verify reads unclosed thinking", "6", r"<think>so \boxed{6}", "math", (), False),
    ("Math-Verify equates a tuple and a set", "(1,2)", r"\{1,2\}", "math", (), False),
    ("Math-Verify refuses repeating decimals", r"\frac13", r"0.\overline{3}", "math", (), True),
    ("Math-Verify is not symmetric in inequality and interval", r"(1,\infty)", "x>1", "math", (), True),
    ("Math-Verify reads a list as a decimal", "0,1", "0.1", "math", (), False),
    ("Math-Verify reads what is invisible", "5", r"\boxed{\phantom{5}}", "math", (), False),
    ("Qwen2.5-Math forgives a factor of 100", "0.5", "50", "math", (), False),
    ("Qwen2.5-Math has a relative tolerance", "1000000", "1000001", "math", (), False),
    ("Qwen2.5-Math compares integers as floats", "9007199254740993", "9007199254740992", "math", (), False),
    ("Qwen2.5-Math ignores brackets", "[1,2)", "(1,2]", "math", (), False),
    ("Qwen2.5-Math ignores the order of a fraction", "a/b", "b/a", "math", (), False),
    ("Qwen2.5-Math drops unit letters", "(a+5)(b+2)", "(+5)(b+2)", "math", (), False),
    ("ToRA accepts a rounded root", r"2\sqrt2", "2.83", "math", (), False),
    ("prm800k loses the index of a root", r"\sqrt[3]{4}", r"\sqrt{4}", "math", (), False),
    ("prm800k loses parentheses", "(2x+1)/3", "2x+1/3", "math", (), False),
    ("prm800k loses the whole of a mixed number", "-1/2", "-1 1/2", "math", (), False),
    ("prime_math accepts any name", "x=5", "y=5", "math", (), False),
    (
        "a box per candidate, gold last",
        "4",
        r"\boxed{1} then \boxed{2} then \boxed{3} then \boxed{4}",
        "math",
        (),
        False,
    ),
    ("units in conflict", "5 cm", "5 m", "math", (), False),
    ("two answers in one box", "5", r"\boxed{5\text{ or }6}", "math", (), False),
    ("Video-R1 rounds numbers to two places", "0.001", "<answer>0.002</answer>", "numeric", (), False),
    ("Video-R1 refuses a point on one side", "3.0", "<answer>3</answer>", "numeric", (), True),
    ("Video-R1 compares choices as strings", "B", "<answer>(B)</answer>", "mcq", (), True),
    ("VLM-R1 does not read a letter in parentheses", "B", "(B)", "mcq", ("x", "y"), True),
    (
        "VLM-R1 is confused by a second letter",
        "A",
        "The answer is A because B is wrong.",
        "mcq",
        ("x", "y"),
        True,
    ),
    ("VLM-R1 finds 'no' in 'know'", "no", "I do not know", "yes_no", (), False),
    ("VLM-R1 gives credit for near strings", "cat", "cats", "text", (), False),
    (
        "SEED-Bench-R1 takes the first character",
        "B",
        "<answer>Both are plausible</answer>",
        "mcq",
        ("x", "y"),
        False,
    ),
    ("Visual-RFT: gold in answer or answer in gold", "dog", "<answer></answer>", "text", (), False),
    (
        "Visual-RFT: gold in answer or answer in gold",
        "dog",
        "<answer>dog cat cow</answer>",
        "text",
        (),
        False,
    ),
    ("digits alone are compared", "12 kg", "<answer>1 m and 2 kg</answer>", "numeric", (), False),
    ("a nudge for every option", "B", "A, B, C, D", "mcq", ("w", "x", "y", "z"), False),
    (
        "SoundMind reads 'entailed' in 'not-entailed'",
        "entailed",
        "<answer>not-entailed</answer>",
        "text",
        (),
        False,
    ),
    ("MathVista maps silence to the nearest choice", "2", "", "mcq", ("2", "30"), False),
]


@pytest.fixture(scope="module", autouse=True)
def pool():
    math_pool.warm(wait=True)


@pytest.mark.parametrize(
    ("fault", "gold", "response", "kind", "choices", "right"),
    FAULTS,
    ids=[f"{i}-{row[0][:40]}" for i, row in enumerate(FAULTS)],
)
def test_fault(fault, gold, response, kind, choices, right):
    assert verify(gold, response, kind, choices).correct is right, fault


@pytest.mark.parametrize(
    "payload",
    [
        "__import__('pathlib').Path({file!r}).write_text('1')",
        "exec(\"open({file!r}, 'w').write('1')\")",
        r"\input{{{file}}}",
    ],
)
def test_no_code_of_the_model_is_executed(tmp_path, payload):
    """ToRA and Qwen2.5-Math hand answers to a parser that evaluates them."""
    file = tmp_path / "written"
    for kind in ("math", "numeric", "text", "json", "list"):
        text = payload.format(file=str(file))
        verify('{"a": 1}' if kind == "json" else "5", rf"\boxed{{{text}}}", kind)
        verify('{"a": 1}' if kind == "json" else "5", f"<answer>{text}</answer>", kind)
    assert not file.exists()


def test_a_gold_that_cannot_be_read_is_no_free_point(rollout):
    """Open-R1, MM-EUREKA and lmm-r1 give 1.0 where the gold answer does not parse."""
    assert build(Reward, "math")(rollout("no solution exists", "<answer>anything</answer>")) == 0.0
    with pytest.raises(ValueError, match="gold"):
        build(Reward, "math")(rollout("", "<answer>anything</answer>"))


def test_cosine_length_asks_for_correctness(rollout):
    """VLM-R1 sets accuracy to 1 inside its length reward, and climbs again beyond the maximum."""
    reward = build(Reward, {"name": "cosine_length", "max_tokens": 100})
    right, bad = rollout("4", "<answer>4</answer>", ids=10), rollout("4", "<answer>5</answer>", ids=10)
    assert reward(right) > 1 > 0 > reward(bad)
    assert reward(rollout("4", "<answer>4</answer>", ids=150)) == reward(
        rollout("4", "<answer>4</answer>", ids=199)
    )


def test_an_empty_or_missing_structure_earns_nothing(rollout):
    """VLM-R1's detection reward gives 1.0 where neither side has a fence; ours of JSON and lists give
    none."""
    assert verify({"a": 1}, "no json at all", "json").score == 0.0
    assert verify(["a"], "", "list").score == 0.0


def test_verifier_runs_in_threads():
    """Math-Verify's own time limit needs the main thread."""
    import threading

    found = []
    thread = threading.Thread(
        target=lambda: found.append(verify(r"\frac{d}{dx} x^2", r"\boxed{2x}", "math").correct)
    )
    thread.start()
    thread.join()
    assert found in ([True], [False])


def test_the_pool_survives_bombs_with_flat_memory():
    """Bombs that only a killed process stops leave the pool healthy."""
    import os
    from pathlib import Path

    def memory() -> int:
        return int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[1])

    pool = math_pool.pool()
    bomb = r"\sum_{i=1}^{10^{9}} \frac{1}{i^{i}}"
    pool.compare("1", bomb, 0.05)
    before = memory()
    for i in range(40):
        assert pool.compare(str(i), bomb, 0.05)[0] is None
    assert memory() - before < 2000
    assert pool.compare(r"\frac{1}{2}", "0.5", 30.0)[0] is True
