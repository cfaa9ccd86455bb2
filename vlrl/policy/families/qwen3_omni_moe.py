"""Qwen3-Omni's thinker: a mixture of experts with Qwen3-VL's tower (DeepStack) and an audio tower of its own,
whose embeddings are 13 per second.

Source: Qwen3-Omni technical report, arXiv:2509.17765; transformers 5.19, models/qwen3_omni_moe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.costs import DECODER_QK_NORM, SavedTensors
from vlrl.policy.encoded import MediaEmbeds
from vlrl.policy.families.qwen2_5_omni import Omni, omni_template
from vlrl.policy.families.qwen3_vl import QWEN3_TOWER
from vlrl.policy.families.vision import Units
from vlrl.policy.tiny import Tiny
from vlrl.services.lazy import Tensor, torch


@register("qwen3_omni_moe")
@dataclass(frozen=True, kw_only=True)
class Qwen3OmniMoe(Omni):
    """Qwen3-Omni 30B-A3B (Instruct, Thinking, Captioner), its thinker alone. Coordinates are thousandths of
    width and height."""

    transformers_name: ClassVar[str] = "Qwen3OmniMoeThinker"
    auto_model: ClassVar[str] = "Qwen3OmniMoeThinkerForConditionalGeneration"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_omni_moe_thinker",)
    units: ClassVar[Units] = "per_mille"
    processor_class: ClassVar[str] = "Qwen3OmniMoeProcessor"
    audio_token: ClassVar[str] = "<|audio_pad|>"
    audio_padding: ClassVar[bool] = False
    prompt_only_tokens: ClassVar[tuple[str, ...]] = (
        "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|audio_start|>", "<|audio_end|>"
    )  # fmt: skip
    extra_tokens: ClassVar[Mapping[str, str]] = {
        "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "audio_token": "<|audio_pad|>",
        "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>",
        "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>",
    }  # fmt: skip
    template: ClassVar[str] = omni_template(
        *(f"<|{mark}_start|><|{kind}_pad|><|{mark}_end|>" for mark, kind in
          (("vision", "image"), ("vision", "video"), ("audio", "audio")))
    )  # fmt: skip
    config_tokens: ClassVar[Mapping[str, str]] = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "audio_token_id": "<|audio_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
        "audio_start_token_id": "<|audio_start|>",
        "audio_end_token_id": "<|audio_end|>",
    }
    saved_tensors: ClassVar[Mapping[str, SavedTensors]] = {
        "qwen3_omni_moe_text": DECODER_QK_NORM,
        "qwen3_omni_moe_vision_encoder": QWEN3_TOWER,
    }

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        rope = tiny.mrope() | {"mrope_interleaved": True}
        return {"rope_parameters": rope, "head_dim": tiny.hidden // tiny.heads, **tiny.mixture()}

    def tiny_vision(self, tiny: Tiny) -> Mapping[str, Any]:
        deep = list(range(tiny.vision_layers))[:2]
        return {**super().tiny_vision(tiny), "num_position_embeddings": 64, "deepstack_visual_indexes": deep}

    def tiny_fields(self, tiny: Tiny) -> Mapping[str, Any]:
        return {"audio_config": {**self.tiny_hearing(tiny), "downsample_hidden_size": tiny.vision_hidden}}

    def audio_embeds(self, frames: int) -> int:
        rest = frames % 100
        for _ in range(3):
            rest = (rest - 1) // 2 + 1
        return rest + frames // 100 * 13

    def windows(self, tower: Any, frames: int) -> dict[str, Tensor]:
        from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import get_audio_cu_seqlens

        chunk = 2 * tower.n_window
        chunks = torch.tensor([chunk] * (frames // chunk) + [frames % chunk] * (frames % chunk > 0))
        lengths = torch.tensor([frames])
        return {"cu_seqlens": get_audio_cu_seqlens(chunks, lengths, tower.n_window_infer, tower.n_window)}

    def deep_inputs(
        self, config: Any, ids_BL: Tensor, embeds: Sequence[MediaEmbeds], kinds: Sequence[str]
    ) -> dict[str, Any]:
        shown = [e.deep for e, kind in zip(embeds, kinds) if kind != "audio"]
        if not shown:
            return {}
        places_BL = (ids_BL == config.image_token_id) | (ids_BL == config.video_token_id)
        layers = [torch.cat(layer) for layer in zip(*shown)]
        return {"visual_pos_masks": places_BL, "deepstack_visual_embeds": layers}
