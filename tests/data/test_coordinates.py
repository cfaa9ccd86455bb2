"""Coordinates of every family with images: a CoordinateSpace converts both ways, and its sizes are those of
the processed image.

The probe is a black rectangle on white. Its corners, converted from original pixels to the family's units and
from there to the pixels of the processed image, must be the corners of the rectangle in that image.
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from vlrl_data.media.images import InMemoryImage
from vlrl_data.record_families.answers import to_pixels

from vlrl.plugins.registry import build
from vlrl.types import CoordinateSpace

BOX = (40, 24, 120, 72)
SIZE = (168, 96)


def probe(size=SIZE, box=BOX):
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).rectangle((box[0], box[1], box[2] - 1, box[3] - 1), fill="black")
    return image


def dark(image):
    """Box of the dark pixels of an image."""
    ys, xs = np.nonzero(np.asarray(image.convert("L")) < 128)
    return xs.min(), ys.min(), xs.max() + 1, ys.max() + 1


@pytest.mark.parametrize("seen", [SIZE, (84, 48), (336, 192), (84, 192), (42, 24)])
@pytest.mark.parametrize("units", ["seen", "original", "unit", "per_mille"])
def test_both_ways(seen, units):
    space = CoordinateSpace(SIZE, seen, units)
    there = space.from_original(BOX)
    assert space.to_original(there) == pytest.approx(BOX)
    share = (seen[0] / SIZE[0], seen[1] / SIZE[1])
    unit = {"seen": (1, 1), "original": share, "unit": seen, "per_mille": (seen[0] / 1000, seen[1] / 1000)}[
        units
    ]
    in_seen = [value * unit[i % 2] for i, value in enumerate(there)]
    assert in_seen == pytest.approx(dark(probe().resize(seen, Image.Resampling.BOX)))


@pytest.mark.parametrize(
    ("units", "raw"),
    [
        ("per_mille", [238, 250, 714, 750]),
        ("unit", [40 / 168, 0.25, 120 / 168, 0.75]),
        ("original", [40, 24, 120, 72]),
    ],
)
def test_gold_answers_become_original_pixels(units, raw):
    found = to_pixels([raw], CoordinateSpace(SIZE, SIZE, units))[0]
    assert all(abs(a - b) < 0.1 for a, b in zip(found, BOX))


FILES = (Path(__file__).parents[2] / "vlrl" / "policy" / "families").glob("*.py")
FAMILIES = [file.stem for file in FILES if "@register(" in file.read_text() and file.stem != "text"]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_family_says_what_it_sees(name):
    from vlrl.policy import Family

    family = build(Family, {"name": name, "tiny": {}})
    _, processor = family.build(family.tiny)
    space = family.process(processor, InMemoryImage(probe())).space
    assert space.original == SIZE
    assert space.to_original(space.from_original(BOX)) == pytest.approx(BOX)
    whole = space.from_original((0, 0, *SIZE))
    limits = {"seen": space.seen, "original": SIZE, "unit": (1, 1), "per_mille": (1000, 1000)}[space.units]
    assert whole == pytest.approx((0, 0, *limits))
