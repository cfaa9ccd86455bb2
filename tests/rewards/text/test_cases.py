"""Cases of our own, by kind: `cases_*.jsonl` beside this file hold {"gold", "pred", "kind", "choices"?,
"options"?, "correct"} rows."""

import json
import threading
import time
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['kind']}-{i}" for i, row in enumerate(ROWS)])
def test_case(row):
    started = time.thread_time()
    verdict = judge(row)
    assert verdict.correct is row["correct"], f"{row}: {verdict}"
    assert verdict.reason and 0.0 <= verdict.score <= 1.0
    assert (
        time.thread_time() - started < 1 and verdict.seconds >= 0
    )  # processor time: a busy machine may hold anything up
    if verdict.span is not None:
        assert 0 <= verdict.span[0] <= verdict.span[1] <= len(row["pred"])


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
