"""The sizes of a config's model: parameters by part, bytes of weights as the run would store them, widths of
its layers. No weights are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vlrl.plan.blocks import Width, text_width, tower_depth, tower_width
from vlrl.plan.releases import meta_model, transformers_config
from vlrl.plugins.stages import Trainable
from vlrl.policy import adapters
from vlrl.policy.family import Family
from vlrl.services.lazy import torch

if TYPE_CHECKING:
    from vlrl.policy.params import Params

NF4_BYTES = (
    4 + 0.127
) / 8  # QLoRA, arXiv:2305.14314, sec. 3: 4 bits and 0.127 bits for doubly quantised constants
INT8_BYTES = 1.0


@dataclass(frozen=True)
class ModelShape:
    """Counts are of numbers; `*_bytes` of bytes as stored by one rank that shares nothing.

    `parts` counts parameters by part ("language", "vision", "projector"; "head" is the output head, also
    where it is tied). `trained` are those with a gradient, `matmul_trained` those that autocast copies into
    `dtype`, `largest` the largest of them, `head_trained` the head's numbers if it is trained. `matmul` are
    all parameters of matrix products without the head, experts as far as a token uses them; `linear` are the
    language model's matrices without the head and experts, `experts` all of its experts.
    `size` is the bytes of the products' type, `rank` the rank of adapters (0: none).
    """

    parts: Mapping[str, int]
    trained: int
    trained_by_part: Mapping[str, int]
    trained_bytes: float
    frozen_bytes: float
    reference_bytes: float
    matmul: int
    linear: int
    experts: int
    matmul_trained: int
    largest: int
    head_trained: int
    size: int
    rank: int
    text: Width
    layers: int
    sliding_layers: int
    window: int
    vocabulary: int
    tower: Width | None
    tower_layers: int
    tower_merge: int
    layers_without_keys: int = 0

    @property
    def parameters(self) -> int:
        """All parameters of the model without its adapter, tied ones once."""
        return sum(count for part, count in self.parts.items() if part != "head")

    @property
    def kv_per_token(self) -> float:
        """Bytes of keys and values of one token in all layers, in the products' type."""
        return 2.0 * (self.layers - self.layers_without_keys) * self.text.keys * self.size


class MetaPolicy:
    """The part of a policy that trainables use, on the meta device: `model`, `part_of`, `add_adapter`."""

    def __init__(self, params: Params) -> None:
        self.params = params

    @property
    def model(self) -> Any:
        """The transformers model, inside its PEFT wrapper if it has an adapter."""
        return self.params.model

    part_of = staticmethod(adapters.part_of)

    def add_adapter(self, options: Mapping[str, Any], parts: tuple[str, ...], targets: str) -> None:
        """`Policy.add_adapter`."""
        self.params.add_adapter(options, parts, targets, base_is_trained=False)


def model_config(family: Family) -> Any:
    """The transformers config of a family's model: of its release, its folder, or its `tiny` sizes."""
    if family.model:
        return transformers_config(family.model)
    assert family.tiny is not None
    with torch.device("meta"):
        return family.build(family.tiny)[0].config


def shape_of(family: Family, trainable: Trainable, keep_frozen_in_float32: bool = False) -> ModelShape:
    """The shape of a config's model under its trainable, with weights stored as `Params.upcast_trainable`
    stores them.

    `keep_frozen_in_float32`: FSDP2 keeps all weights in one type. Raises ConfigError for a model whose shape
    is not known.
    """
    config = model_config(family)
    model = meta_model(config)
    adapters.cast_weights(model, family.compute_dtype)
    parts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        parts[adapters.part_of(name)] += parameter.numel()
    head = model.get_output_embeddings().weight
    parts["head"] = head.numel()
    inside = matmul_weights(model)  # before an adapter adds some
    matmul = sum(p.numel() for p in inside.values() if p is not head and p.dim() > 1)
    linear = sum(
        p.numel()
        for name, p in model.named_parameters()
        if id(p) in inside and p is not head and p.dim() == 2 and adapters.part_of(name) == "language"
    )
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name and p.dim() == 3)
    matmul += experts_in_use(experts, config.get_text_config())
    from vlrl.policy.params import Params  # imports torch

    params = Params(model, replace(family, quantize=""), torch.device("meta"), None)
    policy: Any = MetaPolicy(params)  # the part of PolicyModel that trainables use
    trainable(policy)
    reference = reference_bytes(params) if not adapters.has_adapter(params.model) else 0.0
    params.upcast_trainable(include_frozen=keep_frozen_in_float32)
    adapted = set(matmul_weights(params.model))
    trained = {name: p for name, p in params.model.named_parameters() if p.requires_grad}
    by_part: Counter[str] = Counter()
    for name, parameter in trained.items():
        by_part[adapters.part_of(name)] += parameter.numel()
    text, vision = config.get_text_config(), getattr(config, "vision_config", None)
    kinds = list(getattr(text, "layer_types", None) or [])
    return ModelShape(
        parts=dict(parts),
        trained=sum(p.numel() for p in trained.values()),
        trained_by_part=dict(by_part),
        trained_bytes=float(sum(p.numel() * p.element_size() for p in trained.values())),
        frozen_bytes=frozen_bytes(params.model, family.quantize, head, adapted),
        reference_bytes=reference,
        matmul=matmul,
        linear=linear,
        experts=experts,
        matmul_trained=sum(p.numel() for p in trained.values() if id(p) in adapted),
        largest=max((p.numel() for p in trained.values()), default=0),
        head_trained=head.numel() if head.requires_grad else 0,
        size=torch.empty((), dtype=family.compute_dtype).element_size(),
        rank=_rank(params.model),
        text=text_width(text),
        layers=text.num_hidden_layers,
        sliding_layers=kinds.count("sliding_attention"),
        window=getattr(text, "sliding_window", None) or 0,
        vocabulary=head.shape[0],
        tower=tower_width(vision) if vision is not None else None,
        tower_layers=tower_depth(vision) if vision is not None else 0,
        tower_merge=getattr(vision, "spatial_merge_size", 1) ** 2 if vision is not None else 1,
        layers_without_keys=getattr(text, "num_kv_shared_layers", 0),
    )


def experts_in_use(whole: int, text: Any) -> int:
    """The numbers of a mixture's experts that a token goes through, of `whole`."""
    counts = (getattr(text, name, None) for name in ("num_experts", "n_routed_experts", "num_local_experts"))
    count = next((count for count in counts if count), 1)
    top = getattr(text, "num_experts_per_tok", None) or getattr(text, "top_k_experts", None) or 1
    return whole * top // count


def matmul_weights(model: Any) -> dict[int, Any]:
    """The parameters of a model's matrix products, biases included, by identity."""
    from vlrl.policy.params import is_matmul

    return {
        id(p): p for module in model.modules() if is_matmul(module) for p in module.parameters(recurse=False)
    }


def reference_bytes(params: Params) -> float:
    """Bytes of a frozen copy of the weights: those of matrix products in the products' type, the others in
    float32."""
    from vlrl.policy.params import multiplies

    mixed = params.family.fp32_master_weights and params.family.compute_dtype != torch.float32
    size = torch.empty((), dtype=params.family.compute_dtype).element_size()
    elsewhere = {
        id(p) for m in params.model.modules() if not multiplies(m) for p in m.parameters(recurse=False)
    }
    return float(
        sum(p.numel() * (4 if mixed and id(p) in elsewhere else size) for p in params.model.parameters())
    )


def frozen_bytes(model: Any, quantize: str, head: Any, inside: set[int]) -> float:
    """Bytes of the weights without gradient; with `quantize`, matrices of linear layers but the head's take
    4.127 (nf4) or 8 (int8) bits a number."""
    small = {"nf4": NF4_BYTES, "int8": INT8_BYTES}.get(quantize, 0.0)
    total = 0.0
    for parameter in model.parameters():
        if not parameter.requires_grad:
            linear = id(parameter) in inside and parameter is not head and parameter.dim() > 1
            total += parameter.numel() * (small if small and linear else parameter.element_size())
    return total


def _rank(model: Any) -> int:
    configs = getattr(model, "peft_config", None) or {}
    return max((int(getattr(config, "r", 0) or 0) for config in configs.values()), default=0)
