"""SVQA-R1: spatial GRPO with view consistency; every picture is sampled together with its mirror image, in
which left is right.

    svqa_r1              rollout strategy: samples both views into one group
    svqa_r1.view_bonus   reward shaping: a bonus for correct answers where the other view is mostly answered
    correctly too

Paper: SVQA-R1, arXiv:2506.01371.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vlrl.methods.common.correctness import success_rate
from vlrl.methods.common.two_views import TwoViews
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Edited, Group, Row

MIRRORED: Annotation[bool] = Annotation(
    "mirrored", bool, hint="rollout: {name: svqa_r1}", doc="whether the rollout answers the mirrored view"
)
VIEW_ACCURACIES: Annotation[dict] = Annotation(
    "svqa_r1.view_accuracies",
    dict,
    hint="reward_shaping: {views: {name: svqa_r1.view_bonus}}",
    doc='on a group: {"plain", "mirrored"}, the share of correct rollouts of each view',
)

_PAIRS = (
    ("left", "right"),
    ("leftmost", "rightmost"),
    ("leftward", "rightward"),
    ("leftwards", "rightwards"),
    ("clockwise", "counterclockwise"),
)
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

        picture: Any = self.base.load()
        return ImageOps.mirror(picture)


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
    if (
        isinstance(answer, (list, tuple))
        and len(answer) == 4
        and all(isinstance(v, (int, float)) for v in answer)
        and size
    ):
        x1, y1, x2, y2 = answer
        return [size[0] - x2, y1, size[0] - x1, y2]
    raise ValueError(
        f"row {row.id!r}: the answer {answer!r:.80} cannot be mirrored; words, numbers and (with meta.size "
        "= (width, height)) one box "
        "[x1, y1, x2, y2] can; set meta.mirror: false for rows that have no mirrored view"
    )


def mirrored(row: Row) -> Row:
    """The row with its pictures mirrored, and left and right exchanged in question, choices, answer and
    demonstration."""
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
class SvqaR1(TwoViews):
    """SVQA-R1's two views: G rollouts of every prompt, and for a prompt with pictures G more of its mirror
    image, in one group of 2 G.

    The mirrored rollouts have the annotation MIRRORED; each is scored by its own row, in which left and right
    are exchanged. Paper: SVQA-R1, arXiv:2506.01371 (Spatial-GRPO: rewards that are consistent between views);
    that both views share one group is our reading. Deviates: left and right are exchanged in the question
    too, so that the pair is also right for "what is left of ...". Rotated and warped views are left out.
    Edge: rows without pictures, with videos, or with meta.mirror false have no second view; text in a picture
    is mirrored as well.
    """

    mark: ClassVar[Annotation[bool]] = MIRRORED
    provides = (MIRRORED,)

    def view(self, row: Row) -> Row | None:
        return mirrored(row) if row.images and not row.videos and row.meta.get("mirror", True) else None


@register("svqa_r1.view_bonus")
@dataclass(frozen=True)
class SvqaR1ViewBonus(RewardShaping):
    """SVQA-R1's consistency bonus: r_i + bonus where rollout i is correct and the other view's share of
    correct rollouts is at least `tau`.

    VIEW_ACCURACIES of the group has the share of both views.
    Paper: SVQA-R1, arXiv:2506.01371 (view consistency). Deviates: the paper's form is not known to us; this
    one follows T-GRPO's contrast, and `bonus` and `tau` are ours. Edge: a group without mirrored rollouts
    keeps its rewards.
    """

    bonus: float = 0.3
    tau: float = 0.5
    provides = (VIEW_ACCURACIES,)
    requires = (MIRRORED,)

    def __call__(self, group: Group) -> list[float]:
        views = {side: [r for r in group if bool(MIRRORED.get(r)) is side] for side in (False, True)}
        if not all(views.values()):
            return group.rewards
        accuracy = {side: success_rate(rollouts) for side, rollouts in views.items()}
        VIEW_ACCURACIES.set(group, {"plain": accuracy[False], "mirrored": accuracy[True]})
        return [
            r.reward + self.bonus * (r.correct and accuracy[not MIRRORED.get(r)] >= self.tau) for r in group
        ]
