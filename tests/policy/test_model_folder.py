"""A model that is not there, or not whole, is one line that names what is missing."""

import json
import struct

import pytest

from vlrl.config.model_folder import check_cached, check_model, parts_beside_text
from vlrl.eval.model import policy_spec
from vlrl.plugins.registry import ConfigError, build
from vlrl.policy import Family


def safetensors(path, size=16, cut=0):
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(size)
    path.write_bytes(data[: len(data) - cut])


@pytest.fixture
def folder(tmp_path):
    model = tmp_path / "my_model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen2_5_vl"}')
    (model / "tokenizer.json").write_text("{}")
    (model / "preprocessor_config.json").write_text("{}")
    safetensors(model / "model.safetensors")
    return model


def problem(name, multimodal=True):
    with pytest.raises(ConfigError) as raised:
        check_model(str(name), multimodal)
    assert str(raised.value).startswith("policy.model: ") and "\n" not in str(raised.value)
    return str(raised.value)


def test_a_whole_folder_passes(folder):
    check_model(str(folder), True)
    check_model("", True)
    check_model("Qwen/Qwen2.5-VL-3B-Instruct", True)
    (folder / "preprocessor_config.json").unlink()
    check_model(str(folder), False)


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (["config.json"], "is no model: it has no config.json; give the folder of a Hugging Face model"),
        (
            ["model.safetensors"],
            "lacks the weights (model.safetensors); copy the whole model, or download it again",
        ),
        (["tokenizer.json"], "lacks the tokenizer (tokenizer.json)"),
        (["preprocessor_config.json"], "lacks the image processor (preprocessor_config.json)"),
        (
            ["tokenizer.json", "preprocessor_config.json"],
            "lacks the tokenizer (tokenizer.json) and the image processor",
        ),
    ],
)
def test_missing_files_are_named(folder, gone, said):
    for name in gone:
        (folder / name).unlink()
    assert said in problem(folder)


def test_missing_shards_are_named(folder):
    (folder / "model.safetensors").unlink()
    for i in (1, 3):
        safetensors(folder / f"model-0000{i}-of-00003.safetensors")
    shards = {f"w{i}": f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert "lacks 1 of 3 weight files (model-00002-of-00003.safetensors);" in problem(folder)
    safetensors(folder / "model-00002-of-00003.safetensors")
    check_model(str(folder), True)


def test_damaged_files_are_named(folder):
    safetensors(folder / "model.safetensors", 16, cut=5)
    assert "model.safetensors' is damaged (" in problem(folder) and "bytes where its header says" in problem(
        folder
    )
    for content in (
        b"",
        b"\x00" * 7,
        b"\xff" * 100,
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"{}" + b"x",
        struct.pack("<Q", 8) + b'{"w": 3}',
    ):
        (folder / "model.safetensors").write_bytes(content)
        assert "is damaged" in problem(folder)
    (folder / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    )
    assert "Git LFS pointer" in problem(folder) and "git lfs pull" in problem(folder)
    safetensors(folder / "model.safetensors")
    for content in ("{", "[]", "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "[" * 100_000):
        (folder / "config.json").write_text(content)
        assert "config.json' is damaged" in problem(folder)


def test_what_a_folder_is_instead(folder, tmp_path):
    assert (
        "no folder" in problem(tmp_path / "my_modle")
        and "(did you mean" in problem(tmp_path / "my_modle")
        and "my_model'?" in problem(tmp_path / "my_modle")
    )
    assert "but 'my_model' inside it has" in problem(tmp_path)
    assert "is a file; give the folder" in problem(folder / "config.json")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    assert "holds an adapter and no model; merge it: vlrl export" in problem(tmp_path / "adapter")
    (tmp_path / "run" / "checkpoints" / "step-000010").mkdir(parents=True)
    assert "is a run's folder; give one of its checkpoints" in problem(
        tmp_path / "run"
    ) and "step-000010'" in problem(tmp_path / "run")


NAMES = [
    "qwen 2.5",
    "a/b/c/d",
    "/nowhere/model",
    "~nobody-of-this-name/x",
    "./x",
    "org/",
    "x" * 5000,
    "a\x00b",
    "Qwen\\VL",
    "ümlaut/x",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_that_are_no_model(name):
    assert len(problem(name)) < 5500


def test_offline_without_the_model(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    check_model("a/b", True)
    with pytest.raises(
        ConfigError,
        match=(
            "is not in the cache, and HF_HUB_OFFLINE is set; unset it, or download it first: hf download a/b"
        ),
    ):
        check_cached("a/b")
    (tmp_path / "models--a--b" / "snapshots" / "1").mkdir(parents=True)
    (tmp_path / "models--a--b" / "snapshots" / "1" / "config.json").write_text("{}")
    for name in ("a/b", str(tmp_path), ""):
        check_cached(name)


def test_families_check_their_model(tmp_path):
    for family in ("text", "qwen2_5_vl"):
        with pytest.raises(ConfigError, match="policy.model: no folder"):
            build(Family, {"name": family, "model": str(tmp_path / "nothing")}, "policy")
    for key, value, said in (
        ("hidden", 0, "hidden is 0; allowed: 1 to"),
        ("heads", 3, "hidden=64 is not a multiple of heads=3"),
        ("layers", -1, "layers"),
    ):
        with pytest.raises(ConfigError, match=f"policy.tiny: {said}"):
            build(Family, {"name": "text", "tiny": {key: value}}, "policy")
    with pytest.raises(ConfigError, match=r"policy.tiny: expected a mapping of fields \(hidden, "):
        build(Family, {"name": "text", "tiny": 5}, "policy")


def of_type(folder, **config):
    """The folder with this config.json."""
    (folder / "config.json").write_text(json.dumps(config))
    return {"model": str(folder)}


UNREAD = {"model_type": "phi4_multimodal", "text_config": {}, "vision_config": {}, "audio_config": {}}


@pytest.mark.parametrize("family", ["text", "qwen2_5_vl"])
def test_a_model_with_towers_that_no_family_reads_is_refused_by_name(folder, family):
    told = (
        r"^policy.model: '.*' holds a model of type 'phi4_multimodal', which no family reads, and "
        r"'text' would train it without its other parts \(audio_config, vision_config\); use a model of "
        r"one of these types: .*"
        r"qwen2_5_vl.*; or a language model$"
    )
    with pytest.raises(ConfigError, match=told):
        build(Family, {"name": family, **of_type(folder, **UNREAD)}, "policy")
    with pytest.raises(
        ConfigError, match=r"^--model .*: holds a model of type 'phi4_multimodal', which no family"
    ):
        policy_spec(str(folder))


@pytest.mark.parametrize(
    ("held", "family"),
    [
        ("qwen2", "text"),
        ("qwen3_5_text", "text"),
        ("qwen3_vl", "qwen3_vl"),
        ("qwen2_5_omni_thinker", "qwen2_5_omni"),
    ],
)
def test_a_models_type_names_its_family(folder, held, family):
    given = of_type(folder, model_type=held, vision_config={} if family != "text" else None)
    assert build(Family, {"name": family, **given}, "policy").model == str(folder)
    assert policy_spec(str(folder))["name"] == family
    for other in {"text", "gemma3"} - {family}:
        with pytest.raises(ConfigError, match=rf"type '{held}', which family '{other}' does not read; set "):
            build(Family, {"name": other, **given}, "policy")


def test_a_hub_ids_type_is_looked_at_before_its_weights(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path), raising=False)
    snapshot = tmp_path / "models--a--b" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--a--b" / "refs").mkdir()
    (tmp_path / "models--a--b" / "refs" / "main").write_text("1")
    of_type(snapshot, **UNREAD)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    family = build(Family, {"name": "text", "model": "a/b"}, "policy")
    with pytest.raises(
        ConfigError, match="policy.model: 'a/b' holds a model of type 'phi4_multimodal', which no"
    ):
        family.load()


@pytest.mark.slow
def test_all_of_transformers_models_with_towers_are_told_from_language_models():
    """Every model type that transformers loads with pictures, video, sound or an encoder, against every type
    that it loads as a language model."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    tables = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SPEECH_SEQ_2_SEQ")
    causal, *others = (set(getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES")) for name in tables)
    # not built without parts of other types; a language model among those with pictures
    known, wrong = {"musicgen", "musicgen_melody", "mistral4"}, {}
    known |= {name for name in causal.union(*others) if name.endswith("encoder-decoder")}
    for name in sorted(causal.union(*others) - known):
        config = CONFIG_MAPPING[name]()
        has_parts = name in set().union(*others) or getattr(config, "is_encoder_decoder", False)
        if bool(parts_beside_text(json.loads(config.to_json_string()))) != has_parts:
            wrong[name] = parts_beside_text(config.to_dict())
    assert wrong == {"moshi": ["audio_encoder_config"]}  # a language model of sound
