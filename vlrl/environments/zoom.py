"""A tool that shows an enlarged part of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vlrl.environments.tool_calls import STOP, last_call, numbers
from vlrl.methods.common.conversation import PICTURE_REPLIES, TURN_TEXT
from vlrl.registry import register
from vlrl.stages import Environment
from vlrl.types import Media, Message, Rollout

MAX_ASPECT = 100  # longer side of a crop over the shorter one; Qwen's processors refuse 200


@dataclass(frozen=True)
class Crop(Media):
    """The part `box` (x1, y1, x2, y2 in the source's pixels) of a picture, scaled so that its shorter side is at least `side` pixels."""

    source: Media
    box: tuple[int, int, int, int]
    side: int = 224
    kind: Literal["image", "video"] = "image"

    @property
    def key(self) -> str:
        return f"crop/{self.side}/{self.box}/{self.source.key}"

    def load(self) -> Any:
        image: Any = self.source.load()
        part = image.convert("RGB").crop(self.box)
        scale = max(1.0, self.side / min(part.size))
        return part.resize((round(part.width * scale), round(part.height * scale))) if scale > 1 else part


@register("zoom")
@dataclass(frozen=True)
class Zoom(Environment):
    """DeepEyes' crop tool: answers {"name": "zoom", "arguments": {"box": [x1, y1, x2, y2], "image": 0}} with that part of the picture, enlarged.

    Paper: Zheng et al. 2025 (DeepEyes), arXiv:2505.14362, sec. 3.1 (the model calls a crop tool on its own input). Deviates: the call is Qwen's
    <tool_call> JSON. Edge: a call that cannot be parsed, another tool's name, a picture that does not exist or an empty box gets an error message,
    not an exception; a turn without a call ends the conversation. Units: the box is in the policy's own units (`rollout.spaces`), clipped to the
    picture; `min_side` is the smallest side of a box and `side` the shorter side of the crop that is shown, in original pixels.
    """

    stops: ClassVar[tuple[str, ...]] = (STOP,)
    min_side: int = 8
    side: int = 224
    provides = (PICTURE_REPLIES,)
    requires = (TURN_TEXT,)

    def reply(self, rollout: Rollout) -> Sequence[Message] | None:
        call = last_call(TURN_TEXT[rollout])
        if call is None:
            return None
        error = call if isinstance(call, str) else self._problem(call, rollout)
        if error:
            return [{"role": "user", "content": [{"type": "text", "text": error}]}]
        assert not isinstance(call, str)
        index = call[1].get("image", 0)
        crop = self._crop(rollout, index, numbers(call[1]["box"], 4) or [])
        if crop is None:
            return [{"role": "user", "content": [{"type": "text", "text": self._too_small()}]}]
        return [{"role": "user", "content": [{"type": "image", "media": crop}, {"type": "text", "text": "This is the part you asked for."}]}]

    def _too_small(self) -> str:
        return f"Error: the box must be at least {self.min_side} pixels wide and high, and at most {MAX_ASPECT} times as long as wide."

    def _problem(self, call: tuple[str, dict[str, Any]], rollout: Rollout) -> str:
        """An error message for the model; empty for a valid call."""
        name, arguments = call
        pictures, index = len(rollout.prompt.images), arguments.get("image", 0)
        if name != "zoom":
            return f"Error: there is no tool {name[:40]!r}; the tool is zoom."
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < pictures:
            return f"Error: image must be between 0 and {pictures - 1}."
        return "" if numbers(arguments.get("box"), 4) else "Error: box must be four numbers, [x1, y1, x2, y2]."

    def _crop(self, rollout: Rollout, index: int, box: Sequence[float]) -> Crop | None:
        """The crop; None for a box that is too small or too narrow."""
        space = rollout.spaces[index]
        x1, y1, x2, y2 = space.to_original(box)
        width, height = space.original
        left, top = max(0, int(min(x1, x2))), max(0, int(min(y1, y2)))
        right, bottom = min(width, round(max(x1, x2))), min(height, round(max(y1, y2)))
        sides = sorted((right - left, bottom - top))
        if sides[0] < self.min_side or sides[1] > MAX_ASPECT * sides[0]:
            return None
        return Crop(rollout.prompt.images[index], (left, top, right, bottom), self.side)
