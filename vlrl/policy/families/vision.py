"""What families with a vision tower share: loading, processing one medium, one pass of the tower over the distinct media of a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from vlrl.policy.encoded import Features, Seen
from vlrl.policy.family import Family, base, quantization
from vlrl.types import CoordinateSpace, Media


@dataclass(frozen=True, kw_only=True)
class VisionFamily(Family):
    """A model that `AutoModelForImageTextToText` loads, with a processor that writes the placeholders out."""

    units: ClassVar[Literal["seen", "original", "unit", "per_mille"]] = "seen"
    image_token: ClassVar[str] = ""  # what the chat template writes for a picture
    video_token: ClassVar[str] = ""
    slot_token: ClassVar[str] = ""  # what the placeholder becomes, once per vision embedding; "" means the placeholder itself
    special: ClassVar[tuple[str, ...]] = ()  # further tokens that only a prompt may hold
    inputs: ClassVar[dict[str, tuple[str, ...]]] = {"image": ("pixel_values",)}  # what the tower reads, by kind
    place_inputs: ClassVar[tuple[str, ...]] = ()  # what `positions` reads besides

    def load(self) -> tuple[Any, Any]:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        options = {"revision": self.revision}
        kernel = {"dtype": self.stored, "attn_implementation": self.kernel, **quantization(self)}
        model = AutoModelForImageTextToText.from_pretrained(self.model, **kernel, **options)
        return model, AutoProcessor.from_pretrained(self.model, **options)

    def make(self, model_class: Any, config: Any) -> Any:
        """A model with random weights."""
        return model_class._from_config(config, attn_implementation=self.kernel)

    def bound(self, processor: Any) -> None:
        """Put the pixel bounds into the processor, so that a saved folder keeps them."""
        for name, low, high in (("image_processor", self.min_pixels, self.max_pixels), ("video_processor", self.min_pixels, self.video_max_pixels)):
            part = getattr(processor, name, None)
            if part is not None and (low is not None or high is not None):
                size = dict(part.size)
                part.size = type(part.size)(**(size | {k: v for k, v in (("shortest_edge", low), ("longest_edge", high)) if v is not None}))

    def placeholders(self, processor: Any) -> dict[str, str]:
        return {kind: token for kind, token in (("image", self.image_token), ("video", self.video_token)) if token}

    def slot(self, kind: str) -> str:
        """The token that one vision embedding of a medium that the model takes for `kind` replaces."""
        return self.slot_token or (self.image_token if kind == "image" else self.video_token)

    def forbidden(self, processor: Any) -> set[int]:
        vocabulary = processor.tokenizer.get_vocab()
        return {vocabulary[token] for token in {self.image_token, self.video_token, self.slot_token, *self.special} if token in vocabulary}

    def process(self, processor: Any, medium: Media, alone: bool = True) -> Features:
        return self.picture(processor, medium, alone) if medium.kind == "image" else self.video(processor, medium)

    def picture(self, processor: Any, medium: Media, alone: bool) -> Features:
        """One picture through the processor; `alone` says that its prompt shows no other."""
        image = medium.load().convert("RGB")  # type: ignore[union-attr]
        out = processor(text=[self.image_token], images=self.batched([image]), add_special_tokens=False, return_tensors="pt")
        return self.features(processor, medium, out, image.size)

    def video(self, processor: Any, medium: Media) -> Features:
        """One video through the processor: the frames as they are decoded, none left out."""
        from transformers.video_utils import VideoMetadata

        clip = medium.load()
        frames_TCHW = torch.from_numpy(clip.frames_THWC).permute(0, 3, 1, 2)  # type: ignore[union-attr]
        count, _, height, width = frames_TCHW.shape
        places = list(range(count))
        metadata = VideoMetadata(total_num_frames=count, fps=clip.fps, width=width, height=height, frames_indices=places)  # type: ignore[union-attr]
        frames = {"videos": self.batched([frames_TCHW]), "video_metadata": [metadata], "do_sample_frames": False}
        out = processor(text=[self.video_token], **frames, add_special_tokens=False, return_tensors="pt")
        return self.features(processor, medium, out, (width, height))

    def features(self, processor: Any, medium: Media, out: Any, original: tuple[int, int]) -> Features:
        """The processor's answer, as `Features`."""
        ids, kind = out["input_ids"][0].tolist(), self.model_kind(medium)
        tensors = {name: torch.as_tensor(value) for name, value in out.items() if name in self.inputs[kind] or name in self.place_inputs}
        space = CoordinateSpace(original, self.seen_size(processor, tensors, kind, original), self.units)
        slots = ids.count(processor.tokenizer.convert_tokens_to_ids(self.slot(kind)))
        return Features(medium.key, kind, processor.tokenizer.decode(ids), tensors, space, slots)

    def model_kind(self, medium: Media) -> str:
        """What the model takes a medium for: some read a video as pictures."""
        return medium.kind

    @abstractmethod
    def seen_size(self, processor: Any, tensors: dict[str, Tensor], kind: str, original: tuple[int, int]) -> tuple[int, int]:
        """(width, height) of a medium after the resize."""

    def look(self, model: nn.Module, features: Sequence[Features]) -> list[Seen]:
        core, device = base(model).model, next(model.parameters()).device
        out: dict[int, Seen] = {}
        alike: dict[tuple, list[int]] = {}
        for i, f in enumerate(features):  # one pass of the tower for all media whose tensors can stand in one batch
            alike.setdefault((f.kind, *(f.tensors[name].shape[1:] for name in self.inputs[f.kind])), []).append(i)
        for (kind, *_), places in alike.items():
            batch = {name: torch.cat([features[i].tensors[name] for i in places]).to(device) for name in self.inputs[kind]}
            method = core.get_image_features if kind == "image" else core.get_video_features
            output = method(**batch, **self.tower_options(kind, len(places)), return_dict=True)
            counts = [features[i].slots for i in places]
            embeds, deep = (
                joined(output.pooler_output).split(counts),
                [joined(layer).split(counts) for layer in getattr(output, "deepstack_features", ())],
            )
            out.update((i, Seen(embeds[k], tuple(layer[k] for layer in deep))) for k, i in enumerate(places))
        return [out[i] for i in range(len(features))]

    def tower_options(self, kind: str, count: int) -> dict[str, Any]:
        """Further arguments of the tower for `count` media."""
        return {}


def joined(output: Any) -> Tensor:
    """A tower's output, a tensor or a sequence of them, as (all embeddings, H)."""
    parts = [output] if isinstance(output, Tensor) else output
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
