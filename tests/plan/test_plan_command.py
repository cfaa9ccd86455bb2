"""`vlrl plan` from the config to its report, and the bundled shapes against what the releases state."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from vlrl.cli.words import load_words
from vlrl.plan.gpus import gpu
from vlrl.plan.plan import Ask, make_plan
from vlrl.plan.releases import meta_model, pattern, releases, transformers_config
from vlrl.plan.report import as_lines, as_values
from vlrl.plan.shape import shape_of
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Trainable
from vlrl.policy import Family

TINY = (
    "policy={name: text, tiny: {hidden: 64, layers: 2, heads: 4, kv_heads: 2, intermediate: 192, rows: "
    "1024, tie: false}}"
)
WORDS = ["base/rl", "tasks/lab_arithmetic", "methods/grpo", TINY]


@pytest.mark.parametrize("name", sorted(releases()))
def test_a_released_shape_has_the_published_number_of_parameters(name: str) -> None:
    assert (
        sum(p.numel() for p in meta_model(transformers_config(name)).parameters())
        == releases()[name].parameters
    )


def test_every_config_of_models_with_a_hub_id_has_a_shape() -> None:
    from vlrl.config import folders

    names = {
        load_words([f"models/{path.stem}"]).tree["policy"].get("model")
        for folder in folders()
        for path in (folder / "models").glob("*.yaml")
    }
    assert {name for name in names if name and ":" not in name} <= set(releases())


def test_shortened_models_keep_a_layer_of_each_kind() -> None:
    assert pattern(["sliding"] * 5 + ["full"], 2) == ["sliding", "full"]
    assert pattern(["full"] * 6, 3) == ["full"] * 3
    config = transformers_config("Qwen/Qwen3-VL-4B-Instruct", 2, 2)
    assert (
        config.text_config.num_hidden_layers,
        config.vision_config.depth,
        config.vision_config.deepstack_visual_indexes,
    ) == (2, 2, [0, 1])


def test_shape_counts_what_is_trained_and_stored() -> None:
    family = build(
        Family,
        {
            "name": "text",
            "dtype": "bfloat16",
            "tiny": {"hidden": 64, "layers": 2, "rows": 1024, "tie": False},
        },
    )
    full, lora = (
        shape_of(family, build(Trainable, {"name": "full"})),
        shape_of(family, build(Trainable, {"name": "lora", "r": 4})),
    )
    # attention 2 * 64 * (64 + 32) + MLP 3 * 64 * 192; biases of q, k, v 64 + 32 + 32; two norms of 64
    layer = 12288 + 36864
    assert full.parameters == 2 * (layer + 128 + 128) + 2 * 1024 * 64 + 64
    assert (full.trained_bytes, full.frozen_bytes) == (4 * full.parameters, 0)
    assert full.matmul == 2 * layer
    assert full.text.weights == layer
    # A and B of rank 4 for q, o (64, 64), k, v (64, 32), gate, up, down (64, 192)
    assert lora.trained == 2 * 4 * (2 * 128 + 2 * 96 + 3 * 256)
    assert lora.rank == 4
    assert lora.parameters == full.parameters
    matmul = 2 * layer + 2 * 128 + 1024 * 64  # biases and the head are weights of products too
    table = 1024 * 64
    assert lora.frozen_bytes == 2 * (matmul + table) + 4 * (
        full.parameters - matmul - table
    )  # norms stay in float32


def test_quantised_weights_take_four_bits() -> None:
    family = build(
        Family,
        {"name": "text", "model": "Qwen/Qwen2.5-1.5B-Instruct", "dtype": "bfloat16", "quantize": "nf4"},
    )
    shape = shape_of(family, build(Trainable, {"name": "lora"}))
    biases = 28 * (1536 + 2 * 256)
    table, norms = 151936 * 1536, 57 * 1536
    assert shape.parameters == shape.matmul + biases + table + norms
    assert shape.frozen_bytes == pytest.approx(
        shape.matmul * 4.127 / 8 + 2 * (biases + table) + 4 * norms, rel=1e-6
    )


def test_a_plan_of_a_small_model_fits_and_is_printed() -> None:
    config = load_words(WORDS)
    plan = make_plan(config, WORDS, Ask(gpu("l4"), 1, price=1.0))
    values = as_values(plan)
    assert plan.chosen is not None
    assert values["chosen"]["layout"] == "single"
    assert values["chosen"]["cost_per_1000_steps"] == pytest.approx(plan.chosen.step_seconds / 3.6)
    assert values["flops"]["total"] == pytest.approx(
        sum(values["flops"][part] for part in ("prefill", "decode", "scoring", "training"))
    )
    assert any("fastest that fits: single" in line for line in as_lines(plan))
    assert json.dumps(values)


def test_what_does_not_fit_is_mended_by_the_mildest_change() -> None:
    words = [
        "base/rl",
        "tasks/lab_arithmetic",
        "methods/grpo",
        "models/qwen2_5_1_5b",
        "policy.checkpointing=false",
        "sampling.max_tokens=512",
    ]
    plan = make_plan(load_words(words), words, Ask(gpu("a100_40"), 1))
    assert plan.chosen is None
    assert plan.changed is not None
    assert plan.changed.fits
    assert not any(change.startswith("--count") for change in plan.change)
    again = make_plan(load_words([*words, *plan.change]), [*words, *plan.change], Ask(gpu("a100_40"), 1))
    assert again.chosen is not None


def test_more_ranks_hold_less_each() -> None:
    config = load_words(WORDS)
    two, eight = (
        make_plan(config, WORDS, Ask(gpu("l4"), count, sharding="fsdp2")).trials[0] for count in (2, 8)
    )
    assert eight.memory.state.weights == two.memory.state.weights / 4
    assert eight.memory.activations == two.memory.activations


def test_the_command_prints_a_plan_and_refuses_nonsense() -> None:
    import typer

    from vlrl.cli.plan import plan

    app = typer.Typer()
    app.command()(plan)
    done = CliRunner().invoke(app, [*WORDS, "--gpu", "l4", "--count", "2", "--json"])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["trials"]) == 5
    for words, message in (
        (["--gpu", "abacus"], "no GPU named"),
        (["--picture", "big"], "--picture"),
        (["--count", "0"], "--count"),
    ):
        failed = CliRunner().invoke(app, [*WORDS, *words])
        assert isinstance(failed.exception, ConfigError)
        assert message in str(failed.exception)


def test_an_unknown_model_is_named() -> None:
    words = [*WORDS[:3], "policy={name: text, model: someone/Qwen2.5-1.5B-Instruckt}"]
    with pytest.raises(ConfigError, match="shape of 'someone/Qwen2.5-1.5B-Instruckt' is not known"):
        make_plan(load_words(words), words, Ask(gpu("h200"), 1))


def test_nothing_is_allocated_for_a_released_model() -> None:
    family = build(Family, {"name": "text", "model": "Qwen/Qwen3-1.7B", "dtype": "bfloat16"})
    before = torch.random.get_rng_state()
    shape = shape_of(family, build(Trainable, {"name": "full"}))
    assert shape.parameters == 1720574976
    assert torch.equal(before, torch.random.get_rng_state())


def test_rows_of_256k_tokens_fit_eight_gpus_in_slices() -> None:
    """A rank of a 7B model holds an eighth of each row, but its whole media: 55 GiB instead of 255."""
    words = [
        "base/rl", "models/qwen2_5_vl_7b", "tasks/lab_counting", "methods/grpo", "policy.attn=flex",
        "policy.checkpointing=true", "group_size=4", "prompts_per_step=8", "max_prompt_tokens=253952",
        "sampling.max_tokens=2048", "engine={name: vllm, sleep: true}",
    ]  # fmt: skip
    ask = Ask(gpu("h100"), 8, sharding="zero3")
    whole = make_plan(load_words(words), words, ask)
    assert whole.chosen is None and whole.change == ("sequence_parallel=8",)
    sliced = make_plan(load_words([*words, *whole.change]), [*words, *whole.change], ask)
    assert sliced.chosen is not None and sliced.micro.length == whole.micro.length == 262140
    assert sliced.micro.own_tokens == 32768 and sliced.micro.own_scored == 1024
    one, eighth = whole.trials[0].memory.activations, sliced.chosen.memory.activations
    assert eighth.language == pytest.approx(one.language / 8, rel=1e-4)
    assert eighth.vision == one.vision and eighth.logits == one.logits  # chunks of 1024 tokens
    twelve = make_plan(load_words([*words, *whole.change]), words, Ask(gpu("h100"), 12))
    assert {trial.ranks for trial in twelve.trials} == {8}  # the other four sample
