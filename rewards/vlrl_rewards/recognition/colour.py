"""Colour reward: perceptual distance of two colours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import ImageColor

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.recognition.classification import normal_label, said_label

Rgb = tuple[int, int, int]
_HEX = re.compile(r"#?([0-9a-fA-F]{6})")
_TRIPLE = re.compile(
    r"(?:rgb)?[\[(]?\s{0,3}([0-9]{1,3})\s{0,3},\s{0,3}([0-9]{1,3})\s{0,3},\s{0,3}([0-9]{1,3})\s{0,3}[\])]?",
    re.IGNORECASE,
)
_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
_WHITE = np.array([0.95047, 1.0, 1.08883])


def read_colour(text: str) -> Rgb | None:
    """Red, green, blue (0-255) of "#ff8800", "rgb(255, 136, 0)", "255, 136, 0" or a CSS colour name; None for
    other texts."""
    plain = text.strip().strip("`'\"* .")
    if len(plain) > 40:
        return None
    if match := _HEX.fullmatch(plain):
        return int(match[1][:2], 16), int(match[1][2:4], 16), int(match[1][4:], 16)
    if match := _TRIPLE.fullmatch(plain):
        red, green, blue = (int(v) for v in match.groups())
        return (red, green, blue) if max(red, green, blue) <= 255 else None
    named = ImageColor.colormap.get(normal_label(plain).replace(" ", ""))
    return ImageColor.getrgb(named)[:3] if isinstance(named, str) else named


def lab(rgb: Rgb) -> np.ndarray:
    """(3,) CIE L*a*b* values (D65) of an sRGB colour."""
    unit = np.asarray(rgb, dtype=float) / 255
    linear = np.where(unit <= 0.04045, unit / 12.92, ((unit + 0.055) / 1.055) ** 2.4)
    t = _TO_XYZ @ linear / _WHITE
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def delta_e(a: Rgb, b: Rgb) -> float:
    """Euclidean distance in L*a*b* (CIE 1976): about 2 is just noticeable; black to white is 100."""
    return float(np.linalg.norm(lab(a) - lab(b)))


@verifier("colour", "color")
@register("colour")
@dataclass(frozen=True, kw_only=True)
class Colour(Graded):
    """Colour distance reward (CIE 1976 colour difference dE).

        linear: r = max(0, 1 - dE / limit);  exact: r = 1[dE <= tolerance],  dE the distance in CIE L*a*b*

    Paper: vlrl original. Answer and gold: a CSS name, "#rrggbb", or three numbers from 0 to 255.
    Edge: no colour, several, or words that are not a CSS colour: 0. Range [0, 1]. Units: `limit` and
    `tolerance` in dE. `correct_at`: the default 0.8 is dE <= 10 at the default limit.
    """

    correct_at: float = 0.8
    mode: Literal["linear", "exact"] = "linear"
    limit: float = 50.0
    tolerance: float = 10.0

    def __post_init__(self) -> None:
        if self.limit <= 0 or self.tolerance <= 0:
            raise ValueError(f"limit, tolerance: must be above 0, got {self.limit} and {self.tolerance}")

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        colour = read_colour(
            gold
            if isinstance(gold, str)
            else ", ".join(map(str, gold))
            if isinstance(gold, (list, tuple))
            else ""
        )
        if colour is None:
            raise GoldError(
                f"answer: {gold!r} is not a colour; give a CSS name, '#rrggbb' or [r, g, b] from 0 to 255"
            )
        target = colour
        answer = self.committed(response)
        colour = read_colour(answer.text) or read_colour(said_label(answer.text))
        if colour is None:
            raise Unread("not a colour", answer)
        distance = delta_e(colour, target)
        score = (
            float(distance <= self.tolerance) if self.mode == "exact" else max(0.0, 1 - distance / self.limit)
        )
        return self.scored(answer, score, score >= self.correct_at, f"dE {distance:.1f}", str(colour))
