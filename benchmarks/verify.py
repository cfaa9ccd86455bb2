"""Answers a minute of `verify` on two cores, against math-verify called bare, and what a run of bombs does to
it.

    python -m benchmarks.verify [--rounds 5] [--answers 2000] [--bombs 1000] [--json]
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from vlrl_rewards import verify
from vlrl_rewards.audit.bombs import bombs
from vlrl_rewards.math import pool as math_pool

from benchmarks import cli

CORES = 2
Work = Callable[[int, int], float]
_WORK = (
    "Let me think. We have 3 boxes with 4 pens each, so there are $3 \\times 4 = 12$ pens; some are lent. "
    * 5
)
_MATH = [
    ("12", "12"),
    ("\\frac{1}{2}", "0.5"),
    ("2\\sqrt{2}", "\\sqrt{8}"),
    ("x^2+2x+1", "(x+1)^2"),
    ("(1,2]", "[1,2]"),
    ("\\frac{7}{3}", "7/4"),
    ("\\{1,2,3\\}", "3, 2, 1"),
    ("5 cm", "50 mm"),
    ("\\pi", "3.14"),
    ("y=2x+3", "2x-y+3=0"),
    ("12\\%", "0.12"),
    ("-3", "3"),
]
_REST = [
    ("mcq", "B", "The answer is (B) Paris, because A is wrong."),
    ("mcq", "B", "So it is Rome."),
    ("yes_no", "yes", "Yes, it does."),
    ("text", "Eiffel Tower", "It is the Eiffel Tower."),
    ("text", "red", "The car is blue."),
    ("f1", "a red car", "<answer>one red car</answer>"),
]


def ours_math(start: int, count: int) -> float:
    """Judge `count` long answers, none twice the same; processor seconds (of this process: these questions
    need no other)."""
    began = time.process_time()
    for i in range(start, start + count):
        gold, said = _MATH[i % len(_MATH)]
        verify(gold, f"<think>{_WORK}</think>Case {i}.\n\nSo the answer is \\boxed{{{said}}}.", "math")
    return time.process_time() - began


def bare_math(start: int, count: int) -> float:
    """The same by math-verify."""
    from math_verify import parse
    from math_verify import verify as same

    began = time.process_time()
    for i in range(start, start + count):
        gold, said = _MATH[i % len(_MATH)]
        same(parse(f"${gold}$"), parse(f"{_WORK} Case {i}.\n\nSo the answer is $\\boxed{{{said}}}$."))
    return time.process_time() - began


def ours_rest(start: int, count: int) -> float:
    """Choices, yes or no, words."""
    began = time.process_time()
    for i in range(start, start + count):
        kind, gold, said = _REST[i % len(_REST)]
        verify(
            gold,
            f"<think>{_WORK}</think>{said}",
            kind,
            ("London", "Paris", "Rome") if kind == "mcq" else None,
        )
    return time.process_time() - began


def rate(pool: ProcessPoolExecutor, work: Work, count: int, start: int) -> tuple[float, float]:
    """Answers a minute with every core at work: by the wall clock, and by processor time (what free cores
    would give)."""
    began = time.perf_counter()
    used = sum(pool.map(work, [start + i * count for i in range(CORES)], [count] * CORES))
    return 60 * CORES * count / (time.perf_counter() - began), 60 * CORES * CORES * count / used


def speed(rounds: int, answers: int) -> dict[str, float]:
    """Medians over rounds in which the three take turns."""
    works = {
        "math": (ours_math, answers),
        "math-verify": (bare_math, max(50, answers // 10)),
        "rest": (ours_rest, 5 * answers),
    }
    wall: dict[str, list[float]] = {name: [] for name in works}
    free: dict[str, list[float]] = {name: [] for name in works}
    with ProcessPoolExecutor(CORES) as pool:
        for work, _ in works.values():
            rate(pool, work, 50, 0)
        for i in range(1, rounds + 1):
            for name, (work, count) in works.items():
                by_wall, by_processor = rate(pool, work, count, i * 10**6)
                wall[name].append(by_wall)
                free[name].append(by_processor)
    out = {f"{name} answers/min, wall": statistics.median(rates) for name, rates in wall.items()}
    out |= {f"{name} answers/min, free cores": statistics.median(rates) for name, rates in free.items()}
    ratios = [ours / bare for ours, bare in zip(wall["math"], wall["math-verify"], strict=True)]
    return out | {"math, times math-verify": statistics.median(ratios)}


def _memory() -> dict[str, float]:
    """Resident megabytes of this process and of its children, and how many children are zombies."""
    found = {"parent MB": 0.0, "workers MB": 0.0, "zombies": 0.0}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        mine = int(path.parent.name) == os.getpid()
        if mine or int(fields[1]) == os.getpid():
            found["parent MB" if mine else "workers MB"] += int(fields[21]) * resource.getpagesize() / 2**20
            found["zombies"] += fields[0] == "Z"
    return found


def under_bombs(count: int) -> dict[str, object]:
    """What `count` bombs in a row take and leave behind."""
    for bomb in bombs(50, seed=1):
        verify(bomb.gold, bomb.response, bomb.kind, bomb.choices)
    before, times, passed = _memory(), [], 0
    for bomb in bombs(count):
        began = time.perf_counter()
        passed += verify(bomb.gold, bomb.response, bomb.kind, bomb.choices).correct
        times.append(time.perf_counter() - began)
    after = _memory()
    healthy = verify("\\frac{1}{2}", "\\boxed{0.5}", "math").correct and bool(
        math_pool.compare("x^2", "x \\cdot x")[0]
    )
    grown = {f"{name} before, after": [round(before[name]), round(after[name])] for name in before}
    spent = {"slowest s": max(times), "median s": statistics.median(times)}
    return {"bombs": count, "passed": passed, **spent, "healthy": healthy, **grown}


def main() -> None:
    """Measure and print."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--answers", type=int, default=2000)
    parser.add_argument("--bombs", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    result: dict[str, object] = {}
    if chosen.rounds:
        result |= speed(chosen.rounds, chosen.answers)
    if chosen.bombs:
        result |= under_bombs(chosen.bombs)
    for name, value in result.items() if not chosen.json else ():
        print(f"{name:36s} {value:,.2f}" if isinstance(value, float) else f"{name:36s} {value}")
    if chosen.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
