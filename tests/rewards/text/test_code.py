"""Code by unit tests, in the sandbox: right, wrong, and programs that attack the judge or the machine."""

import os
import time
from pathlib import Path

import pytest
from vlrl_rewards import verify
from vlrl_rewards.code import isolation, sandbox
from vlrl_rewards.code.sandbox import SandboxError, SandboxLimits
from vlrl_rewards.code.verifier import program_in, same_output, same_result, unit_tests
from vlrl_rewards.code.verilog import module_in
from vlrl_rewards.math.formal_proof import submitted

from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward

SUM = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7.0"]}
APPEND = {"inputs": ["[1,2]\n3", "[4]\n5"], "outputs": ["[1,2,3]", "[4,5]"], "fn_name": "add"}
ADD = "a,b=map(int,input().split())\nprint(a+b)"
MODES = [
    pytest.param("bubblewrap", marks=pytest.mark.needs("bwrap")),
    "unsafe",
]


def fenced(code):
    return f"<think>hm</think>Here:\n```python\n{code}\n```\n"


def judge(gold, code, mode, **options):
    return verify(gold, fenced(code), "code", sandbox=mode, **{"seconds": 1.5, **options})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("gold", "code", "passes"),
    [
        (SUM, ADD, True),
        (SUM, "print(3)", False),
        (SUM, "def f(", False),
        (SUM, "import sys; sys.exit(0)", False),
        (SUM, "import os; os._exit(0)", False),
        (APPEND, "def add(a, b): return a + [b]", True),
        (
            APPEND,
            "class Solution:\n  def add(self, a, b):\n    print('noise')\n    return tuple(a) + (b,)",
            True,
        ),
        (APPEND, "def add(a, b): return None", False),
        ("assert f(1) == 2\nassert f(2) == 3", "def f(x): return x + 1", True),
        (
            "assert f(1) == 2",
            "class E(int):\n  def __eq__(self, other): return True\ndef f(x): return E(7)",
            False,
        ),
        ([{"input": "5", "output": "25"}], "print(int(input()) ** 2)", True),
        (
            "assert f(1) == 2",
            "def f(x):\n  r = 2\n  for i in range(9000): r = [r]\n  return r",
            False,
        ),  # deeper than JSON can be read
    ],
)
def test_programs(mode, gold, code, passes):
    assert judge(gold, code, mode).correct is passes


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "bomb",
    [
        "while True: pass",
        "x = [0] * 10**11",
        "print('x' * 10**8)",
        "import os, time\nos.fork()\ntime.sleep(60)",
        "import os\nos.kill(os.getppid(), 9)",
    ],
)
def test_bombs_end_soon(mode, bomb):
    start = time.perf_counter()
    assert not judge(SUM, bomb, mode, seconds=0.8, memory_mb=256).correct
    assert time.perf_counter() - start < 40


@pytest.mark.needs("bwrap")
def test_no_network_no_files_no_processes_left(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    probe = f"""
import os, socket
def tries(f):
    try:
        f(); return "yes"
    except OSError:
        return "no"
print(tries(lambda: socket.create_connection(("1.1.1.1", 80), 0.3)))
print(tries(lambda: open({str(secret)!r})), tries(lambda: open("/etc/passwd")))
def processes():
    return [p for p in os.listdir("/proc") if p.isdigit()]
print(tries(lambda: open("/usr/evil", "w")), tries(lambda: open("mine", "w")))
print(tries(processes) == "no" or len(processes()) < 10)
"""  # noqa: E501
    assert sandbox.run(probe, [""])[0].out.split() == ["no", "no", "no", "no", "yes", "True"]
    assert secret.read_text() == "x"


@pytest.mark.needs("bwrap")
def test_a_process_limit_binds():
    child = "        if os.fork() == 0:\n            time.sleep(9); os._exit(0)\n"
    fork = (
        f"import os, time\nn = 0\ntry:\n    while True:\n{child}        n += 1\nexcept OSError:\n    print(n)"
    )
    ran = sandbox.run(fork, [""], limits=SandboxLimits(seconds=1, processes=20))
    assert 0 < int(ran[0].out) <= 20


@pytest.mark.parametrize("mode", MODES)
def test_children_die_with_the_test(mode):
    mark = f"sleep 98{os.getpid() % 1000:03d}"
    code = f"import subprocess\nsubprocess.Popen({mark.split()!r}, start_new_session=True)\nprint(input())"
    sandbox.run(code, ["1"], limits=SandboxLimits(seconds=1), sandbox=mode)
    lines = [
        (p / "cmdline").read_bytes().replace(b"\0", b" ")
        for p in Path("/proc").iterdir()
        if p.name.isdigit() and (p / "cmdline").exists()
    ]
    assert not any(mark.encode() in line for line in lines)


def test_without_a_sandbox_code_is_refused(monkeypatch, rollout):
    monkeypatch.setattr(isolation, "unavailable", lambda: "bubblewrap (bwrap) is not installed")
    with pytest.raises(SandboxError, match="sandbox='unsafe'"):
        verify(SUM, fenced(ADD), "code")
    with pytest.raises(SandboxError, match="bubblewrap"):
        build(Reward, "code").check(None)
    with pytest.raises(ValueError, match="none of"):
        verify(SUM, fenced(ADD), "code", sandbox="none")


ARROWS = "a, b = map(int, input().split())  # a --> b, ~~a,~~b\nprint(a + b + ((a << 4) >> 4) - a)"


def test_marks_of_hidden_text_are_code_in_a_program(rollout):
    """`-->`, `<<4>>` and `~~` hide text of an answer, and are arrows, shifts and complements of a program."""
    one = {"name": "code", "sandbox": "unsafe", "seconds": 1.5}
    assert build(Reward, one)(rollout(SUM, fenced(ARROWS))) == 1.0
    assert build(Reward, one)(rollout(SUM, f"<think>{fenced(ADD)}</think> no")) == 0.0
    module = "module m(input a, output y); // IDLE --> RUN\nassign y = (a << 4) >> 4;\nendmodule\n"
    assert module_in(f"<think>x</think> ```verilog\n{module}```") == module.strip()
    proof = "-- 1 --> 2\ntheorem t : 1 = 1 := rfl"
    assert submitted(f"```lean4\n{proof}\n```").text.strip() == proof
    edit = "x = 1  # a --> b\ny = 2"
    text = f"<answer>```python\n{edit}\n```</answer>"
    assert build(Reward, {"name": "code_edit"})(rollout(edit, text)) == pytest.approx(2.0)


def test_reward_scores_and_partial_credit(rollout):
    one = {"name": "code", "sandbox": "unsafe", "seconds": 1.5}
    assert build(Reward, one)(rollout(SUM, fenced(ADD))) == 1.0
    assert build(Reward, one)(rollout(SUM, fenced("print(3)"))) == 0.0
    assert build(Reward, {**one, "partial": True})(rollout(SUM, fenced("print(3)"))) == 0.5
    for nothing in ("", "print(3)", f"<think>{fenced(ADD)[19:]}</think>", "```python\n```", "%$#"):
        assert build(Reward, one)(rollout(SUM, nothing)) == 0.0


def test_comparisons_by_hand():
    assert (
        same_output("1 2\n3\n", " 1 2 \n3")
        and same_output("1.0", "1")
        and not same_output("1 2", "1\n2")
        and not same_output("", "0")
    )
    assert not same_output("1_0", "10") and not same_output("٤", "4") and not same_output("sNaN", "1")
    assert same_output("sNaN", "sNaN") and not same_output("4\n\0garbage", "4")
    assert not same_result("[" * 9000 + "]" * 9000, []) and not same_result("garbage", None)
    assert same_result("[1, 2.0]", (1, 2)) and same_result('{"a": [true]}', {"a": [True]})
    assert not same_result("true", 1) and not same_result("[1, 0]", [True, False])
    assert not same_result('{"a": [1]}', {"a": [True]}) and not same_result("[1]", [1, 1])
    assert program_in("```python\na\n```\n```python\nb\n```") == "b"
    assert program_in("```python\nopen") == "open"


@pytest.mark.parametrize(
    "gold",
    [
        "",
        "[" * 9000 + "]" * 9000,
        "assert f(1) < 2",
        "assert f(x) == 2",
        "assert f(1) == 1\nassert g(1) == 1",
        4,
        None,
        {"inputs": ["1"], "outputs": []},
        [],
    ],
)
def test_broken_tests_raise(gold):
    with pytest.raises(ValueError, match="gold"):
        unit_tests(gold)
