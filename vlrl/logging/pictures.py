"""Small encoded copies of pictures and videos for the log and the report."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

from PIL import Image

from vlrl.services.waveform import waveform
from vlrl.types import Clip, Media, Sound

MAX_SIDE = 768  # pixels; a rollout table is for looking at, the dataset keeps the original
LOSSLESS_PIXELS = 256 * 256
FRAMES = 4


def thumbnail(media: Media, max_side: int = MAX_SIDE) -> dict[str, Any]:
    """{"kind", "bytes", "width", "height", "times"}: PNG (small pictures) or JPEG; width and height are the
    ORIGINAL pixels of one frame.

    A video becomes a strip of up to four frames, first to last, side by side, with their `times` in seconds;
    a sound its waveform. Raises MediaError where the medium cannot be read.
    """
    loaded = media.load()
    times: list[float] = []
    if isinstance(loaded, Sound):
        picture = waveform(loaded.samples_T)
        width, height = picture.size
    elif isinstance(loaded, Clip):
        height, width = loaded.frames_THWC.shape[1:3]
        places = _places(loaded)
        picture, times = _strip(loaded, places), [round(place / loaded.fps, 3) for place in places]
    else:
        width, height = loaded.size
        picture = loaded.convert("RGB")
    return {
        "kind": "image" if media.kind == "audio" else media.kind,  # a sound is shown as its waveform
        "bytes": encode(picture, max_side),
        "width": int(width),
        "height": int(height),
        "times": times,
    }


def encode(picture: Image.Image, max_side: int = MAX_SIDE) -> bytes:
    """PNG up to 256 x 256 pixels, JPEG beyond, at most `max_side` pixels on the longer side."""
    picture = picture.convert("RGB")
    if max(picture.size) > max_side:
        picture.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    if picture.width * picture.height <= LOSSLESS_PIXELS:
        picture.save(out, "PNG")
    else:
        picture.save(out, "JPEG", quality=85)
    return out.getvalue()


def _places(clip: Clip) -> list[int]:
    """The frames that are shown: first, last and some between."""
    count = min(FRAMES, len(clip))
    return [round(i * (len(clip) - 1) / max(count - 1, 1)) for i in range(count)]


def _strip(clip: Clip, places: list[int]) -> Image.Image:
    count = len(places)
    frames = [Image.fromarray(clip.frames_THWC[i]) for i in places]
    width, height = frames[0].size
    strip = Image.new("RGB", (count * width + 4 * (count - 1), height), "white")
    for i, frame in enumerate(frames):
        strip.paste(frame, (i * (width + 4), 0))
    return strip


class Pictures:
    """Thumbnails by media key: a picture seen again (next rollout, next epoch) is not encoded again."""

    def __init__(self, keep: int = 256) -> None:
        self.keep = keep
        self._known: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def __call__(self, media: Media) -> dict[str, Any]:
        if media.key not in self._known:
            self._known[media.key] = thumbnail(media)
            while len(self._known) > self.keep:
                self._known.popitem(last=False)
        self._known.move_to_end(media.key)
        return self._known[media.key]
