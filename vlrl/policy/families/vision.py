"""The base of families with a vision tower: loading, processing one medium, pixel bounds, one pass of the
tower over the distinct media of a batch.

Shape legend: T frames, C channels, H x W pixels; N vision embeddings of a medium.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn

from vlrl.plugins.registry import ConfigError
from vlrl.policy.checkpoint_names import save_as_released
from vlrl.policy.costs import PictureCost
from vlrl.policy.encoded import Features, MediaEmbeds
from vlrl.policy.family import Family, base, pooled_output
from vlrl.policy.tiny import TEMPLATE, Tiny, qwen_tokenizer
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import Clip, CoordinateSpace, Media, Sound

Units = Literal["seen", "original", "unit", "per_mille"]  # of coordinates: see CoordinateSpace


@dataclass(frozen=True, kw_only=True)
class VisionFamily(Family):
    """A model that `AutoModelForImageTextToText` loads, with a processor that expands the placeholders.

    A subclass names its classes, tokens and units, makes the processor, gives the sizes of a tiny model, and
    overrides what its processor and tower do otherwise than tiles of one size: pixel bounds, cost of a
    picture, form of the embeddings. tests/policy/test_family_contract.py holds every family to it.
    """

    auto_model: ClassVar[str] = "AutoModelForImageTextToText"
    auto_processor: ClassVar[str] = "AutoProcessor"
    transformers_name: ClassVar[str] = ""  # "X" of XConfig and XForConditionalGeneration
    units: ClassVar[Units] = "seen"
    image_token: ClassVar[str] = ""  # the chat template's placeholder for an image
    video_token: ClassVar[str] = ""
    audio_token: ClassVar[str] = ""
    # the token of the expanded placeholder, one per vision embedding; "" means the placeholder itself
    embed_token: ClassVar[str] = ""
    prompt_only_tokens: ClassVar[tuple[str, ...]] = ()  # further tokens that may never be sampled
    # the vision tower's input tensors, by kind
    tower_inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {"image": ("pixel_values",)}
    position_inputs: ClassVar[tuple[str, ...]] = ()  # further tensors that `positions` reads
    frames_are_images: ClassVar[bool] = False  # the model treats a video as images
    # whether the model's forward takes the embeddings of its media one by one, or joined
    embeds_joined: ClassVar[bool] = False
    template: ClassVar[str] = TEMPLATE  # of the chat of a tiny model
    extra_tokens: ClassVar[Mapping[str, str]] = {}  # further ones of a tiny model's tokenizer, by attribute
    config_tokens: ClassVar[Mapping[str, str]] = {}  # fields of the model's config: the tokens they number

    # --- building -------------------------------------------------------------------------------------------

    @abstractmethod
    def make_processor(self, tokenizer: Any, sizes: Mapping[str, int]) -> Any:
        """The processor with this tokenizer. `sizes` are those of a release (`pictures` in
        vlrl/plan/releases.yaml) or of a tiny model."""

    def tiny_sizes(self, tiny: Tiny) -> Mapping[str, int]:
        """The `sizes` of a tiny model's processor; here, of tiles of 4 x 4 patches with 4 embeddings."""
        return {"side": 4 * tiny.patch, "tokens": 4, "max_tiles": 4}

    def tiny_text(self, tiny: Tiny) -> Mapping[str, Any]:
        """What the text config has beside or in place of `Tiny.text`."""
        return {}

    def tiny_vision(self, tiny: Tiny) -> Mapping[str, Any]:
        """The vision config; here, SigLIP's with tiles of 4 x 4 patches."""
        return tiny.tower() | {"image_size": 4 * tiny.patch}

    def tiny_fields(self, tiny: Tiny) -> Mapping[str, Any]:
        """Further fields of the model's config."""
        return {}

    def tiny_tokenizer(self, tiny: Tiny) -> Any:
        """The tokenizer of a tiny model."""
        special: dict[str, Any] = (
            {"extra_special_tokens": dict(self.extra_tokens)} if self.extra_tokens else {}
        )
        return qwen_tokenizer(tiny.vocabulary, template=self.template, **special)

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        import transformers

        tokenizer = self.tiny_tokenizer(tiny)
        processor = self.make_processor(tokenizer, self.tiny_sizes(tiny))
        ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in self.config_tokens.items()}
        config = getattr(transformers, f"{self.transformers_name}Config")(
            text_config={**tiny.text(tokenizer), **self.tiny_text(tiny)},
            vision_config=dict(self.tiny_vision(tiny)),
            tie_word_embeddings=tiny.tie,
            **ids,
            **self.tiny_fields(tiny),
        )
        model_class = getattr(transformers, f"{self.transformers_name}ForConditionalGeneration")
        return self.random_model(model_class, config), processor

    def random_model(self, model_class: Any, config: Any, **options: Any) -> Any:
        """A model with random weights, saved under the names of released checkpoints. `options` are those of
        `_from_config`."""
        options = {"attn_implementation": self.attn_implementation, **options}
        return save_as_released(model_class._from_config(config, **options))

    # --- pixel bounds ---------------------------------------------------------------------------------------

    def limit_pixels(self, processor: Any, config: Any) -> None:
        self.limit_image(processor.image_processor, config)
        if self.video_token:
            self.limit_frame(processor.video_processor)
        elif self.video_max_pixels is not None:
            self.refuse_pixels("video_max_pixels", f"{self.name!r} reads no videos; leave it out")

    @abstractmethod
    def limit_image(self, part: Any, config: Any) -> None:
        """Set `min_pixels` and `max_pixels` in an image processor, and in the model's config where it repeats
        the processor's settings."""

    def limit_frame(self, part: Any) -> None:
        """Set `video_max_pixels` in a video processor; here, of frames of one size."""
        pixels = self.frame_side(part) ** 2
        if self.video_max_pixels is not None and self.video_max_pixels < pixels:
            self.refuse_pixels(
                "video_max_pixels",
                f"{self.name!r} shows its tower frames of {pixels} pixels; give at least {pixels}, or leave "
                "it out",
            )

    def frame_side(self, part: Any) -> int:
        """Side of a video frame in pixels."""
        return part.size["height"]

    def tile_bounds(self, side: int, fewest: int = 1) -> tuple[int, int]:
        """The smallest and the largest number of tiles of `side` x `side` pixels that the bounds allow.
        Raises ConfigError below `fewest`, which the tower is shown at least."""
        least = math.ceil((self.min_pixels or 0) / side**2)
        most = math.inf if self.max_pixels is None else self.max_pixels // side**2
        if most < fewest:
            pixels = fewest * side**2
            what = f"{fewest} tiles" if fewest > 1 else "one tile"
            self.refuse_pixels(
                "max_pixels",
                f"{self.name!r} shows its tower at least {what} of {side} x {side} pixels; give at least "
                f"{pixels}, or leave it out",
            )
        return least, int(min(most, 1 << 30))

    def keep_one_size(self, side: int) -> None:
        """Check the bounds of a family whose tower sees pictures of `side` x `side` pixels alone."""
        if self.tile_bounds(side)[0] > 1:
            self.refuse_pixels("min_pixels", f"{self.name!r} shows its tower {side} x {side} pixels")

    def refuse_pixels(self, field: str, reason: str) -> NoReturn:
        """Raise ConfigError for a bound that the processor cannot keep."""
        raise ConfigError(f"policy.{field}: {getattr(self, field)} cannot be kept: {reason}")

    def pixels_seen(self, processor: Any, features: Features) -> int:
        """Pixels of a picture that the vision tower is given, all tiles together."""
        return features.tensors["pixel_values"].numel() // 3

    def picture_cost(self, processor: Any, config: Any, width: int, height: int) -> PictureCost:
        tokens, tiles = self.count_tokens(processor, config, width, height)
        vision = config.vision_config
        side, patch = (x[0] if isinstance(x, list) else x for x in (vision.image_size, vision.patch_size))
        patches = (side // patch) ** 2
        return PictureCost(tokens, tiles * patches, patches)

    def count_tokens(self, processor: Any, config: Any, width: int, height: int) -> tuple[int, int]:
        """(tokens in the prompt, tiles or patches) of a picture, by transformers' own count."""
        found = processor._get_num_multimodal_tokens(image_sizes=[(height, width)])
        return found.num_image_tokens[0], found.num_image_patches[0]

    # --- prompts --------------------------------------------------------------------------------------------

    def placeholders(self, processor: Any) -> dict[str, str]:
        named = {"image": self.image_token, "video": self.video_token, "audio": self.audio_token}
        return {kind: token for kind, token in named.items() if token}

    def embed_token_of(self, kind: str) -> str:
        if kind == "audio":
            return self.audio_token
        return self.embed_token or (self.image_token if kind == "image" else self.video_token)

    def forbidden_ids(self, processor: Any) -> set[int]:
        vocabulary = processor.tokenizer.get_vocab()
        tokens = {
            self.image_token,
            self.video_token,
            self.audio_token,
            self.embed_token,
            *self.prompt_only_tokens,
        }
        return {vocabulary[token] for token in tokens if token in vocabulary}

    def process(self, processor: Any, medium: Media, single_image: bool = True) -> Features:
        if medium.kind == "image":
            return self.process_image(processor, medium, single_image)
        if medium.kind == "audio":
            return self.process_audio(processor, medium)
        return self.process_video(processor, medium)

    def process_audio(self, processor: Any, medium: Media) -> Features:
        """One sound through the feature extractor. Raises ConfigError where the family hears none."""
        raise ConfigError(
            f"policy: {self.name!r} hears no audio; use qwen2_5_omni, qwen3_omni_moe or gemma3n, or rows "
            "without audio"
        )

    def process_image(self, processor: Any, medium: Media, single_image: bool) -> Features:
        """One image through the processor. `single_image`: its prompt shows no other image."""
        image = decoded_image(medium)
        images = self.processor_batch([image])
        out = processor(text=[self.image_token], images=images, add_special_tokens=False, return_tensors="pt")
        return self.to_features(processor, medium, out, image.size)

    def process_video(self, processor: Any, medium: Media) -> Features:
        """One video through the processor: all decoded frames, without frame sampling."""
        from transformers.video_utils import VideoMetadata

        clip = medium.load()
        assert isinstance(clip, Clip), f"{medium.key}: expected a decoded video, got {type(clip).__name__}"
        frames_TCHW = torch.from_numpy(clip.frames_THWC).permute(0, 3, 1, 2)
        count, _, height, width = frames_TCHW.shape
        metadata = VideoMetadata(
            total_num_frames=count,
            fps=clip.fps,
            width=width,
            height=height,
            frames_indices=list(range(count)),
        )
        frames = {
            "videos": self.processor_batch([frames_TCHW]),
            "video_metadata": [metadata],
            "do_sample_frames": False,
            **self.video_options(clip),
        }
        out = processor(text=[self.video_token], **frames, add_special_tokens=False, return_tensors="pt")
        return self.to_features(processor, medium, out, (width, height))

    def video_options(self, clip: Clip) -> dict[str, Any]:
        """Further arguments of the processor for a video."""
        return {}

    def to_features(self, processor: Any, medium: Media, out: Any, original: tuple[int, int]) -> Features:
        """The processor's output as `Features`; `original` is (width, height) before the resize."""
        ids, kind = out["input_ids"][0].tolist(), "image" if self.frames_are_images else medium.kind
        names = {*self.tower_inputs[kind], *self.position_inputs}
        tensors = {name: torch.as_tensor(value) for name, value in out.items() if name in names}
        space = CoordinateSpace(original, self.resized_size(processor, tensors, kind, original), self.units)
        num_embeds = ids.count(processor.tokenizer.convert_tokens_to_ids(self.embed_token_of(kind)))
        return Features(medium.key, kind, processor.tokenizer.decode(ids), tensors, space, num_embeds)

    def resized_size(
        self, processor: Any, tensors: Mapping[str, Tensor], kind: str, original: tuple[int, int]
    ) -> tuple[int, int]:
        """(width, height) of a medium after the resize, where coordinates are pixels of it; `original` where
        they are shares of width and height, which no resize changes."""
        return original

    # --- forward --------------------------------------------------------------------------------------------

    def tower_owner(self, model: nn.Module) -> Any:
        """The module with `get_image_features` and `get_video_features`."""
        return base(model).model

    def encoder_outputs(self, model: nn.Module, kind: str, embeds: Sequence[MediaEmbeds]) -> Any:
        parts = tuple(e.embeds_NH for e in embeds)
        return pooled_output(torch.cat(parts) if self.embeds_joined else parts)

    def encode_media(self, model: nn.Module, features: Sequence[Features]) -> list[MediaEmbeds]:
        core, device = self.tower_owner(model), next(model.parameters()).device
        out: dict[int, MediaEmbeds] = {}
        batches: dict[tuple, list[int]] = {}
        for i, f in enumerate(
            features
        ):  # media whose tensors have equal shapes go through the tower together
            shapes = (f.tensors[name].shape[1:] for name in self.tower_inputs[f.kind])
            batches.setdefault((f.kind, *shapes), []).append(i)
        for (kind, *_), places in batches.items():
            batch = {
                name: torch.cat([features[i].tensors[name] for i in places]).to(device)
                for name in self.tower_inputs[kind]
            }
            method = core.get_image_features if kind == "image" else core.get_video_features
            output = method(**batch, return_dict=True)
            counts = [features[i].num_embeds for i in places]
            embeds = flat_embeds(output.pooler_output).split(counts)
            deep = [flat_embeds(layer).split(counts) for layer in getattr(output, "deepstack_features", ())]
            for k, i in enumerate(places):
                out[i] = MediaEmbeds(embeds[k], tuple(layer[k] for layer in deep))
        return [out[i] for i in range(len(features))]


def decoded_image(medium: Media) -> Any:
    """A medium's decoded image, in RGB."""
    image = medium.load()
    assert not isinstance(image, (Clip, Sound)), f"{medium.key}: expected an image, got a {medium.kind}"
    return image.convert("RGB")


def with_media(
    config: Any, ids_BL: Tensor, inputs_BLH: Tensor, embeds: Sequence[MediaEmbeds], kinds: Sequence[str]
) -> Tensor:
    """The inputs of the language model, with media's embeddings in the places of their tokens."""
    for kind in sorted(set(kinds)):
        found_NH = torch.cat([e.embeds_NH for e, k in zip(embeds, kinds) if k == kind])
        places_BL = ids_BL == getattr(config, f"{kind}_token_id")
        inputs_BLH = inputs_BLH.masked_scatter(places_BL[..., None], found_NH.to(inputs_BLH.dtype))
    return inputs_BLH


def flat_embeds(output: Any) -> Tensor:
    """A tower's output, one tensor or a sequence of them, as (all embeddings, H)."""
    parts = [output] if isinstance(output, Tensor) else output
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
