"""PEFT for RLVR: the twelve adapters that the study compares, behind one name.

Paper: Yin et al. 2025, arXiv:2512.23165; release: MikaStars39/PeRL at 9cd8ab4e,
modules/trl/perl/lora/adapter.py, milora.py and recipes/trl/openr1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.methods.core.trainable import LoRA
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import State, transient
from vlrl.services.lazy import Tensor, nn, torch

ADAPTERS: Mapping[str, Mapping[str, Any]] = {
    "lora": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "lora_plus": {},
    "lora_fa": {},
    "pissa": {"init_lora_weights": "pissa_niter_4", "alters_base": True},
    "milora": {"alters_base": True},
    "adalora": {"peft_config": "AdaLoraConfig"},
    "miss": {"peft_config": "MissConfig"},
    "vera": {"peft_config": "VeraConfig"},
    "ia3": {"peft_config": "IA3Config"},
    "layernorm": {"peft_config": "LNTuningConfig"},
}
COLLAPSES = ("pissa", "milora", "vera", "ia3", "layernorm")  # the study's findings 2 and 3


@dataclass
class PeftForRlvrState(State):
    """The settings of the phase: learning rate and number of steps."""

    lr: float = transient(1e-6)
    steps: int = transient(1)


@register("peft_for_rlvr")
@dataclass(frozen=True, kw_only=True)
class PeftForRlvr(LoRA):
    """One of the study's twelve adapters: h = W x + (alpha / r) B A x, or what `adapter` makes of it.

        lora, rslora (alpha / sqrt r), dora (columns' lengths apart), lora_plus (B learns `lr_ratio` times as
        fast), lora_fa (A stays fixed), pissa (A, B from the largest singular vectors of W), milora (from the
        smallest, alpha = r), adalora (P diag(s) Q), miss (r shared shards), vera (fixed random A, B; scales
        learned), ia3 (scales of activations), layernorm (the norms alone)

    Finding 1: structural variants (dora, adalora, miss) beat lora; 2: initialisation from singular vectors
    collapses; 3: very few parameters (vera, ia3, layernorm, rank 1) are too few. The run warns for those of 2
    and 3. Paper: arXiv:2512.23165; numbers as in the release's adapter.py (lr_ratio 2). Deviates: lora_fa
    takes AdamW steps on B, where PEFT's optimizer projects B's gradient. As in the release, adalora never
    prunes ranks: its budget is not updated. Edge: pissa and milora change the weights below the adapter, so
    runs with a reference policy refuse them.
    """

    state_class = PeftForRlvrState
    adapter: Literal[
        "lora",
        "rslora",
        "dora",
        "lora_plus",
        "lora_fa",
        "pissa",
        "milora",
        "adalora",
        "miss",
        "vera",
        "ia3",
        "layernorm",
    ] = "dora"
    lr_ratio: float = 2.0

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if self.dora or self.rank_stabilised:
            raise ConfigError(
                "trainable: 'peft_for_rlvr' is chosen by `adapter` alone; set adapter: dora or rslora, not "
                "dora or rank_stabilised"
            )
        if "alters_base" in ADAPTERS[self.adapter] and "ref_logp" in phase.aux_tensors:
            raise ConfigError(
                f"trainable: adapter {self.adapter!r} changes the weights below it, so the model without "
                "it is not the reference; drop the KL term, "
                "or use adapter: dora"
            )
        self.state.lr, self.state.steps = phase.settings.optimizer.lr, phase.settings.steps

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if self.adapter in COLLAPSES or (self.r == 1 and self.adapter not in ("ia3", "layernorm")):
            run.warn(
                f"trainable: the study finds that {self.adapter} with rank {self.r} learns little in RLVR "
                "(arXiv:2512.23165); dora learns most"
            )

    def options(self) -> dict[str, Any]:
        """The fields of PEFT's config."""
        options = dict(ADAPTERS[self.adapter])
        kind = options.get("peft_config", "LoraConfig")
        if kind == "LoraConfig":
            scale = self.r if self.adapter == "milora" else self.alpha  # milora.py: lora_alpha = rank
            options |= {"r": self.r, "lora_alpha": scale, "lora_dropout": self.dropout}
        elif kind == "AdaLoraConfig":
            options |= {
                "init_r": self.r,
                "lora_alpha": self.alpha,
                "lora_dropout": self.dropout,
                "total_step": self.state.steps,
                "tinit": 0,
                "tfinal": 0,
            }
        elif kind in ("MissConfig", "VeraConfig"):
            options |= {"r": self.r}
        return options

    def __call__(self, policy: Any) -> list[dict[str, Any]]:
        fresh = not policy.has_adapter
        policy.add_adapter(self.options(), self.parts, self.targets)
        if self.adapter == "milora" and fresh:
            for module in lora_layers(policy.model):
                start_from_smallest(module)
        if self.adapter == "lora_fa":
            for name, parameter in policy.model.named_parameters():
                if ".lora_A." in name:
                    parameter.requires_grad_(False)
        trained = [(name, p) for name, p in policy.model.named_parameters() if p.requires_grad]
        if not trained:
            raise ConfigError(
                f"trainable: the adapter has no trainable weights; targets={self.targets!r}, "
                f"parts={self.parts} match no layer"
            )
        if self.adapter != "lora_plus":
            return [{"params": [p for _, p in trained]}]
        fast = [p for name, p in trained if ".lora_B." in name]
        slow = [p for name, p in trained if ".lora_B." not in name]
        return [{"params": slow}, {"params": fast, "lr": self.lr_ratio * self.state.lr}]


def lora_layers(model: nn.Module) -> list[Any]:
    """The layers of a model that hold a LoRA adapter."""
    return [
        module
        for module in model.modules()
        if hasattr(module, "lora_A") and hasattr(module, "scaling") and hasattr(module, "base_layer")
    ]


def start_from_smallest(layer: Any) -> None:
    """MiLoRA: A and B from the r smallest singular values of W, which W loses: (alpha / r) B A + W' = W."""
    name = next(iter(layer.lora_A))
    weight: Tensor = layer.base_layer.weight
    a, b = layer.lora_A[name].weight, layer.lora_B[name].weight
    u, s, vh = torch.linalg.svd(weight.detach().float(), full_matrices=False)
    root = (s[-a.shape[0] :] / layer.scaling[name]).sqrt()
    with torch.no_grad():
        a[: len(root)] = (root[:, None] * vh[-a.shape[0] :]).to(a)
        b[:, : len(root)] = (u[:, -a.shape[0] :] * root).to(b)
        weight -= (layer.scaling[name] * (b @ a)).to(weight)
