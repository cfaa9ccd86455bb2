"""`vlrl export`: folders that plain transformers loads, with the logits of the run's own policy."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from vlrl.config import load
from vlrl.interop.export import export
from vlrl.plugins.registry import ConfigError
from vlrl.policy import Policy
from vlrl.trainer.plan import Plan
from vlrl.training import train

WORDS = ["base/rl", "models/tiny_text", "tasks/lab_arithmetic", "methods/grpo"]
SMALL = [
    "steps=2",
    "group_size=1",
    "prompts_per_step=2",
    "watch.checkpoint_every=1",
    "optimizer.lr=1e-2",
    "sampling.max_tokens=4",
]
SMALL += [
    "rollout={name: expert}",
    "policy_loss={name: zero_loss}",
    "loss_terms={nll: {name: nll}}",
]  # demonstrations: it learns at once
LORA = "trainable={name: lora, r: 2}"


def trained(folder, *more):
    config = load(WORDS, [*SMALL, f"output={folder}", "watch.live=false", *more])
    train(config)
    return config


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    folder = tmp_path_factory.mktemp("full") / "run"
    return folder, trained(folder)


@pytest.fixture(scope="module")
def base(tmp_path_factory, full):
    """A model folder, as one downloads it."""
    return export(full[0], tmp_path_factory.mktemp("base") / "model", checkpoint=1).folder


@pytest.fixture(scope="module")
def lora(tmp_path_factory, base):
    """A run with adapters on a base that is a folder."""
    folder = tmp_path_factory.mktemp("lora") / "run"
    # an lr of 0.1 makes adapters larger than their base, whose logits rounding alone moves by 5e-5 (against
    # float64); with 0.01 it is 1e-6
    return folder, trained(folder, LORA, f"policy.model={base}", "policy.tiny=null", "optimizer.lr=0.01")


def own_logits(config, checkpoint, ids):
    """Logits of the run's policy, loaded as a resumed run loads it."""
    family = replace(Plan.of(config).family, model=str(checkpoint))
    with torch.no_grad():
        return Policy(family).params.model(input_ids=ids).logits


def plain_logits(folder, ids):
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder).eval()(input_ids=ids).logits


IDS = torch.tensor([[5, 6, 7, 8, 9]])


@pytest.mark.parametrize("step", [1, 2])
def test_a_model_has_the_policys_logits_in_plain_transformers(full, tmp_path, step):
    folder, config = full
    done = export(folder, tmp_path / "out", checkpoint=step)
    assert (done.step, done.is_adapter) == (step, False)
    expected = own_logits(config, folder / "checkpoints" / f"step-{step:06d}", IDS)
    assert torch.equal(plain_logits(done.folder, IDS), expected)
    assert AutoTokenizer.from_pretrained(done.folder)("1+1").input_ids
    assert not (done.folder / "trainer").exists()


def test_the_newest_checkpoint_is_the_default(full, tmp_path):
    done = export(full[0], tmp_path / "out")
    assert done.step == 2 and json.loads((done.folder / "vlrl_export.json").read_text())["step"] == 2
    older = export(full[0], tmp_path / "older", checkpoint=1)
    assert not torch.equal(plain_logits(done.folder, IDS), plain_logits(older.folder, IDS))


def test_an_adapter_and_the_merged_model_have_the_policys_logits(lora, base, tmp_path):
    folder, config = lora
    adapter, merged = (
        export(folder, tmp_path / "adapter"),
        export(folder, tmp_path / "merged", merge_lora=True),
    )
    expected = own_logits(config, folder / "checkpoints" / "step-000002", IDS)
    assert adapter.is_adapter and not merged.is_adapter
    assert not list(adapter.folder.glob("model*.safetensors")) and not (merged.folder / "adapter").exists()
    torch.testing.assert_close(plain_logits(adapter.folder, IDS), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(plain_logits(merged.folder, IDS), expected, atol=1e-5, rtol=1e-5)
    assert (plain_logits(base, IDS) - expected).abs().max() > 1e-3  # the adapter has learned something


def test_an_adapter_on_a_random_base_can_only_be_merged(tmp_path):
    trained(tmp_path / "run", LORA, "steps=1")
    with pytest.raises(ConfigError, match="--merge-lora"):
        export(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*.part"))
    assert not export(tmp_path / "run", tmp_path / "out", merge_lora=True).is_adapter


def test_what_cannot_be_exported_is_said(full, tmp_path):
    with pytest.raises(ConfigError, match="none of step 7; it has 1, 2"):
        export(full[0], tmp_path / "out", checkpoint=7)
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        export(tmp_path, tmp_path / "out")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        export(full[0], tmp_path / "taken")
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["thesis.tex"]
