"""Images that ship in Python packages: handwritten digits of scikit-learn (1,797 of 8 x 8 pixels),
photographs of scikit-image and scikit-learn.

Train and held-out images never share a pixel: digits are split by image, photographs by region (the right 30
% of each is held out). The split does not depend on any seed, so a run with one seed cannot train on what
another holds out.
"""

from __future__ import annotations

import importlib.util
import random
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from vlrl.plugins.registry import ConfigError
from vlrl.services.third_party import pip_install

SPLITS = ("train", "heldout")
HELDOUT_SHARE = 0.3  # of a photograph's width
PHOTOS = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "camera": ("skimage", "data/camera.png"),
    "chelsea": ("skimage", "data/chelsea.png"),
    "china": ("sklearn", "datasets/images/china.jpg"),
    "coffee": ("skimage", "data/coffee.png"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "rocket": ("skimage", "data/rocket.jpg"),
}


def check_split(split: str) -> None:
    """Raises ConfigError unless `split` is "train" or "heldout"."""
    if split not in SPLITS:
        raise ConfigError(f"split: {split!r} is not a split of the lab tasks. Known: {', '.join(SPLITS)}.")


def shipped(package: str, file: str) -> Path:
    """A file inside an installed package, found without importing the package (which takes seconds). Raises
    ConfigError."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"{file} ships inside {package}, which is not installed: {pip_install('train')}")
    return Path(spec.submodule_search_locations[0]) / file


@lru_cache(maxsize=1)
def _digits() -> tuple[np.ndarray, np.ndarray]:
    table = np.loadtxt(
        shipped("sklearn", "datasets/data/digits.csv.gz"), delimiter=",", dtype=np.int64
    )  # 64 levels of 0-16, then the digit
    return (table[:, :64].reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8), table[:, 64]


@lru_cache(maxsize=2)
def digit_ids(split: str) -> tuple[int, ...]:
    """Indices of the split's digit images: every fifth image of a fixed shuffle is held out."""
    order = list(range(len(_digits()[1])))
    random.Random("digit split").shuffle(order)
    return tuple(index for place, index in enumerate(order) if (place % 5 == 0) == (split == "heldout"))


@lru_cache(maxsize=20)
def ids_of_label(split: str, label: int) -> tuple[int, ...]:
    """Indices of the split's images of one digit."""
    return tuple(i for i in digit_ids(split) if label_of(i) == label)


def label_of(index: int) -> int:
    """The digit, 0-9, on image `index`."""
    return int(_digits()[1][index])


def digit(index: int, size: int) -> Image.Image:
    """Digit image `index`, upscaled to `size` x `size` pixels: bright ink on black, mode L."""
    return Image.fromarray(_digits()[0][index]).resize((size, size), Image.Resampling.BICUBIC)


@lru_cache(maxsize=16)
def _photo(name: str) -> Image.Image:
    if name not in PHOTOS:
        raise ConfigError(f"photos: no photograph named {name!r}. Known: {', '.join(PHOTOS)}.")
    with Image.open(shipped(*PHOTOS[name])) as image:
        return image.convert("RGB")


def region(name: str, split: str) -> tuple[int, int, int, int]:
    """The part (left, top, right, bottom) of a photograph that belongs to the split, in its pixels."""
    width, height = _photo(name).size
    edge = round(width * (1 - HELDOUT_SHARE))
    return (0, 0, edge, height) if split == "train" else (edge, 0, width, height)


def crop(name: str, box: tuple[int, int, int, int], width: int, height: int) -> Image.Image:
    """A part of a photograph, resized to width x height pixels, RGB."""
    return _photo(name).resize((width, height), Image.Resampling.BICUBIC, box=box)


def random_crop(
    rng: random.Random, split: str, photos: tuple[str, ...], aspect: float = 1.0
) -> tuple[str, tuple[int, int, int, int]]:
    """A photograph's name and a random box of aspect ratio `aspect` (width / height) inside the split's
    region.

    The box is between half and all of the largest that fits the held-out region, in both splits, so that they
    differ in place and not in scale.
    """
    name = rng.choice(photos or tuple(PHOTOS))
    left, top, right, bottom = region(name, split)
    narrow = region(name, "heldout")
    largest = min(narrow[2] - narrow[0], (bottom - top) * aspect)
    width = rng.uniform(largest / 2, largest)
    height = width / aspect
    x, y = rng.uniform(left, right - width), rng.uniform(top, bottom - height)
    return name, (int(x), int(y), int(x + width), int(y + height))
