import numpy as np
import pytest
from PIL import Image

from vlrl.types import Clip, CoordinateSpace, Group, Media, Prompt, Rollout, Row


class Picture(Media):
    """A plain picture, or a video of some frames, made from a seed; counts how often it is decoded."""

    def __init__(self, seed: int = 0, size: tuple[int, int] = (96, 64), frames: int = 0):
        self.seed, self.size, self.frames, self.loads = seed, size, frames, 0
        self.kind = "video" if frames else "image"

    @property
    def key(self) -> str:
        return f"{self.kind}-{self.seed}-{self.size}"

    def load(self):
        self.loads += 1
        pixels = np.random.default_rng(self.seed).integers(
            0, 255, (max(self.frames, 1), self.size[1], self.size[0], 3), dtype=np.uint8
        )
        return Clip(pixels, 4.0) if self.frames else Image.fromarray(pixels[0])


@pytest.fixture
def picture():
    return Picture


@pytest.fixture
def make_group():
    def make(
        rewards=(1.0, 0.0),
        texts=None,
        answer="7",
        images=(),
        videos=(),
        task="digits",
        row_id="row-1",
        advantages=None,
        **rollout_fields,
    ):
        items = (
            [{"type": "image"} for _ in images]
            + [{"type": "video"} for _ in videos]
            + [{"type": "text", "text": "Which digit?"}]
        )
        row = Row(row_id, "Which digit?", answer, images=tuple(images), videos=tuple(videos), task=task)
        prompt = Prompt(
            row, ({"role": "user", "content": items},), tuple(images), tuple(videos), prefix="<think>"
        )
        spaces = tuple(
            CoordinateSpace(image.size, (image.size[0] // 2, image.size[1] // 2)) for image in images
        )
        mean = sum(rewards) / len(rewards)
        rollouts = [
            Rollout(
                prompt, [1, 2, 3], text=(texts or [f"<answer>{i}</answer>" for i in range(len(rewards))])[i],
                logp=[-0.1, -0.2, -0.3], reward=reward,
                rewards={"accuracy": reward, "format": 1.0}, advantage=reward - mean,
                advantages=list(advantages or [reward - mean] * 3), spaces=spaces,
                **rollout_fields,
            )
            for i, reward in enumerate(rewards)
        ]  # fmt: skip
        return Group(prompt, rollouts, id=f"group-{row_id}")

    return make
