"""Maze reward: a list of moves from the start to the goal."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier

_MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_MOVE_NAMES = {
    **{name: name for name in _MOVES},
    **{
        "u": "up",
        "d": "down",
        "l": "left",
        "r": "right",
        "north": "up",
        "south": "down",
        "west": "left",
        "east": "right",
    },
    **{"n": "up", "s": "down", "w": "left", "e": "right", "↑": "up", "↓": "down", "←": "left", "→": "right"},
}
_MOVE_WORD = re.compile(r"[A-Za-z]{1,20}|[↑↓←→]")
_STEP_MARK = re.compile(r"^\s{0,9}(?:[0-9]{1,3}[.):]|[-*•])\s{1,4}", re.MULTILINE)
_MOVE_TEXT = re.compile(r"[\sA-Za-z↑↓←→,;.\[\]()\"'`>\-]{1,4000}")
Cell = tuple[int, int]


def read_moves(text: str) -> list[str] | None:
    """The moves of "up, right", "URDL", "→↓", ["up", "right"] or one per line; None if the text contains
    anything else.

    Arrows between words are separators. Only the first 8,000 characters are read; a list of more than 4,000
    characters is none.
    """
    text = _STEP_MARK.sub("", text[:8000])
    text = text.replace("→", " ") if re.search(r"[A-Za-z]", text) else text
    if not _MOVE_TEXT.fullmatch(text):
        return None
    words = [w.lower() for w in _MOVE_WORD.findall(text.replace("->", " "))]
    if len(words) == 1 and words[0] not in _MOVE_NAMES:
        words = list(words[0]) if set(words[0]) <= set("udlr") else words
    return [_MOVE_NAMES[w] for w in words] if words and all(w in _MOVE_NAMES for w in words) else None


def distances(grid: Sequence[str], goal: Cell) -> dict[Cell, int]:
    """{cell: number of steps to the goal} for every cell that can reach it."""
    found, queue = {goal: 0}, deque([goal])
    while queue:
        row, column = queue.popleft()
        for dr, dc in _MOVES.values():
            cell = (row + dr, column + dc)
            if (
                0 <= cell[0] < len(grid)
                and 0 <= cell[1] < len(grid[cell[0]])
                and grid[cell[0]][cell[1]] != "#"
                and cell not in found
            ):
                found[cell] = found[row, column] + 1
                queue.append(cell)
    return found


@verifier("maze")
@register("maze")
@dataclass(frozen=True, kw_only=True)
class Maze(Graded):
    """Maze navigation reward: whether the moves lead from the start to the goal.

        reach: r = 1[the moves end on the goal and hit no wall];
        progress: r = 1 in that case, else max(0, 0.5 (1 - remaining distance / distance at the start))

    Paper: Ariadne, arXiv:2511.00710 (reward 1 for a valid path to the goal); "progress" is vlrl original.
    Gold: rows of text with "#" wall, "S" start, "G" goal, such as ["S.#", "..G"], or one text with line
    breaks.
    Edge: another word among the moves, or more than 4 moves per cell: 0. The walk ends at a wall or the
    border: "reach" scores 0, "progress" the distance from there. Range [0, 1].
    """

    mode: Literal["reach", "progress"] = "reach"

    def target(self, gold: Any, row: Row) -> tuple[list[str], Cell, dict[Cell, int]]:
        rows = (
            [r for r in gold.split("\n") if r]
            if isinstance(gold, str)
            else list(gold)
            if isinstance(gold, (list, tuple))
            else []
        )
        if not rows or not all(isinstance(row, str) for row in rows):
            raise GoldError(
                f"answer: the maze {gold!r:.200} is not a list of texts; give rows such as ['S.#', '..G'], "
                "or one text with line breaks"
            )
        marks = {c: [(i, j) for i, row in enumerate(rows) for j, x in enumerate(row) if x == c] for c in "SG"}
        reach = distances(rows, marks["G"][0]) if len(marks["G"]) == 1 else {}
        if len(marks["S"]) != 1 or marks["S"][0] not in reach:
            raise GoldError(
                f"answer: the maze {gold!r:.200} needs one S, one G and a path between them, in rows such "
                "as 'S.#', '..G'"
            )
        return rows, marks["S"][0], reach

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = self.target(gold, row)
        answer = self.committed(response)
        rows, start, reach = target
        moves = read_moves(answer.text)
        if moves is None or len(moves) > 4 * sum(map(len, rows)):
            raise Unread("not a list of moves" if moves is None else "too many moves", answer)
        cell, crashed = start, False
        for move in moves:
            step = (cell[0] + _MOVES[move][0], cell[1] + _MOVES[move][1])
            if step not in reach:
                crashed = True
                break
            cell = step
        reached = reach[cell] == 0 and not crashed
        part = 0.5 * max(0.0, 1 - reach[cell] / reach[start]) if self.mode == "progress" else 0.0
        return self.scored(
            answer,
            1.0 if reached else part,
            reached,
            "crashed" if crashed else f"{reach[cell]} steps left",
            " ".join(moves)[:200],
        )
