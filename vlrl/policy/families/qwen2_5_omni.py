"""Qwen2.5-Omni's thinker: pictures, videos and sounds in, text out; the talker that speaks is not loaded.

A sound is a log-mel spectrogram of 100 frames per second, four of which make one embedding.
Source: Qwen2.5-Omni technical report, arXiv:2503.20215; transformers 5.19, models/qwen2_5_omni.

Shape legend: T samples, F frames, M mel bins, N embeddings, B rows, L tokens, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.policy.encoded import Features, MediaEmbeds
from vlrl.policy.families.qwen2_5_vl import QwenVL
from vlrl.policy.families.sounds import process_sound
from vlrl.policy.families.vision import Units, with_media
from vlrl.policy.family import base
from vlrl.policy.tiny import TEMPLATE, Tiny
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import Clip, Media


def omni_template(image: str, video: str, audio: str) -> str:
    """`TEMPLATE` with these texts for a picture, a video and a sound."""
    sound = "{%- elif part.type == 'audio' -%}{{- '" + audio + "' -}}"
    text = TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", image)
    text = text.replace("<|vision_start|><|video_pad|><|vision_end|>", video)
    return text.replace("{%- else -%}{{- part.text -}}", sound + "{%- else -%}{{- part.text -}}")


@dataclass(frozen=True, kw_only=True)
class Omni(QwenVL):
    """The base of the thinkers: three kinds of media, merged into the token embeddings; M-RoPE in which a
    sound advances by one position per embedding, and a picture's or video's time by its seconds."""

    audio_token: ClassVar[str]
    audio_padding: ClassVar[bool]  # whether the release's processor puts zeros after a sound
    vllm_problem: ClassVar[str] = "vLLM 0.32 reads a thinker inside the whole Omni checkpoint alone"
    position_inputs: ClassVar[tuple[str, ...]] = ("video_second_per_grid",)

    def make_processor(self, tokenizer: Any, sizes: Mapping[str, int]) -> Any:
        import transformers

        parts = {"patch_size": sizes["patch"], "merge_size": sizes["merge"]}
        pixels = {"shortest_edge": sizes["min_pixels"], "longest_edge": sizes["max_pixels"]}
        video = {"size": {**pixels, "longest_edge": sizes.get("max_frame_pixels", sizes["max_pixels"])}}
        hearing = {"feature_size": sizes.get("mel", 128), "chunk_length": sizes.get("seconds", 300)}
        return getattr(transformers, self.processor_class)(
            image_processor=getattr(transformers, self.image_class)(**parts, size=pixels),
            video_processor=getattr(transformers, self.video_class)(
                **parts, **video, cap_pixels_per_frame=True
            ),
            feature_extractor=transformers.WhisperFeatureExtractor(**hearing, return_attention_mask=True),
            tokenizer=tokenizer,
            chat_template=tokenizer.chat_template,
        )

    def tiny_sizes(self, tiny: Tiny) -> Mapping[str, int]:
        return {**super().tiny_sizes(tiny), "mel": 32, "seconds": 30}

    def tiny_hearing(self, tiny: Tiny) -> dict[str, Any]:
        """The audio tower of a tiny model, with the sizes of its vision tower."""
        return {
            "num_mel_bins": self.tiny_sizes(tiny)["mel"],
            "d_model": tiny.vision_hidden,
            "encoder_layers": tiny.vision_layers,
            "encoder_attention_heads": tiny.vision_heads,
            "encoder_ffn_dim": 2 * tiny.vision_hidden,
            "output_dim": tiny.hidden,
            "initializer_range": tiny.std,
        }

    def count_tokens(self, processor: Any, config: Any, width: int, height: int) -> tuple[int, int]:
        part = processor.image_processor
        patches = part.get_number_of_image_patches(height, width, {})
        return patches // part.merge_size**2, patches

    # --- sounds ---------------------------------------------------------------------------------------------

    def video_options(self, clip: Clip) -> dict[str, Any]:
        return {"fps": clip.fps}

    def audio_embeds(self, frames: int) -> int:
        """The number of embeddings of a sound of `frames` frames."""
        return ((frames - 1) // 2 + 1 - 2) // 2 + 1

    def process_audio(self, processor: Any, medium: Media) -> Features:
        part = processor.feature_extractor
        return process_sound(part, medium, self.audio_token, self.audio_embeds, self.audio_padding)

    def encode_media(self, model: nn.Module, features: Sequence[Features]) -> list[MediaEmbeds]:
        """Each sound goes through its tower alone: beside a longer one, transformers' Qwen3-Omni convolves
        over other values behind its end."""
        shown = [f for f in features if f.kind != "audio"]
        heard = [f for f in features if f.kind == "audio"]
        seen = iter(super().encode_media(model, shown))
        if not heard:
            return list(seen)
        tower, device = base(model).audio_tower, next(model.parameters()).device

        def hear(feature: Features) -> MediaEmbeds:
            frames_FM = feature.tensors["input_features"].to(device)
            windows = {key: value.to(device) for key, value in self.windows(tower, len(frames_FM)).items()}
            lengths = torch.tensor([len(frames_FM)], device=device)
            return MediaEmbeds(tower(frames_FM.T, feature_lens=lengths, **windows).last_hidden_state)

        return [hear(f) if f.kind == "audio" else next(seen) for f in features]

    def windows(self, tower: Any, frames: int) -> dict[str, Tensor]:
        """What transformers would compute from the length of a sound with values read from the device."""
        return {}

    # --- forward --------------------------------------------------------------------------------------------

    def tower_owner(self, model: nn.Module) -> Any:
        return base(model)

    def positions(
        self, model: nn.Module, ids: list[int], types: list[int], features: Sequence[Features]
    ) -> tuple[Tensor, int]:
        options: dict[str, Tensor] = {}
        for kind in ("image", "video"):
            if grids := [f.tensors[f"{kind}_grid_thw"] for f in features if f.kind == kind]:
                options[f"{kind}_grid_thw"] = torch.cat(grids)
        name = self.position_inputs[0]
        if seconds := [f.tensors[name].flatten().float() for f in features if name in f.tensors]:
            options["second_per_grids"] = torch.cat(seconds)
        if heard := [len(f.tensors["input_features"]) for f in features if f.kind == "audio"]:
            options["audio_seqlens"] = torch.tensor(heard)
        ids_1L = torch.tensor([ids])
        positions, _ = base(model).get_rope_index(ids_1L, attention_mask=torch.ones_like(ids_1L), **options)
        return positions[:, 0].long(), int(positions.max()) + 1

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
        core = base(model)
        inputs_BLH = core.get_input_embeddings()(ids_BL)
        inputs_BLH = with_media(core.config, ids_BL, inputs_BLH, embeds, kinds)
        kwargs |= self.deep_inputs(core.config, ids_BL, embeds, kinds)
        kwargs.setdefault("use_cache", kwargs.get("past_key_values") is not None)
        out = core.model(inputs_embeds=inputs_BLH, position_ids=positions, attention_mask=mask, **kwargs)
        return out.last_hidden_state, out.past_key_values

    def deep_inputs(
        self, config: Any, ids_BL: Tensor, embeds: Sequence[MediaEmbeds], kinds: Sequence[str]
    ) -> dict[str, Any]:
        """What the language model takes of deeper layers of the vision tower."""
        return {}


@register("qwen2_5_omni")
@dataclass(frozen=True, kw_only=True)
class Qwen25Omni(Omni):
    """Qwen2.5-Omni (3B, 7B), its thinker alone. Coordinates are pixels of the resized image."""

    transformers_name: ClassVar[str] = "Qwen2_5OmniThinker"
    auto_model: ClassVar[str] = "Qwen2_5OmniThinkerForConditionalGeneration"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_5_omni_thinker",)
    units: ClassVar[Units] = "seen"
    processor_class: ClassVar[str] = "Qwen2_5OmniProcessor"
    image_token: ClassVar[str] = "<|IMAGE|>"
    video_token: ClassVar[str] = "<|VIDEO|>"
    audio_token: ClassVar[str] = "<|AUDIO|>"
    audio_padding: ClassVar[bool] = True
    prompt_only_tokens: ClassVar[tuple[str, ...]] = (
        "<|vision_bos|>", "<|vision_eos|>", "<|audio_bos|>", "<|audio_eos|>"
    )  # fmt: skip
    extra_tokens: ClassVar[Mapping[str, str]] = {
        "image_token": "<|IMAGE|>", "video_token": "<|VIDEO|>", "audio_token": "<|AUDIO|>",
        "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>",
        "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>",
    }  # fmt: skip
    template: ClassVar[str] = omni_template(
        *(f"<|{mark}_bos|><|{kind}|><|{mark}_eos|>" for mark, kind in
          (("vision", "IMAGE"), ("vision", "VIDEO"), ("audio", "AUDIO")))
    )  # fmt: skip
    config_tokens: ClassVar[Mapping[str, str]] = {
        "image_token_index": "<|IMAGE|>",
        "video_token_index": "<|VIDEO|>",
        "audio_token_index": "<|AUDIO|>",
        "vision_start_token_id": "<|vision_bos|>",
        "vision_end_token_id": "<|vision_eos|>",
        "audio_start_token_id": "<|audio_bos|>",
        "audio_end_token_id": "<|audio_eos|>",
    }

    def tiny_vision(self, tiny: Tiny) -> Mapping[str, Any]:
        last = [tiny.vision_layers - 1]
        return {**super().tiny_vision(tiny), "window_size": 8 * tiny.patch, "fullatt_block_indexes": last}

    def tiny_fields(self, tiny: Tiny) -> Mapping[str, Any]:
        return {"audio_config": self.tiny_hearing(tiny)}
