"""Qwen3-VL with a mixture of experts in every language layer.

Source: Qwen3-VL technical report, arXiv:2511.21631.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.costs import DECODER_QK_NORM, SavedTensors
from vlrl.policy.families.qwen3_vl import QWEN3_TOWER, Qwen3VL
from vlrl.policy.tiny import Tiny


@register("qwen3_vl_moe")
@dataclass(frozen=True, kw_only=True)
class Qwen3VLMoe(Qwen3VL):
    """Qwen3-VL 30B-A3B and 235B-A22B. Coordinates are thousandths of width and height."""

    transformers_name: ClassVar[str] = "Qwen3VLMoe"
    saved_tensors: ClassVar[Mapping[str, SavedTensors]] = {
        "qwen3_vl_moe_text": DECODER_QK_NORM,
        "qwen3_vl_moe_vision": QWEN3_TOWER,
    }

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        return {**super().tiny_text(tiny), **tiny.mixture()}
