"""GLM-4.1V, 4.5V and 4.6V: M-RoPE, time stamps as text between video frames, one token for pictures and
frames.

Source: GLM-4.1V-Thinking and GLM-4.5V, arXiv:2507.01006 (boxes in thousandths, sec. 2.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.encoded import MediaEmbeds
from vlrl.policy.families.qwen2_5_vl import QwenVL
from vlrl.policy.families.vision import Units
from vlrl.policy.tiny import Tiny, media_template
from vlrl.services.lazy import Tensor, nn

MARKS = {f"{kind}_{end}": f"<|{end}_of_{kind}|>" for kind in ("image", "video") for end in ("begin", "end")}


@contextmanager
def of_one_frame(part: Any) -> Iterator[None]:
    """Inside, a processor's bounds are those of one frame; GLM's count all of them, two for a picture."""
    kind, frames = type(part.size), part.temporal_patch_size

    def scaled(factor: float) -> Any:
        return kind(**{edge: int(pixels * factor) for edge, pixels in dict(part.size).items() if pixels})

    part.size = scaled(1 / frames)
    try:
        yield
    finally:
        part.size = scaled(frames)


@register("glm4v")
@dataclass(frozen=True, kw_only=True)
class Glm4V(QwenVL):
    """GLM-4.1V (9B). Coordinates are thousandths of width and height."""

    transformers_name: ClassVar[str] = "Glm4v"
    processor_class: ClassVar[str] = "Glm4vProcessor"
    image_class: ClassVar[str] = "Glm4vImageProcessor"
    video_class: ClassVar[str] = "Glm4vVideoProcessor"
    units: ClassVar[Units] = "per_mille"
    image_token: ClassVar[str] = "<|image|>"
    video_token: ClassVar[str] = "<|video|>"
    embed_token: ClassVar[str] = "<|image|>"
    prompt_only_tokens: ClassVar[tuple[str, ...]] = tuple(MARKS.values())
    position_inputs: ClassVar[tuple[str, ...]] = ()
    template: ClassVar[str] = media_template(
        "<|begin_of_image|><|image|><|end_of_image|>", "<|begin_of_video|><|video|><|end_of_video|>"
    )
    extra_tokens: ClassVar[Mapping[str, str]] = {
        "image_token": "<|image|>",
        "video_token": "<|video|>",
        **MARKS,
    }
    config_tokens: ClassVar[Mapping[str, str]] = {
        "image_token_id": "<|image|>",
        "video_token_id": "<|video|>",
        "image_start_token_id": "<|begin_of_image|>",
        "image_end_token_id": "<|end_of_image|>",
        "video_start_token_id": "<|begin_of_video|>",
        "video_end_token_id": "<|end_of_video|>",
    }

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        return {"rope_parameters": tiny.mrope() | {"partial_rotary_factor": 1.0}}

    def limit_image(self, part: Any, config: Any) -> None:
        with of_one_frame(part):
            super().limit_image(part, config)

    def limit_frame(self, part: Any) -> None:
        with of_one_frame(part):
            super().limit_frame(part)

    def hidden(
        self,
        model: nn.Module,
        ids_BL: Tensor,
        positions: Tensor,
        mask: Any = None,
        embeds: Sequence[MediaEmbeds] = (),
        kinds: Sequence[str] = (),
        **kwargs: Any,
    ) -> tuple[Tensor, Any]:
        kinds = ["image"] * len(kinds)  # of frames too: the model tells places by the token alone
        return super().hidden(model, ids_BL, positions, mask, embeds, kinds, **kwargs)


@register("glm4v_moe")
@dataclass(frozen=True, kw_only=True)
class Glm4VMoe(Glm4V):
    """GLM-4.5V and 4.6V (106B-A12B): a mixture of experts behind a first dense layer."""

    transformers_name: ClassVar[str] = "Glm4vMoe"
    vllm_problem: ClassVar[str] = "log-probs of text in vLLM 0.32 differ by up to 9 nats on a tiny model"

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        mixture = tiny.mixture()
        return {
            **super().tiny_text(tiny),
            "n_routed_experts": mixture["num_experts"],
            "num_experts_per_tok": mixture["num_experts_per_tok"],
            "moe_intermediate_size": mixture["moe_intermediate_size"],
        }


@register("glm46v")
@dataclass(frozen=True, kw_only=True)
class Glm46V(Glm4V):
    """GLM-4.6V-Flash (9B)."""

    transformers_name: ClassVar[str] = "Glm46V"
    vllm_problem: ClassVar[str] = "vLLM 0.32 does not run its text model on a CPU, where it would be compared"
    processor_class: ClassVar[str] = "Glm46VProcessor"
    image_class: ClassVar[str] = "Glm46VImageProcessor"
    video_class: ClassVar[str] = "Glm46VVideoProcessor"
