"""Low-rank adapters (PEFT): attaching them, and folders that hold the merged model, the adapter, and what the adapter was put on.

folder/{config.json, model.safetensors, processor files}     the merged model: plain transformers
folder/adapter/{adapter_config.json, adapter_model.safetensors, base.json}
folder/base/                                                  only where the base is neither a hub id nor rebuilt from a seed
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vlrl.policy.precision import cast
from vlrl.registry import ConfigError, get, make

if TYPE_CHECKING:
    from vlrl.policy.family import Family
    from vlrl.policy.policy import Policy

ADAPTER = "adapter"
PARTS = {
    "projector": re.compile(r"\bvisual\.(merger|deepstack_merger_list)\b|multi_modal_projector|\bconnector\b|image_newline"),
    "vision": re.compile(r"\bvisual\b|vision_tower|vision_model"),
}


def part_of(name: str) -> str:
    """Where a parameter belongs, by its name: "projector" (vision to language), "vision" or "language"."""
    return next((part for part, pattern in PARTS.items() if pattern.search(name)), "language")


def attach(model: nn.Module, options: Mapping[str, Any], parts: tuple[str, ...], targets: str) -> nn.Module:
    """The model with a fresh adapter on the linear layers of `parts` whose name matches `targets` ("" means all but the output head).

    Raises ConfigError if nothing matches.
    """
    from peft import LoraConfig, get_peft_model

    head = model.get_output_embeddings()  # type: ignore[operator]
    linear = [name for name, module in model.named_modules() if is_linear(module) and module is not head]
    chosen = [name for name in linear if part_of(name) in parts and re.search(targets, name)]
    if not chosen:
        raise ConfigError(f"trainable: no linear layer of {', '.join(parts)} matches targets={targets!r}; layers are called like {linear[-1]!r}")
    return get_peft_model(model, LoraConfig(target_modules=chosen, **options))  # type: ignore[arg-type]


def is_linear(module: nn.Module) -> bool:
    """A linear layer, quantised or not."""
    return isinstance(module, nn.Linear) or type(module).__name__ in ("Linear4bit", "Linear8bitLt")


def describe(family: Family, seed: int) -> dict[str, Any]:
    """What is needed to make a family's untouched weights again."""
    return {"name": family.name, "seed": seed, "family": dataclasses.asdict(family)}


def write(policy: Policy, model: Any, folder: Path) -> None:
    """The merged model (in float32 unless it is quantised: a bfloat16 would swallow a small adapter), the adapter and its base."""
    merged = copy.deepcopy(model)
    if not policy.family.quantize:
        cast(merged, torch.float32)
    merged.merge_and_unload().save_pretrained(folder)
    model.save_pretrained(folder / ADAPTER)
    if policy.base_origin is None:
        with model.disable_adapter():
            plain = copy.deepcopy(model).unload()
        plain.save_pretrained(folder / "base")
        policy.processor.save_pretrained(folder / "base")
    (folder / ADAPTER / "base.json").write_text(json.dumps(policy.base_origin), encoding="utf-8")


def base_of(family: Family) -> tuple[Family, int | None]:
    """The family that makes the weights under an adapter folder's adapter (the family itself where there is none), and its seed."""
    note = Path(family.model) / ADAPTER / "base.json"
    if not note.is_file():
        return family, None
    origin = json.loads(note.read_text(encoding="utf-8"))
    if origin is None:
        return dataclasses.replace(family, model=str(Path(family.model) / "base")), None
    from vlrl.policy.family import Family as Kind

    values = {key: value for key, value in origin["family"].items() if key in ("model", "revision", "tiny")}
    merged = {f.name: getattr(family, f.name) for f in dataclasses.fields(family)} | values
    return make(get(Kind, origin["name"]), merged, "policy"), origin["seed"]


def load(model: nn.Module, folder: str) -> nn.Module:
    """Put a saved adapter on the model, ready to be trained on."""
    from peft import PeftModel

    return PeftModel.from_pretrained(model, str(Path(folder) / ADAPTER), is_trainable=True)  # type: ignore[arg-type]
