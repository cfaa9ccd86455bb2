"""Puzzles of reasoning_gym with several right answers: an answer is played through by the rules of its
puzzle. Checks are as in `readers`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vlrl_rewards.gym.readers import as_json, listed

MAX_MOVES = 2000
_HANOI_MOVE = re.compile(
    r"(?:\d+[.)]\s*)?move disk (\d{1,3}) from peg (\d{1,3}) to peg (\d{1,3})\.?", re.IGNORECASE
)
_JUG_MOVE = re.compile(r"(?:(fill|empty) ([A-Z])|(pour) ([A-Z])\s*->\s*([A-Z]))")
_CAR_MOVES = re.compile(r"\s*(?:[A-Z][+-]\d\s*(?:,\s*)?)+")
_BUTTONS = re.compile(r"[A-Z](?:(?:\s*(?:→|->|,)\s*|\s+)[A-Z])*", re.IGNORECASE)
_BOX_MOVE = re.compile(r"move\((box_\w{1,40}), ?(?:square\[([\d., ]{1,40})\]|(target_\w{1,40}))\)")
_DIRECTIONS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_SOKOBAN = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

Kept = Mapping[str, Any]


def hanoi(gold: str, said: str, kept: Kept) -> bool:
    """Moves, one a line, that bring all disks to the target peg by the rules, in no more moves than the
    shortest solution."""
    pegs: dict[int, list[int]] = {peg: [] for peg in range(1, int(kept["num_pegs"]) + 1)}
    tower = list(range(int(kept["num_disks"]), 0, -1))
    pegs[int(kept["start_peg"])] = list(tower)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if len(lines) > int(kept["solution_length"]):
        return False
    for line in lines:
        match = _HANOI_MOVE.fullmatch(line)
        disk, start, end = map(int, match.groups()) if match else (0, 0, 0)
        if (
            start not in pegs
            or end not in pegs
            or pegs[start][-1:] != [disk]
            or (pegs[end] and pegs[end][-1] < disk)
        ):
            return False
        pegs[end].append(pegs[start].pop())
    return pegs[int(kept["target_peg"])] == tower


def jugs(gold: str, said: str, kept: Kept) -> bool:
    """A JSON list of moves ("fill A", "empty A", "pour A->B") after which a jug holds the target."""
    capacities, target = kept["puzzle"]["jug_capacities"], kept["puzzle"]["target"]
    state, moves = [0] * len(capacities), as_json(said)
    if not isinstance(moves, list) or not moves or len(moves) > MAX_MOVES:
        return False
    for move in moves:
        match = _JUG_MOVE.fullmatch(move) if isinstance(move, str) else None
        places = (
            [_LETTERS.index(letter) for letter in (match[2], match[4], match[5]) if letter] if match else []
        )
        if match is None or max(places) >= len(state):
            return False
        if match[3]:
            source, end = places
            amount = min(state[source], capacities[end] - state[end])
            state[source] -= amount
            state[end] += amount
        else:
            state[places[0]] = capacities[places[0]] if match[1] == "fill" else 0
    return target in state


def graph_colouring(gold: str, said: str, kept: Kept) -> bool:
    """A JSON object with an allowed colour for every vertex, different at both ends of each edge."""
    colours, puzzle = as_json(said), kept["puzzle"]
    vertices = {str(vertex) for vertex in puzzle["vertices"]}
    if not isinstance(colours, dict) or set(colours) != vertices:
        return False
    allowed = all(type(colour) is int and colour in puzzle["color_options"] for colour in colours.values())
    return allowed and all(colours[str(a)] != colours[str(b)] for a, b in puzzle["edges"])


def cryptarithm(gold: str, said: str, kept: Kept) -> bool:
    """ "A=1,B=2,C=3": a digit of its own for every letter, no leading zero, and a sum that holds."""
    words, result = [*kept["words_letters"]], str(kept["result_letters"])
    pairs = [re.fullmatch(r"\s*([A-Z])\s*=\s*(\d)\s*", pair) for pair in said.split(",")]
    values = {pair[1]: pair[2] for pair in pairs if pair}
    if (
        len(values) != len(pairs)
        or len(set(values.values())) != len(values)
        or set(values) != set("".join([*words, result]))
    ):
        return False
    if not kept.get("allow_leading_zero") and any(values[word[0]] == "0" for word in [*words, result]):
        return False
    numbers = [int("".join(values[letter] for letter in word)) for word in [*words, result]]
    return sum(numbers[:-1]) == numbers[-1]


def shortest_path(gold: str, said: str, kept: Kept) -> bool:
    """Directions from * to # over free cells, as many as the shortest path has; "infeasible" where there is
    none."""
    steps, grid = said.lower().replace(",", " ").split(), kept["matrix"]
    if gold.strip() == "infeasible" or steps == ["infeasible"]:
        return steps == gold.split()
    if len(steps) != len(gold.split()) or not set(steps) <= set(_DIRECTIONS):
        return False
    row, column = next((r, c) for r, line in enumerate(grid) for c, cell in enumerate(line) if cell == "*")
    for step in steps:
        row, column = row + _DIRECTIONS[step][0], column + _DIRECTIONS[step][1]
        if not (0 <= row < len(grid) and 0 <= column < len(grid[0])) or grid[row][column] == "X":
            return False
    return grid[row][column] == "#"


def queens(gold: str, said: str, kept: Kept) -> bool:
    """A board of _ and Q that keeps the given queens and has one in every row and column, none attacking
    another."""
    board, cells = kept["puzzle"], listed(said.upper())
    size = len(board)
    if len(cells) != size * size or not set(cells) <= {"_", "Q"}:
        return False
    placed = [divmod(place, size) for place, cell in enumerate(cells) if cell == "Q"]
    given = all(cells[r * size + c] == "Q" for r in range(size) for c in range(size) if board[r][c] == "Q")
    lines = [
        {r for r, _ in placed},
        {c for _, c in placed},
        {r + c for r, c in placed},
        {r - c for r, c in placed},
    ]
    return given and len(placed) == size and all(len(line) == size for line in lines)


def kakurasu(gold: str, said: str, kept: Kept) -> bool:
    """A grid of 0 and 1 whose rows and columns, weighted by position from 1, have the given sums."""
    cells, rows, columns = listed(said), int(kept["n_rows"]), int(kept["n_cols"])
    if len(cells) != rows * columns or not set(cells) <= {"0", "1"}:
        return False
    grid = [[int(cell) for cell in cells[r * columns : (r + 1) * columns]] for r in range(rows)]
    across = [sum(c + 1 for c in range(columns) if grid[r][c]) for r in range(rows)]
    down = [sum(r + 1 for r in range(rows) if grid[r][c]) for c in range(columns)]
    return across == list(kept["row_sums"]) and down == list(kept["col_sums"])


def quantum_lock(gold: str, said: str, kept: Kept) -> bool:
    """Buttons that reach the target value, no more of them than the shortest sequence has. A button that its
    light forbids does nothing."""
    buttons = {str(button["name"]): button for button in kept["buttons"]}
    pressed = re.findall("[A-Z]", said.upper()) if _BUTTONS.fullmatch(said.strip()) else []
    if not 0 < len(pressed) <= len(re.findall("[A-Z]", gold)) or not set(pressed) <= set(buttons):
        return False
    value, light = kept["initial_value"], kept["initial_state"]
    for name in pressed:
        button = buttons[name]
        if button["active_state"] in (light, "any"):
            amount = button["value"]
            value = {"add": value + amount, "subtract": value - amount, "multiply": value * amount}[
                button["type"]
            ]
            light = "green" if light == "red" else "red"
    return value == kept["target_value"]


def sokoban(gold: str, said: str, kept: Kept) -> bool:
    """Moves U, D, L, R after which every goal holds a box. A move into a wall or a blocked box does
    nothing."""
    grid = [line.split() for line in str(kept["gamestr"]).splitlines() if line.strip()]
    moves = "".join(said.split())
    if not 0 < len(moves) <= MAX_MOVES or not set(moves) <= set(_SOKOBAN):
        return False
    cells = [((r, c), cell) for r, line in enumerate(grid) for c, cell in enumerate(line)]
    walls, goals = {at for at, cell in cells if cell == "+"}, {at for at, cell in cells if cell in "X$%"}
    boxes, (row, column) = (
        {at for at, cell in cells if cell in "@$"},
        next(at for at, cell in cells if cell in "*%"),
    )
    for move in moves:
        down, right = _SOKOBAN[move]
        ahead, behind = (row + down, column + right), (row + 2 * down, column + 2 * right)
        if ahead in walls or (ahead in boxes and (behind in walls or behind in boxes)):
            continue
        if ahead in boxes:
            boxes = (boxes - {ahead}) | {behind}
        row, column = ahead
    return goals == boxes


def knight_swap(gold: str, said: str, kept: Kept) -> bool:
    """A JSON list of moves "color,from,to", the colours in turn, after which white and black knights have
    swapped places, no more than the gold has; "No" where that is impossible."""
    if not kept["is_possible"]:
        return said.strip().lower() == "no"
    moves, pieces, turn = as_json(said), dict(kept["pieces"]), kept["start_turn"]
    if (
        not isinstance(moves, list)
        or len(moves) > len(as_json(gold))
        or not all(isinstance(move, str) for move in moves)
    ):
        return False
    for move in moves:
        parts = [part.strip() for part in move.split(",")]
        if (
            len(parts) != 3
            or parts[0] != turn
            or pieces.get(parts[1]) != turn
            or parts[2] not in kept["board"][parts[1]]
        ):
            return False
        if pieces[parts[2]] is not None:
            return False
        pieces[parts[1]], pieces[parts[2]] = None, turn
        turn = "B" if turn == "w" else "w"
    swapped = {"w": "B", "B": "w", None: None}
    return all(pieces[square] == swapped[piece] for square, piece in kept["pieces"].items())


def rush_hour(gold: str, said: str, kept: Kept) -> bool:
    """Moves "F+1 K-2": each car goes as far as stated along its own direction through free cells; at the end
    A touches the right side."""
    text = str(kept["board_config"])
    side = int(len(text) ** 0.5)
    cars: dict[str, list[tuple[int, int]]] = {}
    for place, cell in enumerate(text):
        cars.setdefault(cell, []).append(divmod(place, side))
    if not _CAR_MOVES.fullmatch(said) or len(said) > 10 * MAX_MOVES:
        return False
    free = set(cars.pop("o", [])) | set(cars.pop(".", []))
    cars.pop("x", None)
    for name, distance in re.findall(r"([A-Z])([+-]\d)", said):
        if name not in cars:
            return False
        down, right = (0, 1) if cars[name][0][0] == cars[name][-1][0] else (1, 0)
        sign = 1 if int(distance) > 0 else -1
        for _ in range(abs(int(distance))):
            moved = [(r + sign * down, c + sign * right) for r, c in cars[name]]
            if not set(moved) <= free | set(cars[name]):
                return False
            free, cars[name] = (free | set(cars[name])) - set(moved), moved
    return cars["A"][-1][1] == side - 1


def boxnet(gold: str, said: str, kept: Kept) -> bool:
    """A JSON list of plans {"Agent[x, y]": "move(box_red, square[x, y])"} that brings every box to the target
    of its colour.

    A box moves to a square one step away, or onto a target in its own square. Every action must be possible
    at its time.
    """
    squares = {square: list(things) for square, things in kept["initial_state"].items()}
    plans = as_json(said)
    if (
        not isinstance(plans, list)
        or len(plans) > MAX_MOVES
        or not all(isinstance(plan, dict) for plan in plans)
    ):
        return False
    for agent, action in itertools.chain.from_iterable(plan.items() for plan in plans):
        match = _BOX_MOVE.fullmatch(action) if isinstance(action, str) else None
        here = _square(agent)
        if match is None or here is None or match[1] not in squares.get(_named(here), ()):
            return False
        box, things = match[1], squares[_named(here)]
        there = _square(match[2]) if match[2] else None
        if there is not None:
            if abs(here[0] - there[0]) + abs(here[1] - there[1]) != 1 or _named(there) not in squares:
                return False
            squares[_named(there)].append(box)
        elif match[3] != box.replace("box_", "target_", 1) or match[3] not in things:
            return False
        else:
            things.remove(match[3])
        things.remove(box)
    return not any(thing.startswith("box_") for things in squares.values() for thing in things)


def _square(text: str) -> tuple[float, float] | None:
    numbers = re.findall(r"\d{1,6}(?:\.\d{1,6})?", text)
    return (float(numbers[0]), float(numbers[1])) if len(numbers) == 2 else None


def _named(square: Sequence[float]) -> str:
    return f"{square[0]}_{square[1]}"


def palindrome(gold: str, said: str, kept: Kept) -> bool:
    """A word that reads the same backwards and uses exactly the given letters."""
    word = said.strip().lower()
    return word == word[::-1] and sorted(word) == sorted(str(letter).lower() for letter in kept["letters"])
