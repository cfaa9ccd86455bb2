"""Colours: by hand, and against scikit-image."""

from __future__ import annotations

import numpy as np
import pytest
from vlrl_rewards.recognition.colour import Colour, delta_e, lab, read_colour


@pytest.mark.parametrize(
    ("text", "rgb"),
    [
        ("#ff8800", (255, 136, 0)),
        ("FF8800", (255, 136, 0)),
        ("rgb(255, 136, 0)", (255, 136, 0)),
        ("255, 136, 0", (255, 136, 0)),
        ("Red.", (255, 0, 0)),
        ("light blue", (173, 216, 230)),
        ("reddish", None),
        ("red or blue", None),
        ("256,0,0", None),
        ("", None),
    ],
)
def test_reading(text, rgb):
    assert read_colour(text) == rgb


def test_colour_reward():
    assert Colour().verify("red", "<answer>#ff0000</answer>").score == 1
    assert Colour().verify("black", "<answer>white</answer>").score == 0
    assert Colour(limit=200).verify("black", "<answer>white</answer>").score == pytest.approx(
        0.5, abs=1e-4
    )  # L* from 0 to 100
    assert Colour(mode="exact").verify([255, 0, 0], "<answer>254, 0, 0</answer>").score == 1
    for text in ("", "<answer>red green blue</answer>", "<think>red</think>", "<answer>colourful</answer>"):
        assert Colour().verify("red", text).score == 0
    with pytest.raises(ValueError, match="colour"):
        Colour().verify("reddish", "")
    with pytest.raises(ValueError, match="limit"):
        Colour(limit=0)


def test_agrees_with_scikit_image():
    skimage = pytest.importorskip("skimage.color")
    pairs = np.random.default_rng(0).integers(0, 256, (1000, 2, 3))
    reference = skimage.rgb2lab(pairs.astype(np.uint8))
    for (a, b), (first, second) in zip(pairs, reference, strict=True):
        np.testing.assert_allclose(lab(tuple(a)), first, atol=5e-3)
        assert delta_e(tuple(a), tuple(b)) == pytest.approx(float(np.linalg.norm(first - second)), abs=1e-2)
