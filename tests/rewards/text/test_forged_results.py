"""Programs that forge their result instead of computing it: none is paid, and an honest one is."""

import pytest
from vlrl_rewards import verify

pytestmark = pytest.mark.needs("bwrap")
PRINTS = {"inputs": ["2\n", "3\n"], "outputs": ["4\n", "9\n"]}
CALLS = {"inputs": [[2], [3]], "outputs": [4, 9], "fn_name": "f"}
FLAGS = {"inputs": [[2], [3]], "outputs": [[True, False], [[False], {"a": True}]], "fn_name": "f"}
TABLE = "[((2,), 4), ((3,), 9)]"
MAPS = {
    "check": f"def check(candidate):\n    assert all(map(lambda t: candidate(*t[0]) == t[1], {TABLE}))",
    "fn_name": "f",
}
ZIPS = {
    "check": "def check(candidate):\n    for said, wanted in zip(map(candidate, [2, 3]), [4, 9]):\n"
    "        assert said == wanted",
    "fn_name": "f",
}
ITERATES = {
    "check": f"def check(candidate):\n    rows = iter({TABLE})\n"
    "    assert not any(True for _ in filter(lambda t: candidate(*t[0]) != t[1], rows))\n"
    "    assert sum(map(lambda t: candidate(*t[0]) - t[1], [((2,), 4)])) == 0",
    "fn_name": "f",
}
RAISES = {  # expects an error, and forgives the end of an iterator
    "check": "def check(candidate):\n    try:\n        candidate(-1)\n    except Exception:\n        pass\n"
    "    else:\n        assert False\n    try:\n        assert candidate(2) == 4\n"
    "    except StopIteration:\n        pass",
    "fn_name": "f",
}
EVERY_FD = """
import os
def everywhere(text):
    for fd in range(64):
        try:
            os.write(fd, text)
        except OSError:
            pass
"""
FOUR, ROW = r"""b'{"result": 4}\n'""", r"""b'{"i": 0, "status": "ok", "out": "4"}\n'"""
FORGED = [
    # what ends a loop of the check
    *((gold, f"def f(*a): raise {error}")
      for gold in (MAPS, ZIPS, ITERATES, RAISES) for error in ("StopIteration", "StopIteration('4')")),
    (MAPS, "class Stop(StopIteration): pass\ndef f(*a): raise Stop"),
    (MAPS, "Stop = type('StopIteration', (Exception,), {})\ndef f(*a): raise Stop"),
    (ZIPS, "def f(x): return next(iter(()))"),
    (ZIPS, "def f(x): raise StopAsyncIteration"),
    (MAPS, "def f(x): raise GeneratorExit"),
    (MAPS, "def f(x):\n    yield 4"),
    (RAISES, "import os\ndef f(x): os._exit(0)"),
    (RAISES, "import os\ndef f(x):\n    os.close(4)\n    os.closerange(3, 64)"),
    (RAISES, "def f(x): raise ConnectionError"),
    (RAISES, "def f(x): return 'x' * 10**8"),
    # lines on every descriptor: before, in and instead of an answer
    *((gold, f"{EVERY_FD}\n{when}") for gold in (MAPS, CALLS) for when in (
        f"everywhere({FOUR} * 9)\ndef f(x): return 5",
        f"def f(x):\n    everywhere({FOUR})\n    return 5",
        f"everywhere({ROW} * 9)\ndef f(x): pass",
    )),
    (CALLS, f"{EVERY_FD}\ndef f(x):\n    everywhere(b'%d' % (x * x))\n    os._exit(0)"),
    (CALLS, "import os\ndef f(x):\n    os.write(1, b'{\"result\": %d}' % (x * x))\n    os._exit(0)"),
    (CALLS, "import sys,os\ndef f(x):\n    sys.__stdout__.write('{\"nonce\": \"\", \"result\": %d}' % x**2)\n"
     "    sys.__stdout__.flush()\n    os._exit(0)"),
    (MAPS, f"{EVERY_FD}\neverywhere(b'\"started\"\\n' * 9 + {FOUR})\ndef f(x): return 4"),
    (ZIPS, "import os\nfor n in range(3, 9):\n    try:\n        h=os.open(f'/proc/self/fd/{n}', 1)\n"
     "        os.write(h, b'{\"result\": 4, \"nonce\":0}\\n')\n    except OSError: pass\ndef f(x): return 5"),
    # values that only look like the expected ones
    (FLAGS, "def f(x): return [1, 0] if x == 2 else [[0], {'a': 1}]"),
    (FLAGS, "def f(x): return [1.0, False] if x == 2 else [[False], {'a': 1.0}]"),
    (CALLS, "def f(x): return [x * x]"),
    (CALLS, "def f(x): return str(x * x)"),
    (CALLS, "class E(int):\n    def __eq__(self, o): return True\ndef f(x): return E(5)"),
    ({**CALLS, "inputs": [[1]], "outputs": [1]}, "def f(x): return True"),
    # output with something behind or beside it
    (PRINTS, "x = int(input())\nprint(x * x)\nprint('\\0garbage')"),
    (PRINTS, "x = int(input())\nprint(x * x, end='\\n\\0garbage')"),
    (PRINTS, "x = int(input())\nprint(f'{x * x}\\0')"),
    (PRINTS, "x = int(input())\nprint(x * x, 'or', 7)"),
    (PRINTS, "x = int(input())\nprint(x * x)\nraise SystemExit(1)"),
    (PRINTS, "x = int(input())\nprint(x * x)\nraise ValueError('4')"),
    (PRINTS, "print('sNaN')"),
    (PRINTS, "print('4\\n9')"),
    ({"inputs": ["5\n"], "outputs": ["10\n"]}, "print('1_0')"),
    ({"inputs": ["5\n"], "outputs": ["10\n"]}, "print('\\u0661\\u0660')"),
]  # fmt: skip
HONEST = [
    *((gold, "def f(x):\n    if x < 0: raise ValueError(x)\n    return x * x")
      for gold in (CALLS, MAPS, ZIPS, RAISES)),
    (ITERATES, "class Solution:\n    def f(self, x): return x ** 2"),
    (FLAGS, "def f(x): return [True, False] if x == 2 else ((False,), {'a': True})"),
    (PRINTS, "x = int(input())\nprint(float(x * x))"),
    (CALLS, "def f(x):\n    print('noise')\n    return x * x"),
]  # fmt: skip


def judge(gold, program):
    return verify(gold, f"```python\n{program}\n```", "code", seconds=2.0)


def test_no_forged_result_is_paid():
    assert len(FORGED) >= 40
    paid = [(program, judge(gold, program).reason) for gold, program in FORGED if judge(gold, program).score]
    assert not paid


def test_honest_programs_are_paid():
    refused = [
        (program, judge(gold, program).reason) for gold, program in HONEST if not judge(gold, program).correct
    ]
    assert not refused
