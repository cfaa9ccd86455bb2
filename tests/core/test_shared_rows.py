"""A row that several ranks drew in one step is sampled from other random streams on each."""

from __future__ import annotations

from run_kit import View

from vlrl.methods.core.rollout import Seeds
from vlrl.trainer.step.step import Step
from vlrl.types import Prompt, Row

ROWS = [Row(name, "q", 1) for name in "ababc"]


def seeds(rank: int, world: int, draws) -> list[int]:
    """Of all rows that a rank has of these draws."""
    run, seed = View(), Seeds()
    dealt = [row for rows in draws for row in run.record.shard_rows(rows, rank, world)]
    return [seed(run, Prompt(row, ())) for row in dealt]


def test_no_two_ranks_share_a_stream():
    alone = seeds(0, 1, [ROWS])
    assert len(set(alone)) == 5
    for draws in ([ROWS], [ROWS[:2], ROWS[2:4], ROWS[4:]], [ROWS[:1] * 4]):
        together = [seed for rank in range(3) for seed in seeds(rank, 3, draws)]
        assert len(set(together)) == sum(map(len, draws))


def test_rows_that_one_rank_drew_have_the_streams_of_a_single_process():
    rows = [Row(name, "q", 1) for name in "abcd"]
    alone = seeds(0, 1, [rows])
    assert [*seeds(0, 2, [rows]), *seeds(1, 2, [rows])] == [*alone[::2], *alone[1::2]]


def test_every_step_has_its_own_copies():
    step = Step(1, 0)
    step.shard_rows(ROWS[:1] * 2, 1, 2)
    assert step.row_copy(ROWS[0]) == (1,) and Step(2, 1).row_copy(ROWS[0]) == ()
