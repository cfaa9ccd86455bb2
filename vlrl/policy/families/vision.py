"""The base of families with a vision tower: loading, processing one medium, one pass of the tower over the
distinct media of a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vlrl.config.model_folder import located
from vlrl.policy.checkpoint_names import save_as_released
from vlrl.policy.encoded import Features, MediaEmbeds
from vlrl.policy.family import Family, base, quantization
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import Clip, CoordinateSpace, Media

Units = Literal["seen", "original", "unit", "per_mille"]  # of coordinates: see CoordinateSpace


@dataclass(frozen=True, kw_only=True)
class VisionFamily(Family):
    """A model that `AutoModelForImageTextToText` loads, with a processor that expands the placeholders."""

    units: ClassVar[Units] = "seen"
    image_token: ClassVar[str] = ""  # the chat template's placeholder for an image
    video_token: ClassVar[str] = ""
    embed_token: ClassVar[str] = (
        ""  # the token of the expanded placeholder, one per vision embedding; "" means the placeholder itself
    )
    prompt_only_tokens: ClassVar[tuple[str, ...]] = ()  # further tokens that may never be sampled
    tower_inputs: ClassVar[dict[str, tuple[str, ...]]] = {
        "image": ("pixel_values",)
    }  # the vision tower's input tensors, by kind
    position_inputs: ClassVar[tuple[str, ...]] = ()  # further tensors that `positions` reads

    def load(self) -> tuple[Any, Any]:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        options, folder = {"revision": self.revision}, located(self.model)
        precision = {
            "dtype": self.load_dtype,
            "attn_implementation": self.attn_implementation,
            **quantization(self),
        }
        model = AutoModelForImageTextToText.from_pretrained(folder, **precision, **options)
        return model, AutoProcessor.from_pretrained(folder, **options)

    def random_model(self, model_class: Any, config: Any) -> Any:
        """A model with random weights."""
        return save_as_released(
            model_class._from_config(config, attn_implementation=self.attn_implementation)
        )

    def apply_pixel_limits(self, processor: Any) -> None:
        """Set the pixel limits in the processor, so that a saved folder keeps them."""
        for name, low, high in (
            ("image_processor", self.min_pixels, self.max_pixels),
            ("video_processor", self.min_pixels, self.video_max_pixels),
        ):
            part = getattr(processor, name, None)
            if part is not None and (low is not None or high is not None):
                size = dict(part.size)
                part.size = type(part.size)(
                    **(
                        size
                        | {k: v for k, v in (("shortest_edge", low), ("longest_edge", high)) if v is not None}
                    )
                )

    def placeholders(self, processor: Any) -> dict[str, str]:
        return {
            kind: token for kind, token in (("image", self.image_token), ("video", self.video_token)) if token
        }

    def embed_token_of(self, kind: str) -> str:
        """The token that stands for one vision embedding of a medium of `kind`."""
        return self.embed_token or (self.image_token if kind == "image" else self.video_token)

    def forbidden_ids(self, processor: Any) -> set[int]:
        vocabulary = processor.tokenizer.get_vocab()
        tokens = {self.image_token, self.video_token, self.embed_token, *self.prompt_only_tokens}
        return {vocabulary[token] for token in tokens if token in vocabulary}

    def process(self, processor: Any, medium: Media, single_image: bool = True) -> Features:
        return (
            self.process_image(processor, medium, single_image)
            if medium.kind == "image"
            else self.process_video(processor, medium)
        )

    def process_image(self, processor: Any, medium: Media, single_image: bool) -> Features:
        """One image through the processor. `single_image`: its prompt shows no other image."""
        image = decoded_image(medium)
        out = processor(
            text=[self.image_token],
            images=self.processor_batch([image]),
            add_special_tokens=False,
            return_tensors="pt",
        )
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
        }
        out = processor(text=[self.video_token], **frames, add_special_tokens=False, return_tensors="pt")
        return self.to_features(processor, medium, out, (width, height))

    def to_features(self, processor: Any, medium: Media, out: Any, original: tuple[int, int]) -> Features:
        """The processor's output as `Features`; `original` is (width, height) before the resize."""
        ids, kind = out["input_ids"][0].tolist(), self.model_kind(medium)
        names = {*self.tower_inputs[kind], *self.position_inputs}
        tensors = {name: torch.as_tensor(value) for name, value in out.items() if name in names}
        space = CoordinateSpace(original, self.resized_size(processor, tensors, kind, original), self.units)
        num_embeds = ids.count(processor.tokenizer.convert_tokens_to_ids(self.embed_token_of(kind)))
        return Features(medium.key, kind, processor.tokenizer.decode(ids), tensors, space, num_embeds)

    def model_kind(self, medium: Media) -> str:
        """The kind that the model treats a medium as: some models treat a video as images."""
        return medium.kind

    @abstractmethod
    def resized_size(
        self, processor: Any, tensors: dict[str, Tensor], kind: str, original: tuple[int, int]
    ) -> tuple[int, int]:
        """(width, height) of a medium after the resize."""

    def encode_media(self, model: nn.Module, features: Sequence[Features]) -> list[MediaEmbeds]:
        core, device = base(model).model, next(model.parameters()).device
        out: dict[int, MediaEmbeds] = {}
        batches: dict[tuple, list[int]] = {}
        for i, f in enumerate(
            features
        ):  # media whose tensors have equal shapes go through the tower together
            batches.setdefault(
                (f.kind, *(f.tensors[name].shape[1:] for name in self.tower_inputs[f.kind])), []
            ).append(i)
        for (kind, *_), places in batches.items():
            batch = {
                name: torch.cat([features[i].tensors[name] for i in places]).to(device)
                for name in self.tower_inputs[kind]
            }
            method = core.get_image_features if kind == "image" else core.get_video_features
            output = method(**batch, **self.tower_options(kind, len(places)), return_dict=True)
            counts = [features[i].num_embeds for i in places]
            embeds = flat_embeds(output.pooler_output).split(counts)
            deep = [flat_embeds(layer).split(counts) for layer in getattr(output, "deepstack_features", ())]
            out.update(
                (i, MediaEmbeds(embeds[k], tuple(layer[k] for layer in deep))) for k, i in enumerate(places)
            )
        return [out[i] for i in range(len(features))]

    def tower_options(self, kind: str, count: int) -> dict[str, Any]:
        """Further arguments of the vision tower for `count` media."""
        return {}


def decoded_image(medium: Media) -> Any:
    """A medium's decoded image, in RGB."""
    image = medium.load()
    assert not isinstance(image, Clip), f"{medium.key}: expected an image, got a video"
    return image.convert("RGB")


def flat_embeds(output: Any) -> Tensor:
    """A tower's output, one tensor or a sequence of them, as (all embeddings, H)."""
    parts = [output] if isinstance(output, Tensor) else output
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
