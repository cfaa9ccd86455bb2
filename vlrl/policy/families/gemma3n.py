"""Gemma 3n: pictures of one size through MobileNet-V5 (timm), sounds of up to 30 s through a conformer. Four
streams of hidden states (AltUp), token embeddings in every layer, later layers that read the keys of earlier
ones.

Source: transformers 5.19, models/gemma3n; the release's conversion there, convert_gemma3n_weights.py.

Shape legend: B rows, L tokens, H hidden size, F frames, M mel bins, N embeddings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar

from vlrl.config.model_folder import located
from vlrl.plugins.registry import ConfigError, register
from vlrl.policy.costs import PictureCost, SavedTensors
from vlrl.policy.encoded import Features, MediaEmbeds
from vlrl.policy.families.qwen2_5_omni import omni_template
from vlrl.policy.families.sounds import heard_samples, too_short
from vlrl.policy.families.vision import Units, VisionFamily, with_media
from vlrl.policy.family import base
from vlrl.policy.tiny import Tiny, qwen_tokenizer
from vlrl.policy.tower import keep_tower_arguments, tower_arguments
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.services.third_party import pip_install
from vlrl.types import Media

FRAMES_PER_EMBEDDING = 16
LONGEST = 480_000  # samples that the release's feature extractor takes
WIDTH = 2048  # of the tower's output, in timm's encoder of any size


@register("gemma3n")
@dataclass(frozen=True, kw_only=True)
class Gemma3n(VisionFamily):
    """Gemma 3n E2B and E4B: pictures, sounds, no video. Needs timm. The model defines no coordinate
    convention: thousandths are assumed."""

    transformers_name: ClassVar[str] = "Gemma3n"
    no_sequence_parallel: ClassVar[str] = "has layers that read the keys of earlier ones"
    units: ClassVar[Units] = "per_mille"
    image_token: ClassVar[str] = "<image_soft_token>"
    audio_token: ClassVar[str] = "<audio_soft_token>"
    projects_sounds: ClassVar[bool] = True
    fills_with_eos: ClassVar[bool] = True  # AltUp takes roots of squares, which have no derivative at 0
    prompt_only_tokens: ClassVar[tuple[str, ...]] = (
        "<start_of_image>", "<end_of_image>", "<start_of_audio>", "<end_of_audio>"
    )  # fmt: skip
    tower_inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "image": ("pixel_values",),
        "audio": ("input_features", "input_features_mask"),
    }
    template: ClassVar[str] = omni_template(
        "<image_soft_token>", "<|vision_start|><|video_pad|><|vision_end|>", "<audio_soft_token>"
    )
    # in the order of the release's ids: those of pictures and of sounds end the vocabulary
    extra_tokens: ClassVar[Mapping[str, str]] = {
        "boi_token": "<start_of_image>",
        "boa_token": "<start_of_audio>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
        "eoa_token": "<end_of_audio>",
        "audio_token": "<audio_soft_token>",
    }
    config_tokens: ClassVar[Mapping[str, str]] = {
        name.replace("_token", "_token_id"): token for name, token in extra_tokens.items()
    }

    saved_tensors: ClassVar[Mapping[str, SavedTensors]] = {
        "gemma3n_text": SavedTensors(
            hidden=34, hidden_float=28, hidden_cast=14, inner=4, statistics=8, qk_norm=8, streams=4
        )
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if find_spec("timm") is None:
            raise ConfigError(
                f"policy: {self.name!r} needs timm for its vision tower: {pip_install('timm')}, or use "
                "gemma4, which has a tower of its own"
            )

    # --- building -------------------------------------------------------------------------------------------

    def make_processor(self, tokenizer: Any, sizes: Mapping[str, int]) -> Any:
        import transformers

        side = {"height": sizes["side"], "width": sizes["side"]}
        return transformers.Gemma3nProcessor(
            transformers.Gemma3nAudioFeatureExtractor(feature_size=sizes.get("mel", 128)),
            transformers.SiglipImageProcessor(size=side, do_normalize=False, resample=2),
            tokenizer,
            chat_template=self.template,
            audio_seq_length=sizes["sounds"],
            image_seq_length=sizes["tokens"],
        )

    def tiny_sizes(self, tiny: Tiny) -> Mapping[str, int]:
        return {"side": 4 * tiny.patch, "tokens": 4, "sounds": 16, "mel": 32}

    def tiny_tokenizer(self, tiny: Tiny) -> Any:
        tokenizer = qwen_tokenizer(tiny.vocabulary, template=self.template)
        named = dict(self.extra_tokens)
        tokenizer.add_special_tokens(
            {"additional_special_tokens": list(named.values())}, replace_extra_special_tokens=False
        )
        tokenizer._set_model_specific_special_tokens(special_tokens=named)
        return tokenizer

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        size, sharing = tiny.hidden // tiny.heads, tiny.layers - 2
        return {
            "head_dim": size,
            "sliding_window": 8,
            "layer_types": ["full_attention" if i % 2 else "sliding_attention" for i in range(tiny.layers)],
            "num_kv_shared_layers": max(0, sharing),
            "activation_sparsity_pattern": [0.5 if i == 0 else 0.0 for i in range(tiny.layers)],
            "hidden_size_per_layer_input": size,
            "vocab_size_per_layer_input": self._offsets(tiny)[0],
            "laurel_rank": 8,
        }

    def _offsets(self, tiny: Tiny) -> tuple[int, int, int]:
        """The first token of pictures and of sounds in a tiny model's vocabulary, and its end."""
        tokenizer = self.tiny_tokenizer(tiny)
        first, second = tokenizer.convert_tokens_to_ids(["<end_of_image>", "<end_of_audio>"])
        return first, second, tiny.text(tokenizer)["vocab_size"]

    def tiny_vision(self, tiny: Tiny) -> Mapping[str, Any]:
        """A tower with a block of each of the release's kinds, and `vision_layers` of its last."""
        from timm.models._efficientnet_builder import decode_arch_def

        pictures, sounds, _ = self._offsets(tiny)
        wide, heads = tiny.vision_hidden // 2, tiny.vision_heads
        last = f"mqa_r1_k3_h{heads}_s1_d16_c{wide}", f"uir_r1_a0_k0_s1_e2_c{wide}"
        stages = [
            ["er_r1_k3_s2_e4_c16"],
            ["uir_r1_a3_k5_s2_e2_c16"],
            [f"uir_r1_a5_k5_s2_e2_c{wide}", f"mqa_r1_k3_h{heads}_v2_s1_d16_c{wide}", last[1]],
            [f"uir_r1_a5_k5_s2_e2_c{wide}", *last * tiny.vision_layers],
        ]
        blocks = json.loads(json.dumps(decode_arch_def(stages)))
        return {
            "model_args": {"block_args": blocks, "stem_size": 16, "msfa_output_resolution": 2},
            "hidden_size": WIDTH,
            "vocab_offset": pictures,
            "vocab_size": sounds - pictures,
        }

    def tiny_fields(self, tiny: Tiny) -> Mapping[str, Any]:
        sizes, (_, sounds, end) = self.tiny_sizes(tiny), self._offsets(tiny)
        hearing = {
            "hidden_size": tiny.vision_hidden,
            "input_feat_size": sizes["mel"],
            "conf_num_attention_heads": tiny.vision_heads,
            "conf_num_hidden_layers": tiny.vision_layers,
            "sscp_conv_channel_size": (8, 4),
            "vocab_offset": sounds,
            "vocab_size": end - sounds,
        }
        return {
            "audio_config": hearing,
            "audio_soft_tokens_per_image": sizes["sounds"],
            "vision_soft_tokens_per_image": sizes["tokens"],
            "initializer_range": tiny.std,
        }

    def load(self) -> tuple[Any, Any]:
        from transformers import PreTrainedConfig

        model, processor = super().load()
        held = PreTrainedConfig.get_config_dict(located(self.model), revision=self.revision)[0]
        keep_tower_arguments(model, held["vision_config"].get("model_args"))
        return model, processor

    def random_model(self, model_class: Any, config: Any, **options: Any) -> Any:
        arguments = tower_arguments(config)
        model = super().random_model(model_class, config, **options)
        keep_tower_arguments(model, arguments)
        for name, parameter in model.named_parameters():
            if name.endswith("correct_output_scale"):  # zeros would cut off the embeddings of layers
                parameter.data.normal_(1, 0.1)
        return model

    # --- pictures and sounds --------------------------------------------------------------------------------

    def limit_image(self, part: Any, config: Any) -> None:
        self.keep_one_size(part.size["height"])

    def processor_batch(self, media: list[Any]) -> list[Any]:
        return [media]

    def picture_cost(self, processor: Any, config: Any, width: int, height: int) -> PictureCost:
        vision, side = config.vision_config, processor.image_processor.size["height"]
        arguments = json.dumps(vision.model_args or {})
        return PictureCost(processor.image_seq_length, **tower_cost(vision.architecture, arguments, side))

    def process_audio(self, processor: Any, medium: Media) -> Features:
        """One sound through the processor: all its frames, and as many tokens as for any other sound."""
        part, count = processor.feature_extractor, processor.audio_seq_length
        most = min(LONGEST, count * FRAMES_PER_EMBEDDING * part.hop_length)
        samples_T = heard_samples(medium, part.sampling_rate, most)
        if len(samples_T) <= part.frame_length:
            raise too_short(medium)
        options = {"add_special_tokens": False, "return_tensors": "pt"}
        out = processor(text=[self.audio_token], audio=[samples_T], **options)
        tensors = {name: out[name][0] for name in self.tower_inputs["audio"]}
        text = processor.tokenizer.decode(out["input_ids"][0].tolist())
        return Features(medium.key, "audio", text, tensors, None, count)

    def encode_media(self, model: nn.Module, features: Sequence[Features]) -> list[MediaEmbeds]:
        """Each sound goes through its tower alone, as if its prompt held no longer one."""
        seen = iter(super().encode_media(model, [f for f in features if f.kind == "image"]))
        return [self._hear(model, f) if f.kind == "audio" else next(seen) for f in features]

    def _hear(self, model: nn.Module, feature: Features) -> MediaEmbeds:
        """The embeddings of a sound, followed by those of the last token of sounds up to the number that each
        sound has."""
        core, device = self.tower_owner(model), next(model.parameters()).device
        frames_1FM, heard_1F = (x[None].to(device) for x in feature.tensors.values())
        out = core.get_audio_features(frames_1FM, ~heard_1F, return_dict=True)
        last = torch.tensor([[core.vocab_size - 1]], device=device)
        rest_1NH = core.embed_audio(input_ids=last)
        heard_NH = torch.where(out.audio_mel_mask[..., None], rest_1NH, out.pooler_output)[0]
        rest_NH = rest_1NH[0].expand(feature.num_embeds - len(heard_NH), -1)
        return MediaEmbeds(torch.cat([heard_NH, rest_NH]))

    # --- forward --------------------------------------------------------------------------------------------

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
        core = base(model).model
        text, sizes = core.language_model, core.config.get_text_config()
        inputs_BLH = text.embed_tokens(ids_BL)
        in_layers = text.get_per_layer_inputs(
            ids_BL.where(ids_BL < sizes.vocab_size_per_layer_input, torch.zeros_like(ids_BL))
        )
        first, second = core.embed_vision.vocab_offset, core.embed_audio.vocab_offset
        for part, own_BL in (
            (core.embed_vision, (ids_BL >= first) & (ids_BL < second)),
            (core.embed_audio, ids_BL >= second),
        ):  # the marks around pictures and sounds have embeddings of their own
            marks_BLH = part(input_ids=ids_BL.where(own_BL, torch.full_like(ids_BL, part.vocab_offset)))
            inputs_BLH = torch.where(own_BL[..., None], marks_BLH.to(inputs_BLH.dtype), inputs_BLH)
        inputs_BLH = with_media(core.config, ids_BL, inputs_BLH, embeds, kinds)
        kwargs.setdefault("use_cache", kwargs.get("past_key_values") is not None)
        out = text(
            inputs_embeds=inputs_BLH, per_layer_inputs=in_layers, position_ids=positions,
            attention_mask=mask, **kwargs,
        )  # fmt: skip
        return out.last_hidden_state, out.past_key_values


@cache
def tower_cost(architecture: str, arguments: str, side: int) -> dict[str, Any]:
    """`flops`, `saved` and `saved_inputs` of `PictureCost` for timm's tower, counted on the meta device.
    `arguments` are JSON, `side` is in pixels."""
    import timm
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        tower: Any = timm.create_model(architecture, num_classes=0, **json.loads(arguments))
        pixels = torch.empty(1, 3, side, side)
    weights = {p.untyped_storage()._cdata for p in tower.parameters()}
    saved = []
    for recomputed in (False, True):
        tower.set_grad_checkpointing(recomputed)
        kept: dict[int, Tensor] = {}

        def keep(x: Tensor, kept: dict[int, Tensor] = kept) -> Tensor:
            kept[x.untyped_storage()._cdata] = x
            return x

        with (
            FlopCounterMode(display=False) as counter,
            torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x),
        ):
            tower.forward_features(pixels)
        saved.append(sum(x.numel() for place, x in kept.items() if place not in weights))
    return {"flops": float(counter.get_total_flops()), "saved": saved[0], "saved_inputs": saved[1]}
