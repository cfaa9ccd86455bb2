"""Sequence parallelism: ranks that hold slices of the same rows learn what one rank does."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from vlrl.cli.words import load_words
from vlrl.plugins.registry import ConfigError
from vlrl.policy.sequence_parallel import head_shares
from vlrl.trainer.plan import Plan
from vlrl.trainer.ranks.sequence import check_ranks

WORKER = Path(__file__).with_name("sequence_worker.py")


FAMILIES = [
    "qwen2_5_vl:prompts=text+image+images+video,longest=200",
    "qwen2_vl:prompts=text+image,layout=padded,ck=1",
    "qwen3_vl_moe:prompts=text+image+video",
    "gemma3:prompts=text+image,longest=200",
    *(f"{name}:prompts=text+image" for name in (
        "internvl", "smolvlm", "llava_onevision", "mistral3", "ovis2", "glm4v_moe", "glm46v", "qwen3_omni_moe"
    )),
    "glm4v:prompts=text+image+video",
    "qwen2_5_omni:prompts=text+image+video+audio",
    "text:kind=qwen3_moe",
    "text:heads=6,kv_heads=3,hidden=48",
]  # fmt: skip


def verify_equal(run: Callable[[list[str]], str], ranks: int, words: Sequence[str]) -> None:
    """The worker on CPU ranks; each of the words is a policy with its rows."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    said = run([*launch, str(WORKER), *words])
    assert said.count("equal") == ranks * len(words), said


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


def test_what_cannot_be_cut_is_refused_before_a_model_is_loaded() -> None:
    words = ["base/rl", "tasks/lab_counting", "methods/grpo", "sequence_parallel=2"]
    for more, reason in (
        (["models/tiny_gemma4"], "'gemma4' has layers that read the keys"),
        (["models/tiny_qwen3_5"], "'qwen3_5' has linear attention"),
        (["models/tiny_qwen2_5_vl", "policy.attn=eager"], "policy.attn: 'eager'"),
        (["models/tiny_qwen2_5_vl", "sequence_parallel=0"], "allowed: 1 to 1024"),
    ):
        with pytest.raises(ConfigError, match=reason):
            Plan.of(load_words([*words, *more]))
    plan = Plan.of(load_words([*words, "models/tiny_qwen2_5_vl"]))
    check_ranks(plan.phases, 4)
    with pytest.raises(ConfigError, match=r"2 does not divide the 3 .* use one of \[1, 3\]"):
        check_ranks(plan.phases, 3)


@pytest.mark.deepspeed
def test_slices_give_the_log_probs_and_gradients_of_one_rank(run) -> None:
    """Text, pictures and a clip in packed trees with a shared prompt, DeepStack; heads that do not divide."""
    verify_equal(run, 2, ["qwen3_vl:prompts=text+image+video", "text:heads=3,kv_heads=1,hidden=48"])


@pytest.mark.deepspeed
def test_adapters_replayed_experts_bfloat16_and_flex_attention_run_in_slices(run) -> None:
    """Experts that the router would not choose, an adapter that is no longer zero, layers recomputed. Flex
    attention without a gradient: torch has no backward pass of it on a CPU."""
    words = [
        "text:kind=qwen3_moe,experts=8,replay=1,lora=1,ck=1",
        "qwen2_5_vl:prompts=text+image,lora=1,dtype=bfloat16",
        "qwen2_5_vl:prompts=text+image,attn=flex",
    ]
    verify_equal(run, 2, words)


@pytest.mark.deepspeed
@pytest.mark.slow
def test_groups_of_ranks_have_rows_of_their_own(run) -> None:
    """Two groups of two ranks, whose rows differ in number of tokens."""
    verify_equal(
        run, 4, ["qwen2_5_vl:prompts=text+image,longest=40,group=2", "text:kind=qwen3_moe,group=2,lora=1"]
    )


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_family_that_is_not_refused_runs_in_slices(run, ranks: int) -> None:
    verify_equal(run, ranks, FAMILIES)


def verify_metrics(one: list[dict], other: list[dict]) -> None:
    """Two runs' metrics are equal, but for what counts a rank's own sampling."""
    own = {"engine/decode_steps", "engine/rows_per_step", "engine/media_encoded"}
    assert len(one) == len(other) == 5
    for a, b in zip(one, other, strict=True):
        assert set(a) == set(b)
        for name in set(a) - own:
            if isinstance(a[name], str):
                assert b[name] == a[name], name
            else:
                assert b[name] == pytest.approx(a[name], rel=2e-3 if name == "grad_norm" else 1e-4, abs=1e-6)


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
    verify_metrics(metrics(alone), metrics(output))


@pytest.mark.deepspeed
@pytest.mark.slow
def test_two_groups_of_two_ranks_write_the_metrics_of_one_process(alone: Path, tools, tmp_path: Path) -> None:
    run, command, launcher, metrics = tools
    run(command(launcher("ddp", 4), tmp_path / "run", "sequence_parallel=2"))
    verify_metrics(metrics(alone), metrics(tmp_path / "run"))


@pytest.mark.deepspeed
@pytest.mark.slow
def test_an_adapter_on_a_mixture_takes_several_updates_a_pass_in_slices(tools, tmp_path: Path) -> None:
    """Six optimizer steps of each batch, with the experts that the engine chose."""
    run, command, launcher, metrics = tools
    run(command([], tmp_path / "one", config="mixture.yaml"))
    run(command(launcher("ddp"), tmp_path / "two", "sequence_parallel=2", config="mixture.yaml"))
    verify_metrics(metrics(tmp_path / "one"), metrics(tmp_path / "two"))
