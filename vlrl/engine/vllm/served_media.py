"""Pictures and clips on their way to a vLLM server: files that it reads where it shares this machine, else
data URLs. Pixels stay exact (PNG, uint8)."""

from __future__ import annotations

import base64
import hashlib
import io
import threading
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from vlrl.types import Clip, Media, Prompt

MAX_BYTES = 1 << 30  # of media that no request uses
CLIPS = "vlrl_clips"  # vLLM's name of the loader that reads `written_clip`
IN_SERVER = "vlrl.engine.vllm.in_server"  # the module that a server imports, with its guard
# flags of `vllm serve`
READS_CLIPS = {"video": {"video_backend": CLIPS, "num_frames": -1}}


def clip_metadata(fps: float, frames: int) -> dict[str, Any]:
    """What vLLM must know of a clip whose frames are already chosen."""
    return {
        "fps": fps,
        "total_num_frames": frames,
        "duration": frames / fps,
        "frames_indices": list(range(frames)),
        "do_sample_frames": False,
    }


def written_clip(clip: Clip) -> bytes:
    """A clip as the bytes of an npz file: `frames` (T, H, W, 3) uint8 and `fps`."""
    out = io.BytesIO()
    np.savez(out, frames=clip.frames_THWC, fps=np.float64(clip.fps))
    return out.getvalue()


def read_clip(data: bytes) -> tuple[np.ndarray, dict[str, Any]]:
    """Frames and metadata of `written_clip`. Nothing is unpickled. Raises ValueError for other bytes."""
    with np.load(io.BytesIO(data), allow_pickle=False) as kept:
        if not {"frames", "fps"} <= set(kept.files):
            raise ValueError(f"a clip has frames and fps, not {', '.join(kept.files) or 'nothing'}")
        frames = kept["frames"]
        return frames, clip_metadata(float(kept["fps"]), len(frames))


def written(medium: Media) -> bytes:
    """A medium as the bytes that the server decodes: PNG, or `written_clip`."""
    loaded: Any = medium.load()
    if medium.kind == "video":
        return written_clip(loaded)
    out = io.BytesIO()
    loaded.convert("RGB").save(out, "PNG", compress_level=1)
    return out.getvalue()


class ServedMedia:
    """The media of the requests under way, each written once.

    With a `folder` that the servers read, a request names files, and its size does not grow with its media;
    without one it holds data URLs. What no request uses is kept up to `max_bytes`, the newest longest. Safe
    for several threads.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._urls: OrderedDict[str, tuple[str, int]] = OrderedDict()  # by key, with the size in bytes
        self._uses: Counter[str] = Counter()
        self._lock = threading.Lock()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def parts(self, prompt: Prompt) -> list[dict[str, str]]:
        """The content parts of a prompt's pictures and clips, in use until `release`."""
        media = [("image_url", medium) for medium in prompt.images]
        media += [("video_url", medium) for medium in prompt.videos]
        parts = []
        for kind, medium in media:
            with self._lock:
                self._uses[medium.key] += 1
                self._urls.setdefault(medium.key, ("", 0))
                if not self._urls[medium.key][0]:
                    self._urls[medium.key] = self._write(medium)
                self._urls.move_to_end(medium.key)
                parts.append({"type": kind, "url": self._urls[medium.key][0], "uuid": medium.key})
        return parts

    def release(self, prompt: Prompt) -> None:
        """The answer to a request with these media is there."""
        with self._lock:
            for medium in (*prompt.images, *prompt.videos):
                self._uses[medium.key] -= 1
            held = sum(size for _, size in self._urls.values())
            for key in [key for key in self._urls if self._uses[key] <= 0]:
                if held <= self.max_bytes:
                    break
                url, size = self._urls.pop(key)
                del self._uses[key]
                held -= size
                if self.folder is not None:
                    Path(url.removeprefix("file://")).unlink(missing_ok=True)

    def _write(self, medium: Media) -> tuple[str, int]:
        data, video = written(medium), medium.kind == "video"
        if self.folder is None:
            kind = "video/x-vlrl-clip" if video else "image/png"
            url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
            return url, len(url)
        name = hashlib.sha256(medium.key.encode()).hexdigest()
        path = self.folder / f"{name}.{'npz' if video else 'png'}"
        path.write_bytes(data)
        return path.as_uri(), len(data)
