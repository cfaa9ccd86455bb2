"""What families with a vision tower share: loading, processing one medium, one pass of the tower over the distinct media of a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from vlrl.policy.encoded import Features, Seen
from vlrl.policy.family import DTYPES, Family, base
from vlrl.types import Media, Space

INDEX = {"image": 1, "video": 2}


@dataclass(frozen=True, kw_only=True)
class VisionFamily(Family):
    """A model that `AutoModelForImageTextToText` loads, with a processor that writes the placeholders out."""

    units: ClassVar[Literal["seen", "original", "unit", "per_mille"]] = "seen"
    image_token: ClassVar[str] = ""
    video_token: ClassVar[str] = ""
    special: ClassVar[tuple[str, ...]] = ()  # tokens that only a prompt may hold

    def load(self) -> tuple[Any, Any]:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        options = {"revision": self.revision}
        model = AutoModelForImageTextToText.from_pretrained(self.model, dtype=DTYPES[self.dtype], attn_implementation=self.kernel, **options)
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

    def forbidden(self, processor: Any) -> set[int]:
        vocabulary = processor.tokenizer.get_vocab()
        return {vocabulary[token] for token in {self.image_token, self.video_token, *self.special} if token in vocabulary}

    def types(self, processor: Any, features: Features) -> list[int]:
        token = self.image_token if features.kind == "image" else self.video_token
        pad = processor.tokenizer.convert_tokens_to_ids(token)
        return [INDEX[features.kind] * (i == pad) for i in features.ids]

    def process(self, processor: Any, medium: Media) -> Features:
        return self.picture(processor, medium) if medium.kind == "image" else self.video(processor, medium)

    def picture(self, processor: Any, medium: Media) -> Features:
        """One picture through the processor."""
        image = medium.load().convert("RGB")  # type: ignore[union-attr]
        out = processor(text=[self.image_token], images=self.batch_of_images([image]), add_special_tokens=False, return_tensors="pt")
        return self.features(processor, medium, out, image.size)

    def video(self, processor: Any, medium: Media) -> Features:
        """One video through the processor: the frames as they are decoded, none left out."""
        from transformers.video_utils import VideoMetadata

        clip = medium.load()
        frames_TCHW = torch.from_numpy(clip.frames_THWC).permute(0, 3, 1, 2)  # type: ignore[union-attr]
        count, _, height, width = frames_TCHW.shape
        metadata = VideoMetadata(total_num_frames=count, fps=clip.fps, width=width, height=height, frames_indices=list(range(count)))  # type: ignore[union-attr]
        out = processor(text=[self.video_token], videos=[frames_TCHW], video_metadata=[metadata], do_sample_frames=False, add_special_tokens=False,
                        return_tensors="pt")  # fmt: skip
        return self.features(processor, medium, out, (width, height))

    def features(self, processor: Any, medium: Media, out: Any, original: tuple[int, int]) -> Features:
        """The processor's answer, as `Features`."""
        ids = out["input_ids"][0].tolist()
        text = {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"}
        tensors = {name: torch.as_tensor(value) for name, value in out.items() if name not in text}
        return Features(medium.key, medium.kind, ids, tensors, Space(original, self.seen_size(processor, tensors, medium.kind), self.units))

    @abstractmethod
    def seen_size(self, processor: Any, tensors: dict[str, Tensor], kind: str) -> tuple[int, int]:
        """(width, height) of a medium after the resize."""

    def look(self, model: nn.Module, features: Sequence[Features]) -> list[Seen]:
        core, device = base(model).model, next(model.parameters()).device
        out: dict[int, Seen] = {}
        for kind in ("image", "video"):
            places = [i for i, f in enumerate(features) if f.kind == kind]
            if places:
                names = features[places[0]].tensors
                batch = {name: torch.cat([features[i].tensors[name] for i in places]).to(device) for name in names if name != "second_per_grid_ts"}
                method = core.get_image_features if kind == "image" else core.get_video_features
                out.update(zip(places, self.split(method(**batch, return_dict=True), [features[i] for i in places])))
        return [out[i] for i in range(len(features))]

    def split(self, output: Any, features: Sequence[Features]) -> list[Seen]:
        """The tower's output, medium by medium."""
        return [Seen(embeds_NH) for embeds_NH in output.pooler_output]
