"""A tool that shows an enlarged part of a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vlrl.environments.tools import Tool, ToolEnvironment, ToolEpisode
from vlrl.plugins.episodes import PICTURE_REPLIES, Action, Observation
from vlrl.plugins.registry import register
from vlrl.plugins.tool_calls import STOP, call_text, last_tagged, numbers, written
from vlrl.types import Media, Row

MAX_ASPECT = 100  # longer side of a crop over the shorter one; Qwen's processors refuse 200


@dataclass(frozen=True)
class Crop(Media):
    """The part `box` (x1, y1, x2, y2 in the source's pixels) of a picture, scaled so that its shorter side is
    at least `side` pixels."""

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
class Zoom(ToolEnvironment):
    """DeepEyes' crop tool: answers {"name": "zoom", "arguments": {"box": [x1, y1, x2, y2], "image": 0}} with
    that part of the picture, enlarged.

    Paper: Zheng et al. 2025 (DeepEyes), arXiv:2505.14362, sec. 3.1 (the model calls a crop tool on its own
    input). Deviates: the call is Qwen's <tool_call> JSON, or tags. Edge: a call that cannot be parsed,
    another tool, a picture that does not exist or an empty box gets an error message; a turn without a call
    ends the conversation. The expert (rollout `expert_turns`) asks for `row.meta["box"]`, in original pixels
    of the first picture, then writes the row's `target`. Units: the box is in the policy's own units
    (`Action.spaces`), clipped to the picture. `image` counts all pictures shown so far.

    Attributes:
        form: "tags": a call is <zoom>[x1, y1, x2, y2]</zoom>, of the first picture. A tiny random model
            learns that and not the JSON, in which 50 tokens lie between the picture and the box.
        min_side: Smallest side of a box, in original pixels.
        side: Shorter side of the crop that is shown, in original pixels.
    """

    min_side: int = 8
    side: int = 224
    form: Literal["tool_call", "tags"] = "tool_call"
    stops: ClassVar[tuple[str, ...]] = ("</zoom>", STOP)
    provides = (PICTURE_REPLIES,)

    def toolbox(self) -> Sequence[Tool]:
        return [Tool.of(ZoomEpisode(self).zoom)]

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return super().tools() if self.form == "tool_call" else ()

    def episode(self) -> ToolEpisode:
        return ZoomEpisode(self)


class ZoomEpisode(ToolEpisode):
    """Crops of the pictures that were shown so far."""

    def __init__(self, settings: Zoom) -> None:
        self.settings = settings
        self.row: Row | None = None
        super().__init__([Tool.of(self.zoom)])

    def reset(self, row: Row, seed: int) -> Observation:
        self.row = row
        return Observation()

    def step(self, action: Action) -> Observation:
        if self.settings.form == "tool_call":
            return super().step(action)
        self.action, written_box = action, last_tagged(action.text, "zoom")
        if written_box is None:
            return self.finished()
        try:
            return self.called("zoom", {"box": json.loads(written_box)})
        except (ValueError, RecursionError):  # of a text that is not JSON, or nested too deeply
            return self.refused("Error: write [x1, y1, x2, y2] between <zoom> and </zoom>.")

    def expert(self, view: Action) -> str | None:
        if self.row is None or not self.row.meta.get("box") or not self.row.target:
            return None
        if view.turn > 1:
            return self.row.target
        box = written(self.row.meta["box"], view.spaces[0])
        return (
            call_text("zoom", box=box)
            if self.settings.form == "tool_call"
            else f"<zoom>{json.dumps(box)}</zoom>"
        )

    @property
    def stateless(self) -> bool:
        return True

    def zoom(self, box: list, image: int = 0) -> Observation:
        """Shows an enlarged part of a picture. box: [x1, y1, x2, y2] in pixels of the picture; image: number
        of the picture, from 0."""
        pictures, place = len(self.action.images), numbers(box, 4)
        if not 0 <= image < pictures:
            raise ValueError(f"image must be between 0 and {pictures - 1}")
        if place is None:
            raise ValueError("box must be four numbers, [x1, y1, x2, y2]")
        return Observation("This is the part you asked for.", (self._crop(image, place),), role="tool")

    def _crop(self, index: int, box: Sequence[float]) -> Crop:
        """The crop. Raises ValueError for a box that is too small or too narrow."""
        space = self.action.spaces[index]
        x1, y1, x2, y2 = space.to_original(box)
        width, height = space.original
        left, top = max(0, int(min(x1, x2))), max(0, int(min(y1, y2)))
        right, bottom = min(width, round(max(x1, x2))), min(height, round(max(y1, y2)))
        sides, least = sorted((right - left, bottom - top)), self.settings.min_side
        if sides[0] < least or sides[1] > MAX_ASPECT * sides[0]:
            raise ValueError(
                f"the box must be at least {least} pixels wide and high, and at most {MAX_ASPECT} times as "
                "long as wide"
            )
        return Crop(self.action.images[index], (left, top, right, bottom), self.settings.side)
