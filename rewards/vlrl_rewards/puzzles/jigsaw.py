"""Jigsaw puzzle rewards: which original piece is shown at each place, and questions about single pieces."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.boxes.geometry import overlap
from vlrl_rewards.boxes.reading import committed_item, gold_boxes, read_boxes
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.math.written_numbers import one_number
from vlrl_rewards.recognition.classification import normal_label

_INTEGERS = re.compile(r"[0-9]+")
_PERMUTATION = re.compile(r"[\s\[\](){}0-9,;|\"'`]{1,4000}|[0-9]{1,4}(?:\s?-\s?[0-9]{1,4}){1,999}")


def read_order(text: str, count: int) -> list[int] | None:
    """The permutation of 1..count that `text` consists of ("2 1 4 3", "[[2, 1], [4, 3]]", "2143" up to nine
    pieces), or None.

    A text of more than 4,000 characters is not read.
    """
    stripped = text.strip().removeprefix("```json").strip("` \n.")
    if len(stripped) > 4000 or not _PERMUTATION.fullmatch(stripped):
        return None
    numbers = [int(n) for n in _INTEGERS.findall(stripped)]
    written = stripped.strip("[]() ")
    if len(numbers) == 1 and 1 < count <= 9 and len(written) == count and written.isdigit():
        numbers = [int(c) for c in written]
    return numbers if sorted(numbers) == list(range(1, count + 1)) else None


def position_score(order: Sequence[int], gold: Sequence[int]) -> float:
    """Share of the places with the correct piece, in [0, 1]."""
    return sum(a == b for a, b in zip(order, gold, strict=True)) / len(gold)


def adjacencies(order: Sequence[int], rows: int, columns: int) -> set[tuple[int, int, str]]:
    """The seams (piece, piece, direction) of the assembled image; `order[k]` is the original place of the
    piece shown at place k."""
    at = {piece: place for place, piece in enumerate(order)}
    grid = [at[cell + 1] for cell in range(rows * columns)]
    right = {
        (grid[r * columns + c], grid[r * columns + c + 1], "right")
        for r in range(rows)
        for c in range(columns - 1)
    }
    below = {
        (grid[r * columns + c], grid[(r + 1) * columns + c], "below")
        for r in range(rows - 1)
        for c in range(columns)
    }
    return right | below


def adjacency_score(order: Sequence[int], gold: Sequence[int], rows: int, columns: int) -> float:
    """Share of the 2rc - r - c inner seams of the solved image that the answer restores, in [0, 1]; 1 for a
    single piece."""
    wanted = adjacencies(gold, rows, columns)
    return len(wanted & adjacencies(order, rows, columns)) / len(wanted) if wanted else 1.0


def inverse(order: Sequence[int]) -> list[int]:
    """The inverse permutation, 1-based."""
    return [list(order).index(k) + 1 for k in range(1, len(order) + 1)]


def grid_of(meta: Mapping[str, Any], count: int, rows: int, columns: int) -> tuple[int, int]:
    """(rows, columns) from the fields of the reward, else from the row's meta, else of a square. Raises
    ValueError unless rows x columns = count."""
    grid = meta.get("grid") or ()
    rows = rows or int(meta.get("rows", meta.get("m", grid[0] if grid else 0)))
    columns = columns or int(meta.get("columns", meta.get("cols", meta.get("n", grid[1] if grid else 0))))
    side = round(count**0.5)
    rows, columns = (
        (rows or (columns and count // columns) or side),
        (columns or (rows and count // rows) or side),
    )
    if rows * columns != count:
        raise ValueError(
            f"rows, columns: {rows} x {columns} does not make {count} pieces; set both on the reward or in "
            "the row's meta"
        )
    return rows, columns


@verifier("jigsaw")
@register("jigsaw")
@dataclass(frozen=True, kw_only=True)
class Jigsaw(Graded):
    """Jigsaw reward: which original piece is shown at each place.

        positions: share of places with the correct piece;  exact: 1[all places correct];
        adjacency: |seams(order) & seams(gold)| / (2 r c - r - c), the share of inner seams restored

    Paper: Jigsaw-R1, arXiv:2505.23590, sec. 3 (positions and, as released, connections). Deviates:
    rewards/DEVIATIONS.md. Edge: another length, a repeated or missing piece, or any other text: 0. A single
    piece: 1. Range [0, 1]; correct where all places are. Gold: "2 1 4 3", a list, or a grid; entry k
    (1-based, row-major) is the original place of the piece shown at place k.
    """

    mode: Literal["positions", "adjacency", "exact"] = "positions"
    rows: int = 0
    columns: int = 0
    centred: bool = False

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = gold_order(gold)
        answer = self.committed(response)
        order = read_order(answer.text, len(target))
        if order is None:
            raise Unread(f"not a permutation of 1..{len(target)}", answer)
        exact = order == target
        if self.mode == "positions":
            score = position_score(order, target)
            score = (
                max(0.0, (score - 1 / len(target)) / (1 - 1 / len(target)))
                if self.centred and len(target) > 1
                else score
            )
        elif self.mode == "adjacency":
            # A "backward" answer lists the place of each piece; the seams need the piece of each place, which
            # is the inverse permutation.
            rows, columns = grid_of(row.meta, len(target), self.rows, self.columns)
            backward = row.meta.get("question_type") == "backward"
            score = (
                adjacency_score(inverse(order), inverse(target), rows, columns)
                if backward
                else adjacency_score(order, target, rows, columns)
            )
        else:
            score = float(exact)
        return self.scored(
            answer,
            score,
            exact,
            f"{sum(a == b for a, b in zip(order, target, strict=True))} of {len(target)} places",
            " ".join(map(str, order)),
        )


def gold_order(gold: Any) -> list[int]:
    """The gold permutation of 1..n. Raises ValueError if it is not one."""
    flat = (
        [v for row in gold for v in (row if isinstance(row, (list, tuple)) else [row])]
        if isinstance(gold, (list, tuple))
        else None
    )
    if flat is not None and not all(isinstance(v, (int, str)) and str(v).strip().isdecimal() for v in flat):
        raise GoldError(
            f"answer: {gold!r:.200} has members that are not positive whole numbers; give a text such as "
            "'2 1 4 3' or a list"
        )
    flat = None if flat is None else [int(v) for v in flat]
    numbers = flat if flat is not None else [int(n) for n in _INTEGERS.findall(str(gold))]
    order = read_order(" ".join(map(str, numbers)), len(numbers))
    if not numbers or (order is None and numbers != [1]):
        raise GoldError(
            f"answer: {gold!r} is not a permutation of 1..n; give a text such as '2 1 4 3' or a list"
        )
    return order or numbers


RELATIONS = {
    (0, -1): "left", (0, 1): "right", (-1, 0): "above", (1, 0): "below",
    (-1, -1): "upper left", (-1, 1): "upper right", (1, -1): "lower left", (1, 1): "lower right",
}  # fmt: skip
_SYNONYMS = {
    "top left": "upper left",
    "top right": "upper right",
    "bottom left": "lower left",
    "bottom right": "lower right",
    "on top": "above",
    "under": "below",
}


def relation(first: int, second: int, columns: int) -> str:
    """The direction of place `first` as seen from place `second` (1-based, row-major); "apart" if they do not
    touch."""
    (row, column), (row2, column2) = divmod(first - 1, columns), divmod(second - 1, columns)
    return RELATIONS.get((row - row2, column - column2), "apart")


@verifier("jigsaw_question")
@register("jigsaw_question")
@dataclass(frozen=True, kw_only=True)
class JigsawQuestion(Graded):
    """Reward for questions about a jigsaw puzzle: pairs, single pieces, choices, swapped patches, whole
    orders.

        letter, digit, relation: r = 1[answer = gold];  box: r = IoU;  order: r = share of places with the
        correct piece

    Paper: Jigsaw-R1, arXiv:2505.23590, sec. 3 (pair and multiple: letter; single: digit; box: IoU of the
    swapped patch). Deviates: rewards/DEVIATIONS.md. Edge: several letters or numbers: 0. Range {0, 1}; box
    and order: [0, 1]. A box is correct from IoU `correct_at` on, an order if it is complete; for whole orders
    use the reward `jigsaw`.
    """

    correct_at: float = 0.5
    kind_of: Literal["auto", "letter", "digit", "relation", "box", "order"] = "auto"
    picture: int = 0

    def asked(self, row: Row) -> str:
        """The kind of answer that the row asks for. Raises ValueError if it is not known."""
        kind = (
            row.meta.get("answer_type", row.meta.get("question_type", ""))
            if self.kind_of == "auto"
            else self.kind_of
        )
        table: Mapping[str, str] = {
            "pair": "letter",
            "multiple": "letter",
            "single": "digit",
            "full": "order",
            "backward": "order",
        }
        kind = table.get(kind, kind)
        if kind not in ("letter", "digit", "relation", "box", "order"):
            raise GoldError(
                f"kind_of: {kind!r} is not letter, digit, relation, box or order; set one of them in "
                "kind_of or row.meta['answer_type']"
            )
        return kind

    def target(self, gold: Any, row: Row) -> Any:
        kind = self.asked(row)
        if kind == "box":
            boxes = gold_boxes(gold)
            if len(boxes) != 1:
                raise GoldError(f"answer: a swapped patch is one box, got {gold!r}")
            return boxes[0]
        if kind == "order":
            return gold_order(gold)
        value = normal_label(str(gold))
        checks = {
            "letter": len(value) == 1 and value.isalpha(),
            "digit": value.isdecimal(),
            "relation": value in {*RELATIONS.values(), *_SYNONYMS, "apart"},
        }
        if not checks[kind]:
            raise GoldError(f"answer: {gold!r} is not a {kind}")
        return _SYNONYMS.get(value, value)

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        target = self.target(gold, row)
        answer = self.committed(response)
        kind = self.asked(row)
        if kind == "box":
            boxes = read_boxes(answer.text, response.spaces, row.meta.get("picture", self.picture))
            box = committed_item(boxes, answer.text, answer.tagged) if boxes else None
            iou = overlap(box.xyxy, target.xyxy) if box else 0.0
            return self.scored(answer, iou, iou >= self.correct_at, f"IoU {iou:.3f}")
        if kind == "order":
            order = read_order(answer.text, len(target))
            share = position_score(order, target) if order else 0.0
            return self.scored(answer, share, share == 1, f"{share:.2f} in place")
        said = normal_label(answer.text)
        if kind == "digit":
            number = one_number(answer.text, tagged=True)
            correct = number is not None and number == int(target)
        elif kind == "letter":
            index = ord(target) - ord("a")
            text = normal_label(row.choices[index]) if index < len(row.choices) else target
            correct = said in (target, text)
        else:
            correct = _SYNONYMS.get(said, said).removeprefix("to the ").removesuffix(" of") == target
        return self.scored(answer, float(correct), correct, f"{kind} {target}", said)
