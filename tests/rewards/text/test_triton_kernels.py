"""Triton kernels: the rules on their text, and what only running them shows."""

import json

import pytest
from vlrl_data.generators.kernels import GenKernel
from vlrl_rewards.code.triton_kernels import TritonKernel, equal, kernel_in, rule_fault

from vlrl.plugins.scoring import GoldError

HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n"
KERNEL = """@triton.jit
def add(x, y, o, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)

"""
LAUNCH = """def f(x, y):
    out = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 32),)](x, y, out, x.numel(), B=32)
    return out
"""
RIGHT = HEAD + KERNEL + LAUNCH
GOLD = {"entry": "f", "reference": "def f(x, y):\n    return x + y", "shapes": [[50], [50]], "seeds": [3]}


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (RIGHT, ""),
        (HEAD + KERNEL + "def g(x, y, o):\n    add[(4,)](x, y, o, 50, B=32)\n" + LAUNCH.replace(
            "add[(triton.cdiv(x.numel(), 32),)](x, y, out, x.numel(), B=32)", "g(x, y, out)"), ""),
        (RIGHT.replace("@triton.jit\n", ""), "launches no function"),
        (HEAD + KERNEL + "def f(x, y):\n    return x + y\n", "launches no function"),  # a decoy
        (HEAD + KERNEL + "def f(x, y):\n    return torch.add(x, y)\n", "launches no function"),
        (RIGHT.replace("return out", "return torch.add(x, y)"), "f calls .add()"),
        (RIGHT.replace("return out", "return out.copy_(x.add(y))"), "f calls"),
        (RIGHT.replace("tl.store(", "print("), "no kernel that is"),
        (RIGHT + "\nimport os\n", "imports os"),
        ("from torch import add as plus\n" + RIGHT, "names from torch"),
        (RIGHT.replace("def f", "def g"), "no function f"),
        (RIGHT + "\nx = ().__class__\n", "reads __class__"),
        (RIGHT + "\nexec('1')\n", "names exec"),
        ("def f(:", "no Python program"),
        ("", "no function f"),
    ],
)  # fmt: skip
def test_the_rules(code, fault):
    found = rule_fault(code, "f")
    assert found == "" if not fault else fault in found, found


def test_what_is_equal():
    wanted = [[[2], [1.0, -3.0]]]
    assert equal([[[2], [1.001, -3.0]]], wanted, 1e-3) and not equal([[[2], [1.01, -3.0]]], wanted, 1e-3)
    assert not equal([[[1, 2], [1.0, -3.0]]], wanted, 1e-3) and not equal([], wanted, 1e-3)
    assert not equal([[[2], [float("nan"), -3.0]]], wanted, 1e-3) and not equal(None, wanted, 1e-3)


@pytest.mark.parametrize(
    "gold",
    [None, "", "{}", {"entry": "f"}, {**GOLD, "shapes": []}, {**GOLD, "entry": "f()"}, {**GOLD, "shapes": 3}],
)
def test_a_broken_gold_is_an_error(gold):
    with pytest.raises(GoldError, match="gold"):
        kernel_in(gold)
    assert kernel_in(json.dumps(GOLD)).seeds == (3,)


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(
    ("code", "score", "reason"),
    [
        (RIGHT, 1.0, "equal"),
        (RIGHT.replace(") + tl.load", ") - tl.load"), 0.0, "run: other outputs"),
        (RIGHT.replace("return out", "return x + y"), 0.0, "rules: the outputs do not come from the kernel"),
        (RIGHT.replace("tl.program_id(0)", "tl.no_such(0)"), 0.0, "run: "),
    ],
)
def test_outputs_decide(code, score, reason):
    found = TritonKernel().verify(GOLD, f"```python\n{code}```")
    assert (found.score, found.correct) == (score, score == 1.0) and found.reason.startswith(reason), found


@pytest.mark.parametrize("text", ["", "no program", "```python\n```", "```python\n\x00\n```"])
def test_what_is_no_program_is_not_paid(text):
    assert TritonKernel().verify(GOLD, text).score == 0.0


def test_every_demonstration_keeps_the_rules():
    for index in range(20):
        row = GenKernel().row(index)
        assert rule_fault(row.target[10:-4], "f") == "" and kernel_in(row.answer).entry == "f"
