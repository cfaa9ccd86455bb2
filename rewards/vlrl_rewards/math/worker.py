"""The worker process of `math/pool.py`: imports math-verify once, forks a child for each question, and kills
it when its time is up.

Input: a JSON line {"id", "gold", "said", "cpu", "seconds"}; output: a JSON line {"id", "equal":
true|false|null, "why"}. A child may use `cpu` seconds of processor time (so the load of the machine changes
no verdict) and at most `seconds` of wall-clock time. It unpickles nothing and uses no signal handler.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path

MEMORY = 2 << 30
_WARM = (
    (r"\frac{x^2+1}{\sqrt{2}}", r"\int_0^1 x\,dx"),
    (r"\begin{pmatrix}1 & 2\\3 & 4\end{pmatrix}", r"\begin{pmatrix}1 & 2\\3 & 5\end{pmatrix}"),
    (r"(1,2]\cup[3,\infty)", r"(1,2]\cup[4,\infty)"),
    (r"\frac{1}{3}", "2x"),
)


def _compare(gold: str, said: str) -> bool | None:
    """Whether math-verify finds the two equal; None if it cannot read one of them."""
    from math_verify import LatexExtractionConfig, parse, verify

    config = [LatexExtractionConfig(boxed_match_priority=-1)]
    sides = [
        parse(f"${text}$", extraction_config=config, parsing_timeout=None, fallback_mode="no_fallback")
        for text in (gold, said)
    ]
    if not all(sides):
        return None
    return bool(verify(sides[0], sides[1], float_rounding=12, strict=True, timeout_seconds=None))


def _answer(request: dict[str, object]) -> bytes:
    try:
        equal = _compare(str(request["gold"]), str(request["said"]))
        why = "math-verify" if equal is not None else "math-verify reads no mathematics in it"
    except (
        ValueError,
        TypeError,
        ArithmeticError,
        AttributeError,
        NotImplementedError,
        RecursionError,
        MemoryError,
        KeyError,
        IndexError,
    ) as error:
        equal, why = None, f"math-verify: {type(error).__name__}"
    return json.dumps({"equal": equal, "why": why}).encode() + b"\n"


def _child(request: dict[str, object], out: int, seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    os.write(out, _answer(request))


def _used(pid: int) -> float:
    """Processor seconds of a process; 0 where /proc is not available."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def _serve(request: dict[str, object]) -> bytes:
    seconds = float(str(request["seconds"]))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            _child(request, write, seconds)
        finally:
            os._exit(0)
    os.close(write)
    deadline, reply = time.monotonic() + seconds, b""
    while not reply.endswith(b"\n"):
        ready, _, _ = select.select([read], [], [], 0.05)
        chunk = os.read(read, 4096) if ready else b""
        if ready and not chunk:
            reply = b'{"equal": null, "why": "out of memory or time"}\n'
        elif not ready and (time.monotonic() > deadline or _used(pid) > float(str(request["cpu"]))):
            reply = b'{"equal": null, "why": "out of time"}\n'
        reply += chunk
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(read)
    return reply


def main() -> None:
    """Serve standard input until it ends."""
    logging.disable(logging.CRITICAL)
    # unequal pairs, since sympy imports many modules only when a comparison fails, and each child would
    # import them again
    for pair in _WARM:
        _compare(*pair)
    stdout = sys.stdout.buffer
    stdout.write(b"ready\n")
    stdout.flush()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        stdout.write(json.dumps({**json.loads(_serve(request)), "id": request["id"]}).encode() + b"\n")
        stdout.flush()
