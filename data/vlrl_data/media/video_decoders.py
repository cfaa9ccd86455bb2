"""Video decoders behind one interface: number of frames, frames per second, the frames at given indices, one
at a time and upright. Libraries are imported on use."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from vlrl.services.media_files import check_container, open_video
from vlrl.types import MediaError

BATCH = 4  # frames that a library decodes in one call


class Decoder(Protocol):
    """An open video. `frames` takes ascending indices and gives a uint8 RGB array (H, W, 3) for each, turned
    as the file says."""

    total: int
    fps: float

    def frames(self, indices: np.ndarray) -> Iterator[np.ndarray]: ...

    def __enter__(self) -> Decoder: ...

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _NothingToClose:
    """Context manager of a decoder that needs no closing."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


class PyAV(_NothingToClose):
    """PyAV decodes in order and keeps the requested frames. Containers that do not state their frame count
    are counted by decoding once."""

    def __init__(self, source: str | bytes) -> None:
        self.source = source
        with open_video(source) as container:
            if not container.streams.video:
                raise MediaError("it has no video stream")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            self.fps = float(stream.average_rate or stream.guessed_rate or 0)
            self.total = stream.frames or sum(1 for _ in container.decode(video=0))

    def frames(self, indices: np.ndarray) -> Iterator[np.ndarray]:
        wanted = {int(index) for index in indices}
        with open_video(self.source) as container:
            container.streams.video[0].thread_type = "AUTO"
            for place, frame in enumerate(container.decode(video=0)):
                if place in wanted:
                    image = frame.to_ndarray(format="rgb24")
                    yield np.rot90(image, round(frame.rotation / 90)) if frame.rotation else image
                if place >= max(wanted):
                    break


class Decord(_NothingToClose):
    """decord, on one thread (its threads do not survive forks). It turns frames itself."""

    def __init__(self, source: str | bytes) -> None:
        import decord

        check_container(source)
        self.reader = decord.VideoReader(
            io.BytesIO(source) if isinstance(source, bytes) else source, num_threads=1
        )
        self.fps, self.total = float(self.reader.get_avg_fps()), len(self.reader)

    def frames(self, indices: np.ndarray) -> Iterator[np.ndarray]:
        for start in range(0, len(indices), BATCH):
            yield from self.reader.get_batch(indices[start : start + BATCH].tolist()).asnumpy()


class TorchCodec(_NothingToClose):
    """torchcodec with exact seeking. It turns frames itself."""

    def __init__(self, source: str | bytes) -> None:
        from torchcodec.decoders import VideoDecoder

        check_container(source)
        self.decoder = VideoDecoder(source, dimension_order="NHWC", num_ffmpeg_threads=1)
        self.fps, self.total = (
            float(self.decoder.metadata.average_fps or 0),
            int(self.decoder.metadata.num_frames or 0),
        )

    def frames(self, indices: np.ndarray) -> Iterator[np.ndarray]:
        for start in range(0, len(indices), BATCH):
            yield from self.decoder.get_frames_at(indices[start : start + BATCH].tolist()).data.numpy()


BACKENDS: dict[str, Callable[[str | bytes], Decoder]] = {
    "pyav": PyAV,
    "decord": Decord,
    "torchcodec": TorchCodec,
}
_MODULES = {"pyav": "av", "decord": "decord", "torchcodec": "torchcodec"}


def first_installed() -> str:
    """The first backend that is installed. Raises MediaError if none is."""
    for name, module in _MODULES.items():
        if importlib.util.find_spec(module):
            return name
    raise MediaError("no video backend is installed: pip install av (or decord, or torchcodec)")
