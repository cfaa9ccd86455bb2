"""Mazes whose shortest path has a given length and number of turns (Ariadne)."""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import dataclass

from PIL import Image, ImageDraw

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer
from vlrl_data.media.images import GeneratedImage

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
WORDS = {"U": "up", "D": "down", "L": "left", "R": "right"}
Cell = tuple[int, int]


def carve(rng: random.Random, side: int) -> list[list[str]]:
    """A maze without loops on an odd grid: "." floor, "#" wall (depth-first carving)."""
    grid = [["#"] * side for _ in range(side)]
    stack = [(rng.randrange(1, side, 2), rng.randrange(1, side, 2))]
    grid[stack[0][0]][stack[0][1]] = "."
    while stack:
        row, col = stack[-1]
        near = [
            (dr, dc)
            for dr, dc in MOVES.values()
            if 0 < row + 2 * dr < side and 0 < col + 2 * dc < side and grid[row + 2 * dr][col + 2 * dc] == "#"
        ]
        if not near:
            stack.pop()
            continue
        dr, dc = rng.choice(near)
        grid[row + dr][col + dc] = grid[row + 2 * dr][col + 2 * dc] = "."
        stack.append((row + 2 * dr, col + 2 * dc))
    return grid


def shortest_moves(grid: list[list[str]], start: Cell) -> dict[Cell, str]:
    """The shortest moves from `start` to every cell that can be reached."""
    found, queue = {start: ""}, deque([start])
    while queue:
        row, col = queue.popleft()
        for name, (dr, dc) in MOVES.items():
            cell = (row + dr, col + dc)
            if (
                cell not in found
                and 0 <= cell[0] < len(grid)
                and 0 <= cell[1] < len(grid[0])
                and grid[cell[0]][cell[1]] != "#"
            ):
                found[cell] = found[row, col] + name
                queue.append(cell)
    return found


def turns(moves: str) -> int:
    """The number of changes of direction."""
    return sum(a != b for a, b in itertools.pairwise(moves))


def draw_maze(rows: tuple[str, ...], cell: int) -> Image.Image:
    """Walls dark, floor white, start blue, goal green."""
    image = Image.new("RGB", (len(rows[0]) * cell, len(rows) * cell), "white")
    pen = ImageDraw.Draw(image)
    colours = {"#": (40, 40, 40), "S": (50, 80, 220), "G": (40, 160, 60)}
    for i, row in enumerate(rows):
        for j, mark in enumerate(row):
            if mark in colours:
                pen.rectangle(
                    (j * cell, i * cell, (j + 1) * cell - 1, (i + 1) * cell - 1), fill=colours[mark]
                )
    return image


@register("gen_maze")
@dataclass(frozen=True, kw_only=True)
class GenMaze(GeneratedSource):
    """Find a path through a maze of `side` x `side` cells whose shortest path has `length` = [low, high]
    steps and `turns` = [low, high] turns.

    Paper: Ariadne, arXiv:2511.00710 (length and turns as difficulty; its curriculum is a list of phases with
    other ranges). Reward: `maze`, which follows the moves; the gold answer is the maze itself, as rows of
    text. Shown as an image (`cell` pixels a cell), or as text with `text`.
    """

    side: int = 7
    cell: int = 12
    length: tuple[int, int] = (2, 8)
    turns: tuple[int, int] = (0, 20)
    text: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side < 5 or self.side % 2 == 0:
            raise ConfigError(f"side: {self.side} must be odd and at least 5")
        if not 1 <= self.length[0] <= self.length[1] or not 0 <= self.turns[0] <= self.turns[1]:
            raise ConfigError(f"length={self.length}, turns={self.turns}: give [low, high] with low <= high")

    def row(self, index: int) -> Row:
        rows, moves = self._maze(self.rng(index))
        media = () if self.text else (GeneratedImage(draw_maze, (rows, self.cell)),)
        shown = "\n".join(rows) + "\n" if self.text else ""
        where = "from S to G" if self.text else "from blue to green"
        question = f"{shown}Find a way {where}. Answer with moves: U, D, L, R."
        meta = {"length": len(moves), "turns": turns(moves)}
        return Row(
            self.id(index),
            question,
            list(rows),
            images=media,
            task="maze",
            target=tagged_answer(" ".join(moves)),
            meta=meta,
        )

    def _maze(self, rng: random.Random) -> tuple[tuple[str, ...], str]:
        for _ in range(500):
            grid = carve(rng, self.side)
            start = rng.choice(
                [(i, j) for i, row in enumerate(grid) for j, mark in enumerate(row) if mark == "."]
            )
            fits = [
                (cell, moves)
                for cell, moves in shortest_moves(grid, start).items()
                if self.length[0] <= len(moves) <= self.length[1]
                and self.turns[0] <= turns(moves) <= self.turns[1]
            ]
            if fits:
                goal, moves = rng.choice(fits)
                grid[start[0]][start[1]], grid[goal[0]][goal[1]] = "S", "G"
                return tuple("".join(row) for row in grid), moves
        raise ConfigError(
            f"no maze of side {self.side} has a shortest path of length {self.length} with {self.turns} "
            "turns; widen them or raise `side`"
        )
