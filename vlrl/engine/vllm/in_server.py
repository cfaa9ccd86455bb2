"""What a vLLM server loads into its own process, by the name of its middleware: the guard, and a reader of
clips.

Imports vLLM at the top, which takes seconds: nothing else imports this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from vllm.multimodal.video import VIDEO_LOADER_REGISTRY, VideoLoader

from vlrl.engine.vllm.served_media import CLIPS, read_clip
from vlrl.services.token_guard import TokenGuard

__all__ = ["ClipLoader", "TokenGuard"]


@VIDEO_LOADER_REGISTRY.register(CLIPS)
class ClipLoader(VideoLoader):
    """Reads the frames that the trainer chose, with their rate (`served_media.written_clip`)."""

    @classmethod
    def load_bytes(cls, data: bytes, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return read_clip(data)
