"""Sounds as `Media`: files, bytes and samples, decoded by PyAV to one channel at the file's own rate.

A family resamples to its tower's rate. Shape legend: T samples, C channels.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from vlrl.services.failures import of_the_machine
from vlrl.services.media_files import check_sound, open_sound
from vlrl.types import Media, MediaError, MediaKind, Sound
from vlrl_data.media.images import EqualByKey, digest, file_key, shorten
from vlrl_data.media.video import check_file

AUDIO_SUFFIXES = frozenset({".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".aac", ".webm"})
MAX_SOUND_BYTES = 1 << 30  # of a decoded sound, four bytes a sample: 4.6 hours at 16 kHz


def decode_sound(source: str | bytes) -> Sound:
    """A sound file (a path, or its bytes) as one channel: the mean of its channels. Raises MediaError."""
    place = f"sound of {len(source)} bytes" if isinstance(source, bytes) else shorten(source)
    if isinstance(source, str):
        check_file(source)
    try:
        return _decoded(source, place)
    except MediaError:
        raise
    except Exception as error:  # PyAV has many error types; all of them mean that the file cannot be decoded
        if of_the_machine(error):  # no fault of the file
            raise
        raise MediaError(
            f"{place}: PyAV cannot decode it: {type(error).__name__}: {str(error).strip()[:200]}"
        ) from error


def _decoded(source: str | bytes, place: str) -> Sound:
    """Frames as they come: memory is that of the result and one frame."""
    import av

    parts: list[np.ndarray] = []
    count, rate = 0, 0
    with open_sound(source) as container:
        if not container.streams.audio:
            raise MediaError(f"{place}: it has no audio stream")
        resampler = av.AudioResampler(format="fltp")
        for frame in container.decode(audio=0):
            for part in resampler.resample(frame):
                rate = part.sample_rate
                parts.append(part.to_ndarray().mean(0, dtype=np.float32))
                count += len(parts[-1])
                if 4 * count > MAX_SOUND_BYTES:
                    raise MediaError(f"{place}: over {MAX_SOUND_BYTES} bytes of samples; cut it into parts")
    if not count:
        raise MediaError(f"{place}: it has no samples")
    return checked(Sound(np.concatenate(parts), rate), place)


def checked(sound: Sound, place: str) -> Sound:
    """The sound. Raises MediaError for one without samples, without a rate, or with NaN or infinity."""
    if not len(sound) or sound.rate < 1:
        raise MediaError(f"{place}: {len(sound)} samples at {sound.rate} per second are no sound")
    if not np.isfinite(sound.samples_T).all():
        raise MediaError(f"{place}: it has samples that are NaN or infinite")
    return sound


def sound_of(samples: Any, rate: Any) -> Sound:
    """Samples (T,), (C, T) or (T, C), floats from -1 to 1 or 16-bit integers, as one channel. Raises
    MediaError."""
    array = np.asarray(samples)
    whole = isinstance(rate, (int, float, np.integer, np.floating)) and rate >= 1 and rate % 1 == 0
    if isinstance(rate, bool) or not whole:
        raise MediaError(f"audio samples with sampling_rate {str(rate)[:40]!r}; give samples per second")
    if array.ndim == 2:
        array = array.mean(0 if array.shape[0] <= array.shape[1] else 1)
        array = array / 32768 if np.asarray(samples).dtype == np.int16 else array
    elif array.dtype == np.int16:
        array = array / 32768
    if array.ndim != 1 or array.dtype.kind != "f":
        raise MediaError(
            f"an array of shape {np.shape(samples)} and type {np.asarray(samples).dtype} is no sound; give "
            "floats from -1 to 1 or int16, of (T,), (C, T) or (T, C)"
        )
    return checked(Sound(array.astype(np.float32), int(rate)), "audio samples")


def wav_bytes(sound: Sound) -> bytes:
    """A WAV file of 32-bit floats, which keeps every bit of the samples."""
    data = sound.samples_T.astype("<f4").tobytes()
    head = struct.pack("<HHIIHH", 3, 1, sound.rate, 4 * sound.rate, 4, 32)
    chunks = b"fmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


@dataclass(frozen=True, eq=False)
class StoredSound(EqualByKey, Media):
    """A sound file: its path, or its bytes."""

    source: str | bytes
    kind: MediaKind = field(default="audio", init=False)

    @cached_property
    def key(self) -> str:
        content = digest("bytes", self.source) if isinstance(self.source, bytes) else file_key(self.source)
        return digest("sound", content)

    def load(self) -> Sound:
        return decode_sound(self.source)

    def check(self) -> None:
        """Whether the file exists and is of a known format."""
        if isinstance(self.source, str):
            check_file(self.source)
        try:
            check_sound(self.source)
        except ValueError as error:
            place = "audio" if isinstance(self.source, bytes) else shorten(self.source)
            raise MediaError(f"{place}: {error}") from None


@dataclass(frozen=True, eq=False)
class InMemorySound(EqualByKey, Media):
    """A sound that is in memory."""

    sound: Sound
    kind: MediaKind = field(default="audio", init=False)

    @cached_property
    def key(self) -> str:
        return digest("samples", str(self.sound.rate), self.sound.samples_T.tobytes())

    def load(self) -> Sound:
        return self.sound


@dataclass(frozen=True, eq=False)
class GeneratedSound(EqualByKey, Media):
    """A sound that `recipe(*args)` makes, where `recipe` is a module-level pure function of plain arguments.

    As with `GeneratedImage`, the key names the recipe and seeds the sampling of a prompt.
    """

    recipe: Callable[..., Sound]
    args: tuple[Any, ...] = ()
    kind: MediaKind = field(default="audio", init=False)

    @cached_property
    def key(self) -> str:
        return digest("made", f"{self.recipe.__module__}.{self.recipe.__qualname__}", repr(self.args))

    def load(self) -> Sound:
        return self.recipe(*self.args)
