"""A config as `vlrl plan` reads it: family, trainable, engine and settings of one phase, without a model,
data or a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl.config import Config
from vlrl.plan.releases import release
from vlrl.plan.shape import ModelShape, model_config, shape_of
from vlrl.plan.workload import Workload
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Engine, Trainable
from vlrl.policy import Family
from vlrl.policy.costs import PictureCost
from vlrl.policy.families.vision import VisionFamily
from vlrl.policy.tiny import Tiny
from vlrl.services.lazy import torch
from vlrl.trainer.plan import one_phase


@dataclass(frozen=True)
class Assumed:
    """What a config does not say: mean tokens of a prompt's text, mean completion (0: 60% of the bound),
    pictures per prompt and their size."""

    text_tokens: int = 256
    completion: float = 0.0
    pictures: int = 1
    width: int = 1024
    height: int = 768

    def __post_init__(self) -> None:
        if min(self.text_tokens, self.width, self.height) < 1 or self.pictures < 0 or self.completion < 0:
            raise ConfigError(f"plan: sizes must be positive, got {self}")


_SHAPES: dict[str, ModelShape] = {}  # by model, types and what is trained


@dataclass(frozen=True)
class Setup:
    """A phase of a config: what `vlrl plan` computes with."""

    tree: Mapping[str, Any]
    family: Family
    trainable: Trainable
    engine: Engine
    work: Workload
    optimizer: str

    @property
    def shares_weights(self) -> bool:
        """Whether the engine samples with the trainer's own weights."""
        return hasattr(self.engine, "token_budget")

    @property
    def in_process(self) -> bool:
        """Whether the engine has weights of its own on the trainer's devices."""
        return hasattr(self.engine, "sleep")

    def shape(self, layout: str = "single") -> ModelShape:
        """The model's shape; FSDP2 keeps frozen weights in float32. Computed once for all setups of a model:
        a model of 32 billion weights takes seconds to build, and a plan that does not fit tries hundreds."""
        family, in_float32 = self.family, layout == "fsdp2"
        stored = (family.dtype, family.fp32_master_weights, family.quantize, in_float32)
        key = repr((family.name, family.model, family.tiny, self.trainable, *stored))
        if key not in _SHAPES:
            _SHAPES[key] = shape_of(family, self.trainable, in_float32)
        return _SHAPES[key]


def plugins(tree: Mapping[str, Any]) -> tuple[Family, Trainable, Engine]:
    """(family, trainable, engine) of a phase's tree. FlexAttention is refused where there is no GPU, so the
    family is built without it."""
    policy = dict(tree["policy"])
    if policy.get("attn") == "flex":
        policy.pop("attn")
    return (
        build(Family, policy, "policy"),
        build(Trainable, tree.get("trainable") or {"name": "full"}, "trainable"),
        build(Engine, tree.get("engine") or {"name": "hf"}, "engine"),
    )


def setup(config: Config, phase: str, assumed: Assumed) -> Setup:
    """One phase of a config. `phase` "" is the last. Raises ConfigError."""
    names = list(config.phases)
    if phase and phase not in names:
        raise ConfigError(f"--phase: no phase named {phase!r}; this config has {', '.join(names)}")
    tree = config.phase(phase or names[-1])
    if "policy" not in tree:
        raise ConfigError("policy: not set; add a model, for instance models/qwen2_5_vl_3b")
    family, trainable, engine = plugins(tree)
    built = one_phase(config, phase or names[-1], family, engine)
    settings, sampling = built.settings, built.sampling
    longest = int(getattr(sampling, "max_tokens", 0) or 512)
    needs = set(built.objective.needs)
    off_policy = settings.ppo_epochs * settings.num_minibatches > 1 or any(
        "old_logp" in w.needs for w in built.token_weights.values()
    )
    work = Workload(
        prompts=settings.prompts_per_step,
        group=settings.group_size,
        text_tokens=assumed.text_tokens,
        completion=min(assumed.completion or 0.6 * longest, float(longest)),
        max_prompt=settings.max_prompt_tokens,
        max_completion=longest,
        micro_batch_tokens=settings.micro_batch_tokens,
        num_minibatches=settings.num_minibatches,
        epochs=settings.ppo_epochs,
        pictures=assumed.pictures if family.is_multimodal else 0,
        picture=picture_of(family, assumed),
        reference="ref_logp" in needs,
        old_logp=off_policy,
        logged=settings.watch.entropy,
        can_pack=family.layout == "packed" and family.supports_packing,
        dense=tree["policy"].get("attn") != "flex",
        sequence=settings.sequence_parallel,
    )
    return Setup(tree, family, trainable, engine, work, settings.optimizer.kind)


def picture_of(family: Family, assumed: Assumed) -> PictureCost:
    """What a picture costs under the family's processor and the config's pixel bounds."""
    if not isinstance(family, VisionFamily):
        return PictureCost()
    config, processor = model_config(family), processor_of(family)
    family.limit_pixels(processor, config)
    return family.picture_cost(processor, config, assumed.width, assumed.height)


def processor_of(family: VisionFamily) -> Any:
    """The processor of a family's model: of its folder, or with a small tokenizer and the sizes of its
    release or of its tiny model."""
    if family.model and (Path(family.model) / "config.json").is_file():
        from transformers import AutoProcessor

        return AutoProcessor.from_pretrained(family.model)
    with torch.device("meta"):
        _, processor = family.build(family.tiny or Tiny())
    if family.model:
        return family.make_processor(processor.tokenizer, release(family.model).pictures)
    return processor
