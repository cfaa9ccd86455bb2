"""Samples of a picture, and as many of its mirror image, where left is right.

A bonus for answers that hold in the mirror too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from vlrl.methods.common.two_views import SecondView
from vlrl.methods.papers.t_grpo import ReadsAccuracy
from vlrl.registry import ConfigError, register
from vlrl.stages import RewardShaping
from vlrl.types import Edited, Group, Row

if TYPE_CHECKING:
    from vlrl.context import RunContext

_PAIRS = (("left", "right"), ("leftmost", "rightmost"), ("leftward", "rightward"), ("leftwards", "rightwards"), ("clockwise", "counterclockwise"))
_OTHER = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
_SIDE = re.compile(r"\b(" + "|".join(sorted(_OTHER, key=len, reverse=True)) + r")\b", re.IGNORECASE)


@dataclass(frozen=True)
class Mirrored(Edited):
    """`base`, a picture, flipped left to right."""

    @property
    def key(self) -> str:
        return f"{self.base.key}/mirrored"

    def load(self) -> Any:
        from PIL import ImageOps

        return ImageOps.mirror(self.base.load())  # type: ignore[arg-type]


def swap_sides(text: str) -> str:
    """The text with left and right (leftmost, clockwise ...) exchanged, capitals kept."""

    def other(match: re.Match[str]) -> str:
        word = _OTHER[match[0].lower()]
        return word.upper() if match[0].isupper() else word.capitalize() if match[0][0].isupper() else word

    return _SIDE.sub(other, text)


def mirrored_answer(answer: Any, row: Row) -> Any:
    """The gold answer of the mirror image. Raises ValueError for one whose mirror image is not known."""
    if isinstance(answer, str):
        return swap_sides(answer)
    if answer is None or isinstance(answer, (bool, int, float)):
        return answer
    if isinstance(answer, (list, tuple)) and all(isinstance(part, str) for part in answer):
        return [swap_sides(part) for part in answer]
    size = row.meta.get("size")
    if isinstance(answer, (list, tuple)) and len(answer) == 4 and all(isinstance(v, (int, float)) for v in answer) and size:
        x1, y1, x2, y2 = answer
        return [size[0] - x2, y1, size[0] - x1, y2]
    raise ValueError(
        f"row {row.id!r}: the answer {answer!r:.80} cannot be mirrored; words, numbers and (with meta.size = (width, height)) one box "
        "[x1, y1, x2, y2] can; set meta.mirror: false for rows that are to be asked as they are"
    )


def mirrored(row: Row) -> Row:
    """The same row about the mirror image: left and right are exchanged in question, choices, answer and demonstration."""
    return replace(
        row,
        id=f"{row.id}/mirrored",
        question=swap_sides(row.question),
        choices=tuple(map(swap_sides, row.choices)),
        answer=mirrored_answer(row.answer, row),
        target=swap_sides(row.target),
        images=tuple(map(Mirrored, row.images)),
    )


@register("svqa_r1")
@dataclass(frozen=True)
class SvqaR1(SecondView):
    """G rollouts of every prompt, and for a prompt with pictures G more about their mirror images, in the same group of 2 G.

    The mirrored rollouts carry `info["mirrored"]`; each is scored by its own row, in which left and right have changed places.
    Paper: SVQA-R1, arXiv:2506.01371 (Spatial-GRPO: rewards that are consistent between views); that both views share one group is our reading.
    Deviates: left and right are exchanged in the question too, so that the pair is also right for "what is left of ...". Turned and warped views
    are left out. Edge: rows without pictures, with videos, or with meta.mirror false get no second view; text in a picture is mirrored as well.
    """

    mark: ClassVar[str] = "mirrored"

    def view(self, row: Row) -> Row | None:
        return mirrored(row) if row.images and not row.videos and row.meta.get("mirror", True) else None


@register("svqa_r1.view_bonus")
@dataclass(frozen=True)
class SvqaR1ViewBonus(ReadsAccuracy, RewardShaping):
    """r_i + bonus where rollout i is right (accuracy above `least`) and the other view's mean accuracy is at least `tau`.

    `slot` is the accuracy (empty: the first reward with a weight). `group.info["svqa_r1"]` holds the mean accuracy of both views.
    Paper: SVQA-R1, arXiv:2506.01371 (view consistency). Deviates: the paper's form is not known to us; this one follows T-GRPO's contrast, and
    `bonus` and `tau` are ours. Edge: a group without mirrored rollouts (strategy `svqa_r1`) is left alone.
    """

    bonus: float = 0.3
    tau: float = 0.5
    least: float = 0.5
    slot: str = ""
    seen: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)

    def check(self, run: RunContext) -> None:
        if run.rollout.name != "svqa_r1":
            raise ConfigError(f"shape svqa_r1 needs two views, which strategy {run.rollout.name!r} does not make; use strategy: {{name: svqa_r1}}")
        self.check_slot(run)

    def __call__(self, group: Group) -> list[float]:
        views = {side: [self.accuracy(r) for r in group if bool(r.info.get("mirrored")) is side] for side in (False, True)}
        if not all(views.values()):
            return group.rewards
        mean = {side: sum(values) / len(values) for side, values in views.items()}
        group.info["svqa_r1"] = {"plain": mean[False], "mirrored": mean[True]}
        return [r.reward + self.bonus * (self.accuracy(r) > self.least and mean[not r.info.get("mirrored")] >= self.tau) for r in group]
