"""Rewards for sequences of steps: plans, paths through a maze, lists of verdicts, the order of a chain of thought."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.registry import register
from vlrl_rewards.classification import normal_label
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged
from vlrl_rewards.labels import read_labels
from vlrl_rewards.loose import find_values

_MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_MOVE_NAMES = {
    **{name: name for name in _MOVES},
    **{"u": "up", "d": "down", "l": "left", "r": "right", "north": "up", "south": "down", "west": "left", "east": "right"},
    **{"n": "up", "s": "down", "w": "left", "e": "right", "↑": "up", "↓": "down", "←": "left", "→": "right"},
}
_MOVE_WORD = re.compile(r"[A-Za-z]{1,20}|[↑↓←→]")
_STEP_MARK = re.compile(r"^\s{0,9}(?:[0-9]{1,3}[.):]|[-*•])\s{1,4}", re.MULTILINE)
_MOVE_TEXT = re.compile(r"[\sA-Za-z↑↓←→,;.\[\]()\"'`>\-]{1,4000}")
Cell = tuple[int, int]


def read_moves(text: str) -> list[str] | None:
    """Moves of "up, right", "URDL", "→↓", ["up", "right"], one a line; None if there is anything else in the text. Arrows between words are links."""
    text = _STEP_MARK.sub("", text[:8000])
    text = text.replace("→", " ") if re.search(r"[A-Za-z]", text) else text
    if not _MOVE_TEXT.fullmatch(text):
        return None
    words = [w.lower() for w in _MOVE_WORD.findall(text.replace("->", " "))]
    if len(words) == 1 and words[0] not in _MOVE_NAMES:
        words = list(words[0]) if set(words[0]) <= set("udlr") else words
    return [_MOVE_NAMES[w] for w in words] if words and all(w in _MOVE_NAMES for w in words) else None


def distances(grid: Sequence[str], goal: Cell) -> dict[Cell, int]:
    """Steps to the goal from every cell that can reach it."""
    found, queue = {goal: 0}, deque([goal])
    while queue:
        row, column = queue.popleft()
        for dr, dc in _MOVES.values():
            cell = (row + dr, column + dc)
            if 0 <= cell[0] < len(grid) and 0 <= cell[1] < len(grid[cell[0]]) and grid[cell[0]][cell[1]] != "#" and cell not in found:
                found[cell] = found[row, column] + 1
                queue.append(cell)
    return found


@judged("maze")
@register("maze")
@dataclass(frozen=True, kw_only=True)
class Maze(Graded):
    """reach: 1[the moves end on the goal and cross no wall];  progress: the same, else 0.5 (1 - distance left / distance at the start), at least 0.

    Paper: Ariadne, arXiv:2511.00710 (reward 1 for a valid path to the goal); "progress" is vlrl original.
    Deviates: none known. Edge: an unknown word among the moves, or more than 4 moves per cell: 0; a wall or the border ends the walk: "reach" gives
    0,
    "progress" what was left there. Range [0, 1]. Gold: rows of text, "#" wall, "S" start, "G" goal: ["S.#", "..G"], or one text with line breaks.
    """

    mode: Literal["reach", "progress"] = "reach"

    def target(self, gold: Any, scene: Scene) -> tuple[list[str], Cell, dict[Cell, int]]:
        rows = [r for r in gold.split("\n") if r] if isinstance(gold, str) else list(gold) if isinstance(gold, (list, tuple)) else []
        marks = {c: [(i, j) for i, row in enumerate(rows) for j, x in enumerate(row) if x == c] for c in "SG"}
        reach = distances(rows, marks["G"][0]) if len(marks["G"]) == 1 else {}
        if len(marks["S"]) != 1 or marks["S"][0] not in reach:
            raise ValueError(f"answer: the maze {gold!r:.200} needs one S and one G, and a way between them; rows like 'S.#', '..G'")
        return rows, marks["S"][0], reach

    def grade(self, target: tuple[list[str], Cell, dict[Cell, int]], answer: Answer, scene: Scene) -> Grade:
        rows, start, reach = target
        moves = read_moves(answer.text)
        if moves is None or len(moves) > 4 * sum(map(len, rows)):
            return self.refuse("not a list of moves" if moves is None else "too many moves")
        cell, crashed = start, False
        for move in moves:
            step = (cell[0] + _MOVES[move][0], cell[1] + _MOVES[move][1])
            if step not in reach:
                crashed = True
                break
            cell = step
        there = reach[cell] == 0 and not crashed
        part = 0.5 * max(0.0, 1 - reach[cell] / reach[start]) if self.mode == "progress" else 0.0
        return Grade(1.0 if there else part, there, "crashed" if crashed else f"{reach[cell]} steps left", " ".join(moves)[:200])


@judged("plan")
@register("plan")
@dataclass(frozen=True, kw_only=True)
class Plan(Graded):
    """r = n (n + 1) / (N (N + 1)) - extra 1[steps after a whole right plan], n the length of the right prefix of the N gold steps; at least 0.

    Paper: Reinforced Reasoning for Embodied Planning, arXiv:2505.22050 (the accuracy reward as released; `extra` 0.25 there for plans of one step
    only).
    Deviates: `extra` applies to plans of any length; the format parts of the release are rewards of their own.
    Edge: no list of steps, or an empty one: 0. Range [0, 1]. Steps: texts, or objects with action_id / action_name, in a JSON list, in
    {"executable_plan": [...]}, or one a line. Units: steps.
    """

    extra: float = 0.25

    def steps(self, value: Any) -> list[str]:
        """Steps as comparable texts: the name, else the id, of each."""
        if isinstance(value, Mapping):
            value = next((v for k in ("executable_plan", "plan", "steps", "actions") if isinstance(v := value.get(k), (list, tuple))), [])
        if not isinstance(value, (list, tuple)):
            return []
        texts = [next((s[k] for k in ("action_name", "name", "action", "action_id") if k in s), "") if isinstance(s, Mapping) else s for s in value]
        return [normal_label(str(t)) for t in texts]

    def target(self, gold: Any, scene: Scene) -> list[str]:
        steps = self.steps([line for line in gold.split("\n") if line.strip()] if isinstance(gold, str) else gold)
        if not steps or not all(steps):
            raise ValueError(f"answer: the gold plan {gold!r:.200} has no steps, or an empty one")
        return steps

    def grade(self, target: list[str], answer: Answer, scene: Scene) -> Grade:
        values = [f.value for f in find_values(answer.text)]
        steps = self.steps(values[0]) if len(values) == 1 and values[0] else read_labels(answer.text.replace(",", "\n")) if not values else []
        prefix = next((i for i, (a, b) in enumerate(zip(steps, target, strict=False)) if a != b), min(len(steps), len(target)))
        share = prefix * (prefix + 1) / (len(target) * (len(target) + 1))
        over = prefix == len(target) < len(steps)
        return Grade(max(0.0, share - self.extra * over), steps == target, f"{prefix} of {len(target)} steps right")


@judged("true_false")
@register("true_false")
@dataclass(frozen=True, kw_only=True)
class TrueFalse(Graded):
    """exact: 1[all verdicts right];  share: share of right verdicts, for a list of yes / no verdicts such as "T F F".

    Paper: MiCo, arXiv:2506.22434 (same or different for each pair of pictures; exact match). Edge: another number of verdicts, or any other word: 0.
    Range [0, 1]. Words: T / true / yes / same, F / false / no / different.
    """

    mode: Literal["exact", "share"] = "exact"

    def read(self, text: str) -> list[bool] | None:
        """The verdicts, or None if there is any other word."""
        words = re.findall(r"[A-Za-z]{1,12}", text[:2000].casefold())
        if len(words) == 1 and len(words[0]) > 1 and set(words[0]) <= {"t", "f"}:
            words = list(words[0])
        meaning = {**dict.fromkeys(("t", "true", "yes", "same"), True), **dict.fromkeys(("f", "false", "no", "different"), False)}
        return [meaning[w] for w in words] if words and all(w in meaning for w in words) else None

    def target(self, gold: Any, scene: Scene) -> list[bool]:
        verdicts = self.read(" ".join(map(str, gold)) if isinstance(gold, (list, tuple)) else str(gold))
        if not verdicts:
            raise ValueError(f"answer: {gold!r} is not a list of verdicts such as 'T F F'")
        return verdicts

    def grade(self, target: list[bool], answer: Answer, scene: Scene) -> Grade:
        said = self.read(answer.text)
        if said is None or len(said) != len(target):
            return self.refuse("not a list of that many verdicts")
        right = sum(a == b for a, b in zip(said, target, strict=True))
        exact = right == len(target)
        return Grade(float(exact) if self.mode == "exact" else right / len(target), exact, f"{right} of {len(target)}")


def bag_f1(a: str, b: str) -> float:
    """F1 of two bags of words."""
    mine, theirs = Counter(a.split()), Counter(b.split())
    common = sum((mine & theirs).values())
    return 2 * common / (sum(mine.values()) + sum(theirs.values())) if common else 0.0


def alignment(steps: Sequence[str], states: Sequence[str]) -> float:
    """Mean similarity of the best alignment that takes the states in order; steps may be skipped or used twice. In [0, 1]."""
    best = [0.0] * len(steps)
    for state in states:
        reached, running = [], 0.0
        for i, step in enumerate(steps):
            running = max(running, best[i])
            reached.append(running + bag_f1(step, state))
        best = reached
    return max(best, default=0.0) / len(states)
