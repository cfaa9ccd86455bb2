"""LoRA adapters (PEFT): attaching them, and folders that hold the merged model, the adapter, and the
adapter's base.

folder/{config.json, model.safetensors, processor files}     the merged model: plain transformers
folder/adapter/{adapter_config.json, adapter_model.safetensors, base.json}
folder/base/                                                  only if the base is neither a hub id nor rebuilt
from a seed
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vlrl.plugins.registry import ConfigError, get, make
from vlrl.policy.family import Family
from vlrl.services.lazy import nn, torch

ADAPTER = "adapter"
PARTS = {
    "projector": re.compile(
        r"\bvisual\.(merger|merger_list|deepstack_merger_list)\b|multi_modal_projector|\bconnector\b|image_newline"
        r"|\bmm_projector\b|\bembed_(vision|audio)\b|visual_embeddings_table|^(\w+\.)*model\.merger\b"
    ),
    "vision": re.compile(r"\bvisual\b|vision_tower|vision_model|\baudio_tower\b"),
}


# layers that transformers does not call in training: it reads their weight, past an adapter
READ_BY_WEIGHT = re.compile(r"\baltup\.correction_coefs$")


def part_of(name: str) -> str:
    """The part of the model that a parameter belongs to, by its name: "projector" (vision to language),
    "vision" (the towers of pictures and sounds) or "language"."""
    return next((part for part, pattern in PARTS.items() if pattern.search(name)), "language")


def has_adapter(model: Any) -> bool:
    """Whether the model is wrapped by PEFT."""
    return hasattr(model, "disable_adapter")


def attach_lora(model: Any, options: Mapping[str, Any], parts: tuple[str, ...], targets: str) -> Any:
    """The model with a new adapter on the linear layers of `parts` whose name matches `targets` ("" means all
    but the output head).

    `options` are the fields of PEFT's config; `peft_config` names its class (LoraConfig), for LNTuningConfig
    the layers are the norms; `experts` adds the weights of a mixture's experts. Raises ConfigError if no
    layer matches, or there are no experts.
    """
    import peft

    fields = dict(options)
    kind = fields.pop("peft_config", "LoraConfig")
    of_kind = is_norm if kind == "LNTuningConfig" else is_linear
    head = model.get_output_embeddings()
    layers = [name for name, module in model.named_modules() if of_kind(module) and module is not head]
    chosen = [
        name
        for name in layers
        if part_of(name) in parts and re.search(targets, name) and not READ_BY_WEIGHT.search(name)
    ]
    if not chosen:
        what = "norm" if of_kind is is_norm else "linear layer"
        raise ConfigError(
            f"trainable: no {what} of {', '.join(parts)} matches targets={targets!r}; layers are called "
            f"like {layers[-1]!r}"
        )
    if fields.pop("experts", False):
        fields["target_parameters"] = expert_weights(model, parts)
    if kind == "IA3Config":
        fields["feedforward_modules"] = [name for name in chosen if name.endswith("down_proj")]
    config = getattr(peft, kind)(target_modules=chosen, **fields)
    with names_as_they_are():
        return mark_adapted_experts(peft.get_peft_model(model, config))


@contextmanager
def names_as_they_are() -> Iterator[None]:
    """Inside, PEFT takes names of layers for those of the model that it has.

    For adapters of transformers 4 it takes each "gate_proj", "up_proj" and "down_proj" of GLM-4.5V,
    Qwen3-Next and others for those of the experts, shared and dense layers too: these would stay without an
    adapter, and all experts get one (`convert_peft_config_for_transformers`, peft 0.21).
    """
    try:
        from peft.utils import transformers_weight_conversion as conversion
    except ImportError:  # before peft 0.19
        yield
        return
    kept = conversion.convert_peft_config_for_transformers
    conversion.convert_peft_config_for_transformers = lambda *args, **kwargs: None
    try:
        yield
    finally:
        conversion.convert_peft_config_for_transformers = kept


def expert_weights(model: Any, parts: tuple[str, ...]) -> list[str]:
    """The names of the weights of all experts, which are one tensor (experts, out, in) a layer. Raises
    ConfigError for a model without them."""
    names = [
        name
        for name, parameter in model.named_parameters()
        if parameter.dim() == 3 and ".experts." in name and part_of(name) in parts
    ]
    if not names:
        kind = model.config.get_text_config().model_type
        raise ConfigError(
            f"trainable: experts=True, but {', '.join(parts)} of {kind!r} has no experts of one tensor a "
            "layer; leave it out"
        )
    return names


def adapted_experts(model: nn.Module) -> list[Any]:
    """PEFT's wrappers of the expert weights that have an adapter of their own."""
    if not has_adapter(model):
        return []
    from peft.tuners.lora.layer import ParamWrapper

    return [module for module in model.modules() if isinstance(module, ParamWrapper)]


def mark_adapted_experts(model: Any) -> Any:
    """The model, whose adapted experts multiply in float32 from now on (`vlrl/policy/experts.py`)."""
    for wrapper in adapted_experts(model):
        wrapper.get_base_layer().adapted = True
    return model


def is_norm(module: nn.Module) -> bool:
    """Whether `module` normalises: a LayerNorm or RMSNorm."""
    return type(module).__name__.endswith(("LayerNorm", "RMSNorm"))


def is_linear(module: nn.Module) -> bool:
    """Whether `module` is a linear layer, quantised or not."""
    return isinstance(module, nn.Linear) or type(module).__name__ in ("Linear4bit", "Linear8bitLt")


def base_description(family: Family, seed: int) -> dict[str, Any]:
    """The values from which a family's initial weights can be made again (`base.json`)."""
    return {"name": family.name, "seed": seed, "family": dataclasses.asdict(family)}


def save_with_adapter(
    model: Any, processor: Any, base: Mapping[str, Any] | None, quantized: bool, folder: Path
) -> None:
    """Write the merged model, the adapter and its base.

    The merged model is in float32 unless it is quantised, because bfloat16 would round a small adapter away.
    `base` describes the base (see `base_description`); None saves the base's weights too.
    """
    merged = copy.deepcopy(model)
    if not quantized:
        cast_weights(merged, torch.float32)
    merged.merge_and_unload().save_pretrained(folder)
    model.save_pretrained(folder / ADAPTER)
    if base is None:
        with model.disable_adapter():
            plain = copy.deepcopy(model).unload()
        plain.save_pretrained(folder / "base")
        processor.save_pretrained(folder / "base")
    (folder / ADAPTER / "base.json").write_text(json.dumps(base), encoding="utf-8")


def base_of(family: Family) -> tuple[Family, int | None]:
    """(family, seed) that make the base weights of an adapter folder; (the family itself, None) if its folder
    holds no adapter."""
    note = Path(family.model) / ADAPTER / "base.json"
    if not note.is_file():
        return family, None
    origin = json.loads(note.read_text(encoding="utf-8"))
    if origin is None:
        return dataclasses.replace(family, model=str(Path(family.model) / "base")), None
    values = {key: value for key, value in origin["family"].items() if key in ("model", "revision", "tiny")}
    merged = {f.name: getattr(family, f.name) for f in dataclasses.fields(family)} | values
    return make(get(Family, origin["name"]), merged, "policy"), origin["seed"]


def load_adapter(model: Any, folder: str) -> Any:
    """The model with the adapter of a saved folder, trainable."""
    from peft import PeftModel

    with names_as_they_are():
        adapted = PeftModel.from_pretrained(model, str(Path(folder) / ADAPTER), is_trainable=True)
    return mark_adapted_experts(adapted)


def cast_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast all floating-point weights. Buffers stay as they are: rotary frequencies in bfloat16 are wrong
    from a few hundred positions on."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
