"""The images and videos that generators start from: a user's files, or the photographs that ship with
scikit-image and scikit-learn.

A reference is a tuple of texts (it pickles, and it is part of a medium's key): ("photo", name, split) or
("file", path).
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from vlrl.plugins.registry import ConfigError
from vlrl_data.lab import shipped_images
from vlrl_data.lab.base import GeneratedSource
from vlrl_data.media.images import IMAGE_SUFFIXES, file_key, open_image

Reference = tuple[str, ...]
HELDOUT_SHARE = 0.2  # of a user's files
MANY = 1000  # files from which on a few are drawn without shuffling all


@lru_cache(maxsize=8)
def files_of(folder: str, suffixes: frozenset[str]) -> tuple[str, ...]:
    """Files below a folder with one of the suffixes, sorted, or those that a .json file lists (paths from its
    folder). Raises ConfigError if there is none."""
    root = Path(folder).expanduser()
    if root.suffix == ".json" and root.is_file():
        return _listed(root, suffixes)
    found = (
        sorted(str(file) for file in root.rglob("*") if file.suffix.lower() in suffixes)
        if root.is_dir()
        else []
    )
    if not found:
        raise ConfigError(f"{folder!r} is no folder with files of {', '.join(sorted(suffixes))}")
    return tuple(found)


def _listed(path: Path, suffixes: frozenset[str]) -> tuple[str, ...]:
    try:
        names = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} is no JSON: {error}") from None
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise ConfigError(f"{str(path)!r} is no list of paths")
    if strange := [name for name in names if Path(name).suffix.lower() not in suffixes]:
        raise ConfigError(
            f"{str(path)!r} lists {strange[0]!r}, which is no file of {', '.join(sorted(suffixes))}"
        )
    return tuple(str(path.parent / name) for name in names)


def of_split(files: tuple[str, ...], split: str) -> list[str]:
    """A user's files of a split: a fifth, by a hash of the name, is held out."""
    chosen = [
        file
        for file in files
        if (hashlib.sha256(Path(file).name.encode()).digest()[0] < 256 * HELDOUT_SHARE)
        == (split == "heldout")
    ]
    return chosen or list(files)


@lru_cache(maxsize=8)
def _references(images: str, split: str) -> tuple[Reference, ...]:
    if not images:
        return tuple(("photo", name, split) for name in shipped_images.PHOTOS)
    return tuple(("file", file) for file in of_split(files_of(images, IMAGE_SUFFIXES), split))


@dataclass(frozen=True, kw_only=True)
class GeneratedFromImages(GeneratedSource):
    """A generator over `images`: a folder, a .json list of files, or "" for the photographs that ship with
    scikit-image and scikit-learn."""

    images: str = ""

    def references(self, rng: random.Random, count: int = 1) -> list[Reference]:
        """`count` images, all different unless there are fewer."""
        found = list(_references(self.images, self.split))
        if len(found) > MANY:
            return rng.sample(found, count)
        rng.shuffle(found)
        return [found[i % len(found)] for i in range(count)]


def identity(reference: Reference) -> Reference:
    """The reference with the key of its file: a recipe's arguments change when the file's content does."""
    return (*reference, file_key(reference[1])) if reference[0] == "file" else reference


@lru_cache(maxsize=32)
def open_reference(reference: Reference) -> Image.Image:
    """The image (of a photograph, the part that belongs to the split)."""
    if reference[0] == "file":
        return open_image(reference[1])
    box = shipped_images.region(reference[1], reference[2])
    return shipped_images.crop(reference[1], box, box[2] - box[0], box[3] - box[1])


def fitted(
    reference: Reference, width: int, height: int, place: tuple[float, float] = (0.5, 0.5), share: float = 1.0
) -> Image.Image:
    """A part of the image of aspect ratio width : height, `share` of the largest that fits, at `place` (0-1,
    0-1), resized to width x height."""
    image = open_reference(reference)
    scale = min(image.width / width, image.height / height) * share
    across, down = width * scale, height * scale
    left, top = (image.width - across) * place[0], (image.height - down) * place[1]
    return image.resize((width, height), Image.Resampling.BICUBIC, box=(left, top, left + across, top + down))


def pan(
    reference: Reference, size: int, frames: int, path: tuple[float, float, float, float], share: float = 0.6
) -> np.ndarray:
    """A camera that moves over an image from place (x0, y0) to (x1, y1): (frames, size, size, 3) uint8."""
    x0, y0, x1, y1 = path
    steps = np.linspace(0, 1, frames)
    return np.stack(
        [
            np.asarray(fitted(reference, size, size, (x0 + (x1 - x0) * t, y0 + (y1 - y0) * t), share))
            for t in steps
        ]
    )
