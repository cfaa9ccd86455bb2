"""Images, videos and groups for the policy tests, and the plain per-sample forward that serves as
reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.video_utils import VideoMetadata

from vlrl.plugins.registry import build
from vlrl.policy import Family, Policy
from vlrl.policy.families.sounds import resampled
from vlrl.policy.family import base
from vlrl.types import Clip, Group, Media, Prompt, Rollout, Row, Sound


@dataclass(frozen=True)
class Noise(Media):
    """An image of random pixels."""

    seed: int
    size: tuple[int, int] = (90, 60)
    kind = "image"

    @property
    def key(self) -> str:
        return f"noise-{self.seed}-{self.size}"

    def load(self) -> Any:
        width, height = self.size
        return Image.fromarray(
            np.random.default_rng(self.seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
        )


@dataclass(frozen=True)
class Flicker(Media):
    """A video of random pixels."""

    seed: int
    # with 2 per second and 3 x 2 patches: time ends before width does, and transformers' positions are right
    frames: int = 4
    size: tuple[int, int] = (84, 56)
    kind = "video"

    @property
    def key(self) -> str:
        return f"flicker-{self.seed}-{self.frames}-{self.size}"

    def load(self) -> Clip:
        width, height = self.size
        return Clip(
            np.random.default_rng(self.seed).integers(
                0, 255, (self.frames, height, width, 3), dtype=np.uint8
            ),
            2.0,
        )


@dataclass(frozen=True)
class Hiss(Media):
    """A sound of random samples, at a rate that no tower has."""

    seed: int
    seconds: float = 0.5
    rate: int = 12000
    kind = "audio"

    @property
    def key(self) -> str:
        return f"hiss-{self.seed}-{self.seconds}-{self.rate}"

    def load(self) -> Sound:
        samples = np.random.default_rng(self.seed).uniform(-0.5, 0.5, round(self.seconds * self.rate))
        return Sound(samples.astype(np.float32), self.rate)


def policy_of(name: str, layout: str = "packed", **fields: Any) -> Policy:
    """A tiny random policy; equal names give equal weights."""
    return Policy(build(Family, {"name": name, "tiny": {}, "layout": layout} | fields))


def ask(
    text: str,
    images: tuple[Media, ...] = (),
    videos: tuple[Media, ...] = (),
    prefix: str = "",
    audios: tuple[Media, ...] = (),
) -> Prompt:
    content = (
        [{"type": "image"} for _ in images]
        + [{"type": "video"} for _ in videos]
        + [{"type": "audio"} for _ in audios]
        + [{"type": "text", "text": text}]
    )
    messages = ({"role": "user", "content": content},)
    return Prompt(Row(text, text), messages, images, videos, prefix, audios=audios)


PROMPTS = {
    "text": ask("Which digit is it?", prefix="<think>"),
    "image": ask("How many?", (Noise(1),)),
    "images": ask("Compare them.", (Noise(1), Noise(2, (112, 112)), Noise(3, (60, 150)))),
    "video": ask("Which way?", videos=(Flicker(3),)),
    "audio": ask("What is said?", audios=(Hiss(4),)),
    "all": ask("Do they fit?", (Noise(1),), (Flicker(3),), audios=(Hiss(5, 2.3),)),
}


def groups_of(
    prompts: list[Prompt], counts: tuple[int, ...] = (3, 1, 4, 2), longest: int = 8, seed: int = 0
) -> list[Group]:
    """Ragged groups of random completions (byte tokens), every second one with a hole in its loss mask."""
    rng = np.random.default_rng(seed)
    groups = []
    for prompt, count in zip(prompts, counts):
        rollouts = []
        for k in range(count):
            ids = rng.integers(0, 200, rng.integers(1, longest + 1)).tolist()
            mask = [not (k % 2 and t == 1) for t in range(len(ids))]
            rollouts.append(Rollout(prompt, ids, loss_mask=mask, temperature=1.0 if k else 0.7))
        groups.append(Group(prompt, rollouts))
    return groups


def processed(policy: Policy, prompt: Prompt) -> dict[str, Any]:
    """The model's own processor's output for the whole prompt at once."""
    media: dict[str, Any] = {}
    if prompt.images:
        media["images"] = policy.family.processor_batch(
            [image.load().convert("RGB") for image in prompt.images]
        )
    if prompt.videos:
        clips = [video.load() for video in prompt.videos]
        media["videos"] = policy.family.processor_batch(
            [torch.from_numpy(clip.frames_THWC).permute(0, 3, 1, 2) for clip in clips]
        )
        media["video_metadata"] = [
            VideoMetadata(total_num_frames=len(c), fps=c.fps, frames_indices=list(range(len(c))))
            for c in clips
        ]
        media["do_sample_frames"] = False
        media |= policy.family.video_options(clips[0])
    if prompt.audios:
        rate = policy.processor.feature_extractor.sampling_rate
        media["audio"] = [resampled(sound.load(), rate) for sound in prompt.audios]
    inputs = dict(
        policy.processor(text=[policy.render(prompt)], add_special_tokens=False, return_tensors="pt", **media)
    )
    return {
        name: value
        for name, value in inputs.items()
        if policy.family.is_multimodal or "token_type" not in name
    }


def given(policy: Policy, inputs: dict[str, Any]) -> dict[str, Any]:
    """What the model's forward takes of the processor's output. The frames of Gemma 4's videos are encoded
    here: transformers 5.19 does not tell its tower how many a video has."""
    known = {k: v for k, v in inputs.items() if isinstance(v, Tensor) or k == "second_per_grid_ts"}
    if "num_frames_per_video" in known:
        names = ("pixel_values_videos", "video_position_ids", "num_frames_per_video")
        video = {name: known.pop(name) for name in names}
        output = base(policy.model).model.get_video_features(**video, return_dict=True)
        known["mm_encoder_outputs"] = {"video": output}
    return known


def plain_logp(policy: Policy, rollout: Rollout) -> Tensor:
    """Log-probs of one rollout by the model's own forward: no packing, no caches, no custom mask. Forbidden
    ids are taken out of the softmax."""
    inputs = processed(policy, rollout.prompt)
    completion = torch.tensor([rollout.ids])
    inputs["input_ids"] = torch.cat([inputs["input_ids"], completion], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in inputs:
            inputs[name] = torch.cat([inputs[name], torch.zeros_like(completion)], 1)
    logits = (
        policy.model(**given(policy, inputs)).logits[0, -completion.shape[1] - 1 : -1].float()
        / rollout.temperature
    )
    logits[:, list(policy.forbidden_ids)] = float("-inf")
    return logits.log_softmax(-1).gather(-1, completion[0][:, None])[:, 0]
