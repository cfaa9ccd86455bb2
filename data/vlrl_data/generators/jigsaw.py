"""Jigsaw puzzles in all question kinds of Jigsaw-R1."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from PIL import Image

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Media, Row
from vlrl_data.generators.source_images import (
    GeneratedFromImages,
    Reference,
    fitted,
    identity,
    open_reference,
)
from vlrl_data.lab.base import IN_PIXELS, tagged_answer
from vlrl_data.media.images import GeneratedImage

LETTERS = "ABCDEFGH"
RELATIONS = {
    (0, -1): "directly to the left of",
    (0, 1): "directly to the right of",
    (-1, 0): "directly above",
    (1, 0): "directly below",
    (-1, -1): "to the upper left of",
    (-1, 1): "to the upper right of",
    (1, -1): "to the lower left of",
    (1, 1): "to the lower right of",
}
KINDS = ("full", "backward", "pair", "single", "multiple", "box")


@dataclass(frozen=True)
class Puzzle:
    """`order[k]` is the original index (from 1, row-major) of the piece shown at place k."""

    rows: int
    cols: int
    order: tuple[int, ...]

    def place_of(self, piece: int) -> int:
        """The place (from 1) at which the piece with original index `piece` is shown."""
        return self.order.index(piece) + 1

    @property
    def backward(self) -> list[int]:
        """Entry k: the place at which the piece that belongs to place k is shown."""
        return [self.place_of(piece) for piece in range(1, len(self.order) + 1)]

    def relation(self, first: int, second: int) -> str | None:
        """The position, in the original, of the piece shown at place `first` (from 1) relative to the one at
        `second`; None if they do not touch."""
        (r1, c1), (r2, c2) = (divmod(self.order[place - 1] - 1, self.cols) for place in (first, second))
        return RELATIONS.get((r1 - r2, c1 - c2))


def shuffled(
    picture: Image.Image, rows: int, cols: int, order: tuple[int, ...], mask: float = 0.0
) -> Image.Image:
    """The image (cropped to a multiple of the grid) with its pieces in the given order; `mask` blackens that
    share of each piece's border."""
    width, height = picture.width // cols, picture.height // rows
    shown = Image.new("RGB", (width * cols, height * rows))
    border = (round(width * mask / 2), round(height * mask / 2))
    for place, original in enumerate(order):
        left, top = (original - 1) % cols * width, (original - 1) // cols * height
        part = picture.crop((left, top, left + width, top + height))
        if mask:
            inner = part.crop((border[0], border[1], width - border[0], height - border[1]))
            part = Image.new("RGB", part.size)
            part.paste(inner, border)
        shown.paste(part, (place % cols * width, place // cols * height))
    return shown


def draw(
    reference: Reference,
    rows: int,
    cols: int,
    piece: int,
    order: tuple[int, ...],
    mask: float,
    place: tuple[float, float],
    share: float,
) -> Image.Image:
    """Recipe: a puzzle over a part of an image, or over all of it (`piece` 0)."""
    if not piece:
        return shuffled(open_reference(reference), rows, cols, order, mask)
    return shuffled(fitted(reference, cols * piece, rows * piece, place, share), rows, cols, order, mask)


def draw_medium(medium: Media, rows: int, cols: int, order: tuple[int, ...]) -> Image.Image:
    """Recipe: a puzzle over a whole image of a dataset."""
    loaded = medium.load()
    assert isinstance(loaded, Image.Image), loaded
    return shuffled(loaded, rows, cols, order)


def ask(
    puzzle: Puzzle, kind: str, rng: random.Random, piece: tuple[int, int], choices: int = 4
) -> dict[str, Any]:
    """Question, answer and choices of a puzzle, as fields of a row. `piece` is (width, height) in pixels, for
    the box kind."""
    count = puzzle.rows * puzzle.cols
    head = (
        f"The picture was cut into {puzzle.rows} x {puzzle.cols} pieces (rows x columns), numbered row by "
        "row from 1, and the pieces were shuffled. "
    )
    table = {
        "full": _full,
        "backward": _backward,
        "single": _single,
        "pair": _pair,
        "multiple": _multiple,
        "box": _box,
    }
    fields = table[kind](puzzle, rng, piece, choices, count)
    meta = {
        "rows": puzzle.rows,
        "cols": puzzle.cols,
        "order": list(puzzle.order),
        "question_type": kind,
    } | fields.pop("meta", {})
    return fields | {"question": head + fields["question"], "meta": meta}


def _full(
    puzzle: Puzzle, rng: random.Random, piece: tuple[int, int], choices: int, count: int
) -> dict[str, Any]:
    return {
        "question": "For each place, row by row, give the original number of the piece shown there.",
        "answer": list(puzzle.order),
    }


def _backward(
    puzzle: Puzzle, rng: random.Random, piece: tuple[int, int], choices: int, count: int
) -> dict[str, Any]:
    return {
        "question": "For each original number, in order, give the place where that piece is shown.",
        "answer": puzzle.backward,
    }


def _single(
    puzzle: Puzzle, rng: random.Random, piece: tuple[int, int], choices: int, count: int
) -> dict[str, Any]:
    place = rng.randint(1, count)
    question = f"What is the original number of the piece shown at place {place}?"
    return {"question": question, "answer": str(puzzle.order[place - 1]), "meta": {"answer_type": "digit"}}


def _pair(
    puzzle: Puzzle, rng: random.Random, piece: tuple[int, int], choices: int, count: int
) -> dict[str, Any]:
    places = [
        (a, b) for a in range(1, count + 1) for b in range(1, count + 1) if a != b and puzzle.relation(a, b)
    ]
    first, second = rng.choice(places)
    flat = (
        [(0, -1), (0, 1)] if puzzle.rows == 1 else [(-1, 0), (1, 0)] if puzzle.cols == 1 else list(RELATIONS)
    )
    relations = [RELATIONS[step] for step in flat]
    answer = LETTERS[relations.index(str(puzzle.relation(first, second)))]
    question = (
        f"In the original picture, the piece shown at place {first} is ... the piece shown at place {second}."
    )
    return {
        "question": question,
        "answer": answer,
        "choices": tuple(relations),
        "meta": {"answer_type": "letter"},
    }


def _multiple(
    puzzle: Puzzle, rng: random.Random, piece: tuple[int, int], choices: int, count: int
) -> dict[str, Any]:
    wrong: set[tuple[int, ...]] = set()
    most = 1
    for i in range(2, count + 1):
        most *= i
    while len(wrong) < min(choices, most) - 1:
        other = rng.sample(range(1, count + 1), count)
        if tuple(other) != puzzle.order:
            wrong.add(tuple(other))
    options = [puzzle.order, *sorted(wrong)]
    rng.shuffle(options)
    question = "Which list gives, place by place, the original number of the piece shown there?"
    texts = tuple(" ".join(map(str, option)) for option in options)
    return {
        "question": question,
        "answer": LETTERS[options.index(puzzle.order)],
        "choices": texts,
        "meta": {"answer_type": "letter"},
    }


def _box(
    puzzle: Puzzle, rng: random.Random, piece: tuple[int, int], choices: int, count: int
) -> dict[str, Any]:
    wanted = rng.randint(1, count)
    row, col = divmod(puzzle.place_of(wanted) - 1, puzzle.cols)
    width, height = piece
    box = [col * width, row * height, (col + 1) * width, (row + 1) * height]
    question = (
        f"Where is the piece with original number {wanted} shown? Answer with its box [x1, y1, x2, y2]."
    )
    return {"question": question, "answer": box, "meta": {"answer_type": "box", **IN_PIXELS}}


def random_order(rng: random.Random, count: int) -> tuple[int, ...]:
    """A random order of 1..count; all orders are equally likely."""
    return tuple(rng.sample(range(1, count + 1), count))


@register("gen_jigsaw")
@dataclass(frozen=True, kw_only=True)
class GenJigsaw(GeneratedFromImages):
    """Jigsaw-R1's questions (full, backward, pair, single, multiple, box; several: at random) over `rows` x
    `cols` pieces of `piece` pixels.

    Paper: Wang et al. 2025, arXiv:2505.23590, sec. 3. Rewards: `jigsaw` (full, backward), `jigsaw_question`
    (the others); tasks jigsaw and jigsaw_question. `mask` blackens that share of each piece's border.
    Deviates: `box` asks for the place of a piece (the release marks a pair that was swapped); crops are
    random, so that each image is used more than once.
    """

    ask: tuple[str, ...] = ("full",)
    rows: int = 2
    cols: int = 2
    piece: int = 56
    mask: float = 0.0
    choices: int = 4
    turned: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind in self.ask:
            if kind not in KINDS:
                raise ConfigError(f"ask: {kind!r} is unknown. Known: {', '.join(KINDS)}.")
        if self.rows * self.cols < 2 or not 0 <= self.mask < 1 or not 2 <= self.choices <= 8:
            raise ConfigError(
                f"rows={self.rows}, cols={self.cols}, mask={self.mask}, choices={self.choices}: at least 2 "
                "pieces, mask in [0, 1), choices 2-8"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        kind = rng.choice(self.ask)
        reference = identity(self.references(rng)[0])
        rows, cols = self.rows, self.cols
        if self.turned and rng.random() < 0.5:
            rows, cols = cols, rows
        puzzle = Puzzle(rows, cols, random_order(rng, rows * cols))
        args = (
            reference,
            rows,
            cols,
            self.piece,
            puzzle.order,
            self.mask,
            (rng.random(), rng.random()),
            rng.uniform(0.6, 1),
        )
        piece = (self.piece, self.piece)
        if not self.piece and kind == "box":
            width, height = open_reference(reference).size
            piece = (width // cols, height // rows)
        fields = ask(puzzle, kind, rng, piece, self.choices)
        answer = fields["answer"]
        target = " ".join(map(str, answer)) if kind in ("full", "backward") else str(answer)
        task = "jigsaw" if kind in ("full", "backward") else "jigsaw_question"
        return Row(
            self.id(index),
            images=(GeneratedImage(draw, args),),
            task=task,
            target=tagged_answer(target),
            **fields,
        )
