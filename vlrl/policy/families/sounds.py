"""Sounds for the families that hear: resampling to the tower's rate, and the log-mel frames of one sound.

Shape legend: T samples, F frames, M mel bins.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import TYPE_CHECKING, Any

from vlrl.policy.encoded import Features
from vlrl.services.lazy import torch
from vlrl.types import Media, MediaError, Sound

if TYPE_CHECKING:
    import numpy as np


def resampled(sound: Sound, rate: int) -> np.ndarray:
    """The samples (T,) of a sound at `rate` per second, by scipy's polyphase filter."""
    if sound.rate == rate:
        return sound.samples_T
    from scipy.signal import resample_poly

    shared = gcd(sound.rate, rate)
    return resample_poly(sound.samples_T, rate // shared, sound.rate // shared).astype("float32")


def sound_of(medium: Media) -> Sound:
    """A medium's decoded sound."""
    sound = medium.load()
    assert isinstance(sound, Sound), f"{medium.key}: expected a sound, got {type(sound).__name__}"
    return sound


def heard_samples(medium: Media, rate: int, most: int) -> np.ndarray:
    """The samples (T,) of a medium at `rate` per second. Raises MediaError for more than `most`."""
    sound = sound_of(medium)
    samples_T = resampled(sound, rate)
    if len(samples_T) > most:
        raise MediaError(
            f"a sound of {sound.seconds:.1f} s; the tower hears up to {most / rate:.0f} s: cut it into parts"
        )
    return samples_T


def too_short(medium: Media) -> MediaError:
    """What to raise for a sound that gives no embedding."""
    length = 1000 * sound_of(medium).seconds
    return MediaError(f"a sound of {length:.0f} ms is too short to be heard; give 50 ms")


def process_sound(
    extractor: Any, medium: Media, token: str, embeds_of: Callable[[int], int], padding: bool
) -> Features:
    """One sound through a log-mel extractor: its frames (F, M) alone, and `token` once per embedding.

    `padding`: zeros follow the sound, as in processors that fill up to the longest sound allowed; one window
    of them gives the same frames. Raises MediaError for a sound that is longer than the extractor takes, or
    too short for one embedding.
    """
    samples_T = heard_samples(medium, extractor.sampling_rate, extractor.n_samples)
    whole = {"padding": "max_length", "max_length": len(samples_T) + extractor.n_fft} if padding else {}
    out = extractor(
        samples_T,
        sampling_rate=extractor.sampling_rate,
        return_attention_mask=True,
        truncation=False,
        return_tensors="pt",
        **(whole or {"padding": True}),
    )
    frames = int(out["attention_mask"].sum())
    count = embeds_of(frames) if frames > 1 else 0
    if count < 1:
        raise too_short(medium)
    frames_FM = torch.as_tensor(out["input_features"])[0, :, :frames].T.contiguous()
    return Features(medium.key, "audio", token * count, {"input_features": frames_FM}, None, count)
