"""Shapes of released models (`releases.yaml`), so that no hub is needed, and the transformers configs that
they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from vlrl.plugins.registry import ConfigError, suggest

FILE = Path(__file__).with_name("releases.yaml")


@dataclass(frozen=True)
class Release:
    """A released model's sizes. `parameters` is the published total, quoted where `total` says, `pictures`
    what the family's `make_processor` takes."""

    name: str
    source: str
    total: str
    parameters: int
    config: Mapping[str, Any]
    pictures: Mapping[str, Any]


@cache
def releases() -> dict[str, Release]:
    """All released models that are described, by hub id."""
    entries = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {
        name: Release(name, e["source"], e["total"], int(e["parameters"]), e["config"], e.get("pictures", {}))
        for name, e in entries.items()
    }


def release(name: str) -> Release:
    """The release of a hub id. Raises ConfigError for one that is not described."""
    name = {"fetched:smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}.get(name, name)
    if name not in releases():
        raise ConfigError(
            f"policy.model: the shape of {name!r} is not known here.{suggest(name, releases())} Known: "
            f"{', '.join(releases())}; "
            "or give a folder that holds the model's config.json"
        )
    return releases()[name]


def transformers_config(model: str, layers: int = 0, vision_layers: int = 0) -> Any:
    """The transformers config of a hub id, or of a folder with a config.json.

    Args: `layers` and `vision_layers` keep only that many layers (0: all). Kinds of layers that alternate
    keep their pattern, and vision layers that are named by index (full attention, DeepStack) become the last
    ones.
    """
    from transformers import AutoConfig

    if (Path(model) / "config.json").is_file():
        config = AutoConfig.from_pretrained(model)
    else:
        values = dict(release(model).config)
        config = AutoConfig.for_model(values.pop("model_type"), **values)
    return shortened(config, layers, vision_layers)


def shortened(config: Any, layers: int, vision_layers: int) -> Any:
    """`config` with fewer layers (0: all of them); see `transformers_config`."""
    text, vision = config.get_text_config(), getattr(config, "vision_config", None)
    if layers:
        kinds = getattr(text, "layer_types", None)
        if kinds:
            text.layer_types = pattern(list(kinds), layers)
        text.num_hidden_layers = layers
    if vision_layers and vision is not None:
        setattr(vision, "depth" if hasattr(vision, "depth") else "num_hidden_layers", vision_layers)
        if getattr(vision, "fullatt_block_indexes", None):
            vision.fullatt_block_indexes = [vision_layers - 1]
        if deep := getattr(vision, "deepstack_visual_indexes", None):
            vision.deepstack_visual_indexes = list(range(vision_layers))[-len(deep) :]
    return config


def pattern(kinds: list[str], layers: int) -> list[str]:
    """The kinds of a shortened model's layers: the first ones, with one of each kind if there are enough
    layers."""
    kept = kinds[:layers]
    missing = [kind for kind in dict.fromkeys(kinds) if kind not in kept]
    for place, kind in enumerate(missing[: max(0, layers - 1)]):
        kept[layers - 1 - place] = kind
    return kept


def meta_model(config: Any) -> Any:
    """The transformers model of a config on the meta device: shapes and types without memory."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(config)
