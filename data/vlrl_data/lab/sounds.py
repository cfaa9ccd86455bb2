"""Sounds made by code: digits as the two tones of a telephone's keys, and tones that rise or do not.

Shape legend: T samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row, Sound
from vlrl_data.lab.base import GeneratedSource, tagged_answer
from vlrl_data.media.audio import GeneratedSound

RATE = 16000
LOW, HIGH = (697, 770, 852, 941), (1209, 1336, 1477)  # hertz: ITU-T Q.23, rows and columns of keys
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PITCHES = (300, 450, 675, 1010, 1520)  # hertz, a fifth apart
NAMES = ("lowest", "low", "middle", "high", "highest")


def key_tones(digit: int) -> tuple[int, int]:
    """The two frequencies of a digit's key, in hertz."""
    row, column = (3, 1) if digit == 0 else divmod(digit - 1, 3)
    return LOW[row], HIGH[column]


@lru_cache(maxsize=512)
def tones(chords: tuple[tuple[int, ...], ...], seconds: float, noise: float, seed: int) -> Sound:
    """One chord after the other, each `seconds` long with a quarter of silence behind it, under white noise
    of standard deviation `noise`."""
    count = round(seconds * RATE)
    time_T = np.arange(count) / RATE
    window_T = np.hanning(count)
    parts: list[np.ndarray] = []
    for chord in chords:
        waves = [np.sin(2 * np.pi * pitch * time_T) for pitch in chord]
        parts += [window_T * sum(waves) * 0.8 / len(chord), np.zeros(count // 4)]
    samples_T = np.concatenate(parts)
    samples_T += np.random.default_rng(seed).normal(0.0, noise, len(samples_T))
    return Sound(samples_T.clip(-1, 1).astype(np.float32), RATE)


@register("lab_sounds")
@dataclass(frozen=True, kw_only=True)
class LabSounds(GeneratedSource):
    """`ask` "digits": the words of `length` digits that are dialled; `ask` "rises": whether `length` tones
    entail that each is higher than the one before.

    A tone lasts `seconds`; `noise` is the standard deviation of white noise beside it (a tone: 0.8 at most).
    Half of the rows of "rises" are entailed. `keywords`: digits that count as keywords of a transcript.
    Harder: more `noise`, shorter `seconds`, more `length`.
    """

    ask: str = "digits"
    length: int = 3
    seconds: float = 0.12
    noise: float = 0.02
    keywords: tuple[str, ...] = ("zero", "five")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ask not in ("digits", "rises"):
            raise ConfigError(f"ask: {self.ask!r} is unknown. Known: digits, rises.")
        most = 20 if self.ask == "digits" else len(PITCHES)
        if not 1 < self.length <= most:
            raise ConfigError(f"length: {self.length} tones; allowed for ask {self.ask!r}: 2 to {most}")
        if not 0.02 <= self.seconds <= 5 or not 0 <= self.noise <= 1:
            raise ConfigError(
                f"seconds={self.seconds} must be from 0.02 to 5, and noise={self.noise} from 0 to 1"
            )

    def row(self, index: int) -> Row:
        return self._digits(index) if self.ask == "digits" else self._rises(index)

    def _sound(self, index: int, chords: list[tuple[int, ...]]) -> GeneratedSound:
        seed = self.rng(index).getrandbits(31)
        return GeneratedSound(tones, (tuple(chords), self.seconds, self.noise, seed))

    def _digits(self, index: int) -> Row:
        rng = self.rng(index)
        digits = [rng.randrange(10) for _ in range(self.length)]
        said = " ".join(WORDS[digit] for digit in digits)
        return Row(
            self.id(index),
            "Write the digits that you hear as words.",
            said,
            task="sounds",
            target=tagged_answer(said),
            meta={"keywords": list(self.keywords)},
            audios=(self._sound(index, [key_tones(digit) for digit in digits]),),
        )

    def _rises(self, index: int) -> Row:
        rng = self.rng(index)
        entailed = rng.random() < 0.5
        places = sorted(rng.sample(range(len(PITCHES)), self.length))
        rising = list(places)
        while not entailed and places == rising:
            rng.shuffle(places)
        label = "entailed" if entailed else "not-entailed"
        heard = ", then ".join(f"the {NAMES[place]}" for place in places)
        verdict = "each is higher" if entailed else "one is lower"
        return Row(
            self.id(index),
            "Premise: the tones that you hear. Conclusion: each tone is higher than the one before.",
            label,
            task="entailment",
            target=f"<think>I hear {heard}: {verdict} than the one before.</think>\nAnswer: {label}",
            audios=(self._sound(index, [(PITCHES[place],) for place in places]),),
        )
