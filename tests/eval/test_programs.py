"""HumanEval: the check runs where the program cannot reach it."""

import pytest

from vlrl.eval.scorer import Scorer
from vlrl.plugins.registry import build

RECORD = {
    "prompt": (
        'def double(x):\n    return 2 * x\n\n\ndef quad(x: int) -> int:\n    """ Four times x.\n    >>> '
        'quad(2)\n    8\n    """\n'
    ),
    "entry_point": "quad",
    "canonical_solution": "    return double(double(x))\n",
    "test": (
        "METADATA = {}\n\n\ndef check(candidate):\n    for i in range(-3, 4):\n        assert candidate(i) "
        "== double(double(i)), 'secret'\n"
    ),
}


@pytest.mark.parametrize(
    ("response", "score"),
    [
        (RECORD["canonical_solution"], 1.0),
        ("    return x * 4\n\ndef other(): pass\n", 1.0),
        ("```python\ndef quad(x):\n    return x << 2\n```", 1.0),
        ("```python\n    return x * 4\n```", 1.0),
        ("    pass\n", 0.0),
        ("    import os\n    os._exit(0)\n", 0.0),
        (
            (
                "    import inspect\n    for f in inspect.stack(): f.frame.f_globals['check'] = "
                "f.frame.f_globals['double'] = lambda *a: None\n"
            ),
            0.0,
        ),
        ("    global double\n    double = lambda y: None\n", 0.0),
        ("    return 4 * x +", 0.0),
        ("", 0.0),
    ],
)
def test_humaneval(response, score):
    assert build(Scorer, {"name": "humaneval", "sandbox": "unsafe"})(RECORD, response).score == score
