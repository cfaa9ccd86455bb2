"""Qwen3.5: Qwen3-VL's pictures without DeepStack; three layers of linear attention (gated delta rule) before
each of gated full attention.

Source: transformers 5.19, models/qwen3_5; gated delta networks, arXiv:2412.06464; coordinates are thousandths
of width and height, as in Qwen3-VL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.costs import DECODER_QK_NORM, SavedTensors
from vlrl.policy.families.qwen3_vl import QWEN3_TOWER, Qwen3VL
from vlrl.policy.families.vision import VisionFamily
from vlrl.policy.recurrent import with_memory
from vlrl.policy.tiny import Tiny


@register("qwen3_5")
@dataclass(frozen=True, kw_only=True)
class Qwen35(Qwen3VL):
    """Qwen3.5 and 3.6 with pictures (dense). Coordinates are thousandths of width and height."""

    transformers_name: ClassVar[str] = "Qwen3_5"
    no_sequence_parallel: ClassVar[str] = "has linear attention, which needs the state of all earlier tokens"
    saved_tensors: ClassVar[Mapping[str, SavedTensors]] = {
        "qwen3_5_text": DECODER_QK_NORM,
        "qwen3_5_vision": QWEN3_TOWER,
    }

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        # rotary positions on all of a head, as the sections of `Tiny.mrope` take
        return {**super().tiny_text(tiny), **tiny.delta_rule(), "partial_rotary_factor": 1.0}

    def tiny_vision(self, tiny: Tiny) -> Mapping[str, Any]:
        vision = dict(super().tiny_vision(tiny))
        del vision["deepstack_visual_indexes"]
        return vision

    def random_model(self, model_class: Any, config: Any, **options: Any) -> Any:
        return with_memory(super().random_model(model_class, config, **options))

    encoder_outputs = VisionFamily.encoder_outputs  # no DeepStack


@register("qwen3_5_moe")
@dataclass(frozen=True, kw_only=True)
class Qwen35Moe(Qwen35):
    """Qwen3.5 with a mixture of experts and a shared expert in every layer (35B-A3B and larger)."""

    transformers_name: ClassVar[str] = "Qwen3_5Moe"
    saved_tensors: ClassVar[Mapping[str, SavedTensors]] = {
        "qwen3_5_moe_text": DECODER_QK_NORM,
        "qwen3_5_moe_vision": QWEN3_TOWER,
    }

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        shared = {"shared_expert_intermediate_size": tiny.intermediate // 2}
        return {**super().tiny_text(tiny), **tiny.mixture(), **shared}
