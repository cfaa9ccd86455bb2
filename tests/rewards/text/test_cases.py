"""Cases of our own, by kind: `cases_*.jsonl` beside this file hold {"gold", "pred", "kind", "choices"?,
"options"?, "correct"} rows."""

import json
import threading
import time
from pathlib import Path

import pytest
from sweeps import batches
from vlrl_rewards import verify
from vlrl_rewards.math import pool as math_pool

ROWS = [
    json.loads(line)
    for file in sorted(Path(__file__).parent.glob("cases_*.jsonl"))
    for line in file.read_text().splitlines()
]


def judge(row):
    return verify(row["gold"], row["pred"], row["kind"], row.get("choices"), **row.get("options", {}))


@pytest.fixture(scope="module", autouse=True)
def pool():
    math_pool.warm(wait=True)


def faults_of(row):
    """What is wrong with the verdict on a row."""
    started = time.thread_time()
    verdict = judge(row)
    spent = time.thread_time() - started  # processor time: a busy machine may hold anything up
    said = {
        f"correct is {verdict.correct}": verdict.correct is row["correct"],
        "no reason": bool(verdict.reason),
        f"score {verdict.score}": 0.0 <= verdict.score <= 1.0,
        f"{spent} seconds of the processor": spent < 1,
        f"seconds {verdict.seconds}": verdict.seconds >= 0,
        f"span {verdict.span}": verdict.span is None
        or 0 <= verdict.span[0] <= verdict.span[1] <= len(row["pred"]),
    }
    return [fault for fault, holds in said.items() if not holds]


@pytest.mark.parametrize("batch", batches(ROWS), ids=lambda batch: f"{batch.start}-{batch.stop - 1}")
def test_cases(batch):
    wrong = {i: (faults, ROWS[i]) for i in batch if (faults := faults_of(ROWS[i]))}
    assert not wrong


def test_same_verdicts_in_threads_and_in_any_order():
    rows = ROWS[::7]
    alone = [judge(row).correct for row in rows]
    found: dict[tuple[int, int], bool] = {}

    def work(worker):
        for i in reversed(range(len(rows))):
            found[worker, i] = judge(rows[i]).correct

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[worker, i] == alone[i] for worker in range(3) for i in range(len(rows)))
