"""The planner's arithmetic against numbers worked out by hand."""

from dataclasses import replace

import pytest

from vlrl.config import load
from vlrl.plan.blocks import Width, checkpoint_per_token, saved_per_token, saved_tensors
from vlrl.plan.compute import (
    cost,
    decode_seconds,
    forward_flops,
    packed_pairs,
    passes,
    ring_seconds,
    rounds_of,
)
from vlrl.plan.gpus import GPUS, gpu
from vlrl.plan.layouts import LAYOUTS, Layout, state_bytes
from vlrl.plan.memory import (
    LOGGED_NUMBERS,
    Activations,
    MicroBatch,
    cast_bytes,
    head_backward_bytes,
    highest,
    layers_bytes,
    logits_bytes,
    mask_bytes,
    step_bytes,
)
from vlrl.plan.setup import Assumed, picture_of
from vlrl.plan.shape import shape_of
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Trainable
from vlrl.policy import Family
from vlrl.policy.costs import DECODER, PictureCost

WIDTH = Width(hidden=10, queries=8, keys=4, inner=20, heads=2, saves=DECODER)


def test_weights_of_a_layer():
    # q, o: 2 * 10 * 8; k, v: 2 * 10 * 4; gate, up, down: 3 * 10 * 20
    assert WIDTH.weights == 160 + 80 + 600


def test_saved_bytes_of_a_token():
    # float32: 4 * (6 * 10 + 4 * 8 + 4 * 20) + 4 * (2 norms + 2 heads)
    assert saved_per_token(WIDTH, 4) == 4 * 172 + 16
    # bfloat16: 4 * 4 * 10 + 2 * (5 * 10 + 4 * 8 + 4 * 20) + 16
    assert saved_per_token(WIDTH, 2) == 160 + 324 + 16
    # adapters of rank 3: two norms less in float32, seven adapters of 3 numbers in two bytes
    assert saved_per_token(WIDTH, 2, rank=3) == 500 - 80 + 42
    assert checkpoint_per_token(WIDTH, 2) == 40
    # one product makes queries, keys and values: 6 * 8 of them; towers save 7 * 10 and 4 * 20 beside them
    assert (
        saved_per_token(replace(WIDTH, saves=saved_tensors()["qwen2_5_vl_vision"]), 4)
        == 4 * (70 + 48 + 80) + 16
    )
    assert layers_bytes(WIDTH, 3, 7, 2, checkpointing=False) == 3 * 7 * 500
    assert layers_bytes(WIDTH, 3, 7, 2, checkpointing=True) == 3 * 7 * 40


def test_state_of_each_layout():
    two = {name: state_bytes(LAYOUTS[name], 2, 10, 40.0, 20.0, "adamw") for name in LAYOUTS}
    assert two["ddp"].total == 60 + 80 + 80
    assert (two["zero1"].weights, two["zero1"].gradients, two["zero1"].optimizer) == (60, 40, 60)
    assert (two["zero2"].weights, two["zero2"].gradients, two["zero2"].optimizer) == (60, 20, 60)
    assert (two["zero3"].weights, two["zero3"].gradients, two["zero3"].optimizer) == (30, 20, 60)
    assert (two["fsdp2"].weights, two["fsdp2"].gradients, two["fsdp2"].optimizer) == (30, 20, 40)
    assert two["zero2"].buffers == 4 * 500_000_000
    assert two["zero3"].buffers == 4 * 500_000_000 + 60  # no more is gathered than there is
    assert state_bytes(Layout("single"), 1, 10, 40.0, 20.0, "adamw_8bit").total == 60 + 40 + 20
    assert state_bytes(Layout("single"), 1, 10, 40.0, 20.0, "sgd").optimizer == 0


def test_the_table_of_seven_billion_weights_in_the_docs():
    n = 7 * 10**9
    zero3, fsdp2, single = (
        state_bytes(LAYOUTS[name], 8, n, 4.0 * n, 0.0, "adamw", layer=n // 30)
        for name in ("zero3", "fsdp2", "single")
    )
    assert zero3.total - zero3.buffers == 17.5e9
    assert zero3.buffers == 2e9 + 4e9
    assert fsdp2.total - fsdp2.buffers == 14e9
    assert fsdp2.buffers == 2 * 4 * (n // 30)  # two layers of 1/30 of the weights
    assert state_bytes(LAYOUTS["single"], 1, n, 4.0 * n, 0.0, "adamw").total == single.weights * 4 == 112e9


def test_only_zero3_keeps_no_cast_copies():
    family = build(
        Family,
        {
            "name": "text",
            "dtype": "bfloat16",
            "tiny": {"hidden": 64, "layers": 2, "rows": 1024, "tie": False},
        },
    )
    shape = shape_of(family, build(Trainable, {"name": "full"}))
    matmul = 2 * (12288 + 36864 + 128) + 1024 * 64  # layers with the biases of q, k, v, and the head
    assert [name for name, layout in LAYOUTS.items() if not layout.keeps_casts] == ["zero3"]
    assert cast_bytes(shape, keeps_casts=True) == 2 * matmul
    assert cast_bytes(shape, keeps_casts=False) == 2 * 1024 * 64  # the largest matrix


def test_masks_logits_and_the_head():
    micro = MicroBatch(rows=2, length=5, scored=6)
    assert mask_bytes(micro, 3, 2) == 2 * 25 * (1 + 2 * 3)
    assert mask_bytes(MicroBatch(2, 5, 6, masked=False), 3, 2) == 0
    # chunk of 4 tokens and 10 words: 160 bytes of logits, and an entropy's four tensors of as many
    assert logits_bytes(6, 4, 10, 4) == 160 + 640
    assert logits_bytes(6, 4, 10, 4, logged=False) == 160
    assert logits_bytes(6, 4, 10, 2, logged=False) == 160 + 80
    assert (
        logits_bytes(1024, 1024, 100_000, 2) == 4 * 102_400_000 + 2 * 102_400_000
    )  # the 16-bit logits outweigh 4 * 4 * LOGGED_NUMBERS
    assert head_backward_bytes(6, 4, 10, 4, head=30) == 4 * 80
    assert head_backward_bytes(6, 4, 10, 4, head=70) == 4 * 110
    assert head_backward_bytes(6, 4, 10, 2, head=0) == 320


def test_logged_numbers_are_those_of_the_trainer():
    from vlrl.trainer.step import loss_inputs

    assert LOGGED_NUMBERS == loss_inputs.LOGGED_NUMBERS


def test_the_highest_moment():
    acts = Activations(
        language=100, vision=0, masks=0, ends=0, cast_weights=10, logits=50, head_backward=30, recomputed=0
    )
    state = state_bytes(Layout("single"), 1, 10, 40.0, 0.0, "adamw")  # 40 + 40 + 80
    options = {"kv_cache": 0.0, "engine": 0.0, "engine_sleeps": False, "step_workspace": 8.0}
    assert highest(state, 0.0, acts, micro_batches=2, **options).peak == 120 + 40 + 160
    assert (
        highest(state, 0.0, acts, micro_batches=1, **options).peak == 120 + 160
    )  # its gradients grow while the activations go
    small = highest(state, 5.0, Activations(1, 0, 0, 0, 0, 1, 1, 0), micro_batches=1, **options)
    assert (small.peak, small.when) == (120 + 5 + 48, "optimizer step")
    awake = highest(state, 0.0, acts, micro_batches=1, **options | {"engine": 1000.0})
    asleep = highest(state, 0.0, acts, micro_batches=1, **options | {"engine": 1000.0, "engine_sleeps": True})
    assert (awake.peak, asleep.peak, asleep.when) == (1280, 1120, "sampling")


def test_temporaries_of_the_optimizer():
    assert step_bytes(LAYOUTS["single"], 1, 100, 30, on_gpu=True) == 400
    assert step_bytes(LAYOUTS["single"], 1, 100, 30, on_gpu=False) == 240
    assert step_bytes(LAYOUTS["zero2"], 4, 100, 30, on_gpu=True) == 200
    assert step_bytes(LAYOUTS["zero3"], 4, 100, 30, on_gpu=True) == 100


def test_flops():
    assert packed_pairs(4, 2, 3, dense=True) == 100
    assert packed_pairs(4, 2, 3, dense=False) == 38
    assert forward_flops(WIDTH, 2, 7, 11) == 2 * (2 * 840 * 7 + 4 * 8 * 11)
    assert [
        passes(True, True, False),
        passes(True, True, True),
        passes(False, True, False),
        passes(False, False, True),
    ] == [3, 4, 2, 1]


def test_seconds_and_cost():
    # 100 steps (two waves of 50 sequences, 50 tokens each), each reads 10 + 50 * 1 bytes at 6 bytes/s: 10 s
    options = {
        "sequences": 100,
        "mean": 50,
        "longest": 80,
        "most_at_a_time": 50,
        "weights": 10,
        "kv_per_sequence": 1,
        "bandwidth": 6,
    }
    assert decode_seconds(**options, flops_per_token=1, flops=1e9) == pytest.approx(1000)
    assert decode_seconds(**options, flops_per_token=4, flops=10) == pytest.approx(
        100 * 20
    )  # computing is slower
    assert ring_seconds(8e9, 4, 6e9) == pytest.approx(1.0)
    assert ring_seconds(8e9, 1, 6e9) == 0
    assert [rounds_of(name, 5) for name in ("single", "ddp", "zero2", "zero3", "fsdp2")] == [0, 2, 6, 15, 15]
    assert cost(36, 8, 2.5) == pytest.approx(200)


@pytest.mark.parametrize(
    ("model", "size", "cost"),
    [
        # 1036 x 756: 37 x 27 units of 28 pixels, 4 patches each
        ("qwen2_5_vl_3b", (1024, 768), PictureCost(999, 3996, 3996)),
        # sides by 0.289: 1148 x 840 pixels, below 1,003,520
        ("qwen2_5_vl_3b", (4000, 3000), PictureCost(1230, 4920, 4920)),
        ("gemma3_4b", (10, 10), PictureCost(256, 4096, 4096)),
        # 2 x 1 tiles and the whole: 3 x 256 tokens and two marks; a class token beside 32 x 32 patches
        ("internvl3_2b", (800, 400), PictureCost(770, 3 * 1025, 1025)),
        # 1536 x 1152: 4 x 3 tiles and the whole, 27 x 27 patches each; two marks a tile, three of the whole,
        # four ends of lines
        ("smolvlm2_2b", (1024, 768), PictureCost(13 * 81 + 24 + 3 + 4, 13 * 729, 729)),
        # 3 x 2 tiles: of 81 x 54 places 73 x 54 without padding, an end of each line, and the whole picture
        ("llava_onevision_7b", (800, 600), PictureCost(73 * 54 + 54 + 729, 7 * 729, 729)),
        ("qwen3_1_7b", (800, 600), PictureCost()),
    ],
)
def test_pictures(model, size, cost):
    family = build(Family, load([f"models/{model}"]).tree["policy"])
    assert picture_of(family, Assumed(width=size[0], height=size[1])) == cost


def test_gpus_have_sources():
    assert gpu("h200").usable == pytest.approx(0.94 * 141e9)
    assert all(g.source and g.flops > 1e14 and g.memory > 1e10 and g.bandwidth > 1e11 for g in GPUS.values())
    with pytest.raises(ConfigError, match="no GPU named 'h20'.*h200"):
        gpu("h20")
