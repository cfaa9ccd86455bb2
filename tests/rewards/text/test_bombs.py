"""Answers made to cost time or memory: none is right, none holds anything up, and the pool is as it was
afterwards."""

import os
import time
from pathlib import Path

import pytest
from vlrl_rewards import verify
from vlrl_rewards.audit.bombs import bombs
from vlrl_rewards.math import pool as math_pool

MANY = 90
PROCESSOR_SECONDS = 5.0  # of this process: what is slow runs in a worker, which has a wall of its own


def children():
    """(state, parent) of every process that this one started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.append(fields[0])
    return found


@pytest.fixture(scope="module", autouse=True)
def pool():
    math_pool.warm(wait=True)


def test_no_bomb_is_right_or_slow_and_the_pool_survives():
    made = list(bombs(MANY, seed=7))
    assert len({bomb.name for bomb in made}) > 45
    for bomb in made:
        started, wall = time.thread_time(), time.perf_counter()
        verdict = verify(bomb.gold, bomb.response, bomb.kind, bomb.choices)
        shown = f"{bomb.name} as {bomb.kind}: {bomb.response[:100]!r}: {verdict}"
        assert not verdict.correct, shown
        assert time.thread_time() - started < PROCESSOR_SECONDS, shown
        assert time.perf_counter() - wall < 20 * math_pool.SECONDS, (
            shown
        )  # loose: a busy machine is no fault of ours
    assert "Z" not in children()
    assert math_pool.compare("x^2", "x \\cdot x")[0] is True and math_pool.compare("x^2", "x^3")[0] is False
    assert verify("\\frac{1}{2}", "\\boxed{0.5}", "math").correct


def test_bombs_are_the_same_for_a_seed():
    assert list(bombs(20, seed=3)) == list(bombs(20, seed=3)) != list(bombs(20, seed=4))


QUOTIENTS = "+".join(rf"\frac{{3^{{{90000 + i}}}}}{{7^{{60000}}}}" for i in range(40))


@pytest.mark.parametrize(
    "text", [r"\boxed{" + "x^{" * 3000, r"\boxed{x^{" * 3000, r"\boxed{\lim_{x\to 0} x^{x^{x}}}", QUOTIENTS]
)
def test_what_once_was_slow(text):
    started = time.thread_time()
    assert not verify("5", text, "math").correct
    assert time.thread_time() - started < PROCESSOR_SECONDS


def test_threads_wait_for_one_start():
    pool = math_pool.Pool(3)
    try:
        pool.wait_ready()
        assert pool.started and pool.room == 2 and pool.idle.qsize() == 1
        pool.wait_ready()
        assert pool.room == 2
    finally:
        pool.idle.get().stop()
