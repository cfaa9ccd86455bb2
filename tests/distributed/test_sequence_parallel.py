"""Sequence parallelism: ranks that hold slices of the same rows learn what one rank does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from ranks_kit import ENVIRONMENT, ROOT

from vlrl.policy.sequence_parallel import head_shares

WORKER = Path(__file__).with_name("sequence_worker.py")


def start(ranks: int, words: Sequence[str]) -> None:
    """The worker on CPU ranks; each of the words is a policy with its rows."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    done = subprocess.run(
        [*launch, str(WORKER), *words], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("equal") == ranks * len(words), done.stdout


def test_heads_are_shared_out_where_they_divide_and_where_they_do_not() -> None:
    even = head_shares(8, 4, 2)
    assert even.query == tuple(range(8)) and even.key == (0, 1, 2, 3) and even.expand is None
    few = head_shares(8, 2, 4)  # each key-value head goes to two ranks
    assert few.key == (0, 0, 1, 1) and few.expand is None
    odd = head_shares(
        28, 4, 8
    )  # Qwen2.5-VL-7B on eight ranks: 32 places, 7 query heads read a key-value head
    assert len(odd.query) == 32 and odd.query[28:] == (27,) * 4
    assert odd.expand is not None and len(odd.key) == 8 * 2
    for rank in range(8):
        queries, keys = odd.query[4 * rank : 4 * rank + 4], odd.key[2 * rank : 2 * rank + 2]
        assert [keys[place] for place in odd.expand[rank]] == [head // 7 for head in queries]


@pytest.mark.deepspeed
def test_slices_give_the_log_probs_and_gradients_of_one_rank() -> None:
    """Text, pictures and a clip in packed trees with a shared prompt, DeepStack; heads that do not divide."""
    start(2, ["qwen3_vl:prompts=text+image+video", "text:heads=3,kv_heads=1,hidden=48"])


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_family_that_is_not_refused_runs_in_slices(ranks: int) -> None:
    start(ranks, FAMILIES)


FAMILIES = [
    "qwen2_5_vl:prompts=text+image+images+video,longest=200",
    "qwen2_vl:prompts=text+image,layout=padded,ck=1",
]


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "fsdp2", "zero3"])
def test_a_run_on_shared_rows_writes_the_metrics_of_one_process(
    engine: str, alone: Path, tools, tmp_path: Path
) -> None:
    """The same rows, completions, losses and gradients in all five steps, with a resume after the third."""
    run, command, launcher, metrics = tools
    output = tmp_path / "run"
    run(command(launcher(engine), output, "sequence_parallel=2"))
    for step in (4, 5):
        shutil.rmtree(output / "checkpoints" / f"step-{step:06d}")
    run(command(launcher(engine), output, "sequence_parallel=2", "--resume"))
    assert len(metrics(output)) == 5
    for one, two in zip(metrics(alone), metrics(output), strict=True):
        assert set(one) == set(two)
        for name in set(one) - {"engine/decode_steps", "engine/rows_per_step"}:  # a rank samples its own rows
            assert two[name] == pytest.approx(one[name], rel=2e-3 if name == "grad_norm" else 1e-4, abs=1e-6)
