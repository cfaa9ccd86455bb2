"""Trainables: which weights are trained.

full    all weights
lora    a low-rank adapter (LoRA, DoRA, QLoRA)
parts   some parts of the model, each with its own learning rate
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Trainable


@register("full")
@dataclass(frozen=True, kw_only=True)
class Full(Trainable):
    """Full fine-tuning: all weights are trained.

    vlrl original (the default of every trainer). Edge: vectors (norms, biases) have no weight decay, so there
    are two parameter groups, one with weight decay and one without.
    """

    def __call__(self, policy: Any) -> list[dict[str, Any]]:
        policy.model.requires_grad_(True)
        return decay_groups(policy.model.named_parameters())


def decay_groups(named: Any, **options: Any) -> list[dict[str, Any]]:
    """Trainable parameters as two groups: matrices, and vectors without weight decay. `options` (such as lr)
    go into both."""
    trained = [p for _, p in named if p.requires_grad]
    matrices, vectors = [p for p in trained if p.dim() > 1], [p for p in trained if p.dim() <= 1]
    groups = [{"params": matrices, **options}, {"params": vectors, "weight_decay": 0.0, **options}]
    return [group for group in groups if group["params"]]


@register("lora")
@dataclass(frozen=True, kw_only=True)
class LoRA(Trainable):
    """LoRA: W x + (alpha / r) B A x, with A (r x in) and B (out x r) trained, B = 0 at first.

    Paper: LoRA, arXiv:2106.09685, eq. 3; DoRA (`dora`), arXiv:2402.09353, eq. 5; rank-stabilised scale alpha
    / sqrt(r), arXiv:2312.03732. QLoRA (arXiv:2305.14314): with `policy.quantize: nf4`. `parts` of the model
    get adapters, on linear layers whose names match `targets` ("": all but the output head); `experts` adds
    a pair for each expert. Edge: the reference policy is the model with the adapter off, so no copy is kept.
    A later phase continues with the adapter of the earlier one. Raises ValueError for a rank below 1, and for
    dropout or DoRA on experts.
    """

    r: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    dora: bool = False
    rank_stabilised: bool = False
    parts: tuple[Literal["language", "projector", "vision"], ...] = ("language",)
    targets: str = ""
    experts: bool = False

    def __post_init__(self) -> None:
        if self.r < 1 or not self.parts:
            raise ValueError(
                f"r must be at least 1 and parts must not be empty, got r={self.r}, parts={self.parts}"
            )
        if self.experts and (self.dropout or self.dora):
            raise ValueError(
                f"experts=True works with dropout=0 and dora=False alone, got dropout={self.dropout}, "
                f"dora={self.dora}: an expert's adapter is added to its weights"
            )

    def __call__(self, policy: Any) -> list[dict[str, Any]]:
        options = {
            "r": self.r,
            "lora_alpha": self.alpha,
            "lora_dropout": self.dropout,
            "use_dora": self.dora,
            "use_rslora": self.rank_stabilised,
            "experts": self.experts,
        }
        policy.add_adapter(options, self.parts, self.targets)
        trained = [p for p in policy.model.parameters() if p.requires_grad]
        if not trained:
            raise ConfigError(
                f"trainable: the adapter has no trainable weights; targets={self.targets!r}, "
                f"parts={self.parts} match no linear layer"
            )
        return [{"params": trained}]


Part = Literal["vision", "projector", "language"]


@register("parts")
@dataclass(frozen=True, kw_only=True)
class Parts(Trainable):
    """Frozen parts and learning rates by part: theta_k <- theta_k - lr_k * update for the parts k that are
    not frozen.

    vlrl original (freezing the vision tower is common practice: arXiv:2503.07536, arXiv:2504.07615). `freeze`
    names parts; `lr` gives a part its own learning rate; `frozen` and `lr_of` do the same by regular
    expressions on parameter names (the first match counts, and names beat parts). Edge: parts that a model
    does not have are ignored; weights shared by two modules belong to the first.
    """

    freeze: tuple[Part, ...] = ()
    lr: Mapping[Part, float] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    lr_of: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pattern in (*self.frozen, *self.lr_of):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(
                    f"trainable: {pattern!r} in `frozen` or `lr_of` is not a regular expression: {error}"
                ) from None

    def __call__(self, policy: Any) -> list[dict[str, Any]]:
        by_lr: dict[float | None, list[tuple[str, Any]]] = {}
        for name, parameter in policy.model.named_parameters():
            part = policy.part_of(name)
            parameter.requires_grad_(
                part not in self.freeze and not any(re.search(pattern, name) for pattern in self.frozen)
            )
            lr = next(
                (lr for pattern, lr in self.lr_of.items() if re.search(pattern, name)), self.lr.get(part)
            )
            by_lr.setdefault(lr, []).append((name, parameter))
        return [
            group
            for lr, named in by_lr.items()
            for group in decay_groups(named, **({} if lr is None else {"lr": lr}))
        ]
