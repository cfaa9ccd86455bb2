"""Jigsaw puzzles over photographs (Jigsaw-R1): a photograph cut into pieces and shuffled."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab import shipped_images
from vlrl_data.lab.base import GeneratedSource, tagged_answer
from vlrl_data.media.images import GeneratedImage


def draw_jigsaw(
    photo: str, box: tuple[int, int, int, int], rows: int, cols: int, piece: int, order: tuple[int, ...]
) -> Image.Image:
    """The crop as rows x cols pieces of `piece` pixels; place k (row-major, 0-based) shows original piece
    order[k] (1-based)."""
    whole = shipped_images.crop(photo, box, cols * piece, rows * piece)
    shown = Image.new("RGB", whole.size)
    for place, original in enumerate(order):
        left, top = (original - 1) % cols * piece, (original - 1) // cols * piece
        part = whole.crop((left, top, left + piece, top + piece))
        shown.paste(part, (place % cols * piece, place // cols * piece))
    return shown


@register("lab_jigsaw")
@dataclass(frozen=True, kw_only=True)
class LabJigsaw(GeneratedSource):
    """A shuffled photograph of `rows` x `cols` pieces; the answer lists, place by place (row-major), the
    original index (from 1) of its piece.

    Paper: Wang et al. 2025, arXiv:2505.23590 (the `full` question). All orders are equally likely, the
    unshuffled one included.
    """

    rows: int = 2
    cols: int = 1
    piece: int = 56
    photos: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows * self.cols < 2:
            raise ConfigError(
                f"rows, cols: a jigsaw of {self.rows} x {self.cols} has one piece; give at least 2 pieces"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        name, box = shipped_images.random_crop(rng, self.split, self.photos, aspect=self.cols / self.rows)
        order = list(range(1, self.rows * self.cols + 1))
        rng.shuffle(order)
        image = GeneratedImage(draw_jigsaw, (name, box, self.rows, self.cols, self.piece, tuple(order)))
        meta = {"rows": self.rows, "cols": self.cols}
        return Row(
            self.id(index),
            "Order?",
            order,
            images=(image,),
            task="jigsaw",
            target=tagged_answer(" ".join(map(str, order))),
            meta=meta,
        )
