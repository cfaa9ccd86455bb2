"""Rewards for one box that need the whole group: agreement of the boxes with each other, and IoU weighted by
the difficulty of the prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Rollout
from vlrl_rewards.boxes.geometry import areas, as_boxes, iou_matrix
from vlrl_rewards.boxes.iou import Iou
from vlrl_rewards.boxes.reading import committed_item, read_boxes
from vlrl_rewards.graded import folded_answer


@register("box_agreement")
@dataclass(frozen=True, kw_only=True)
class BoxAgreement(Reward):
    """Region consistency: agreement of a rollout's box with the boxes of its group.

        iou:    r_i = mean over rollouts j != i of IoU(b_i, b_j)
        votes:  r_i = mean over the area of b_i of v / max v,  v(x, y) = number of boxes that cover (x, y)

    Paper: GUI-RC, arXiv:2508.05615 (votes: region consistency as a reward without labels); "iou" is vlrl
    original. Deviates: rewards/DEVIATIONS.md. Edge: no box or several boxes: 0, without a vote; a single box
    in the group: 0. The gold answer is not used: a group that agrees on a wrong box earns as much as one that
    agrees on the correct box. Range [0, 1]. Units: original pixels.
    """

    mode: Literal["iou", "votes"] = "iou"
    picture: int = 0

    def __call__(self, rollout: Rollout) -> float:
        raise ValueError(
            "box_agreement: needs the whole group; call score(group) in place of reward(rollout)"
        )

    def score_group(self, group: Group) -> list[float]:
        found = {i: box for i, rollout in enumerate(group) if (box := self.box_of(rollout)) is not None}
        scores = [0.0] * len(group)
        if len(found) < 2:
            return scores
        b_N4 = as_boxes(list(found.values()))
        values = self.iou(b_N4) if self.mode == "iou" else self.votes(b_N4)
        for i, value in zip(found, values, strict=True):
            scores[i] = float(value)
        return scores

    def box_of(self, rollout: Rollout) -> tuple[float, ...] | None:
        """The box that a rollout commits to, in original pixels; None if there is none, or it has no area."""
        answer = folded_answer(rollout.text)
        boxes = None if answer.problem else read_boxes(answer.text, rollout.spaces, self.picture)
        box: Any = committed_item(boxes, answer.text, answer.tagged) if boxes else None
        return box.xyxy if box and box.xyxy[2] > box.xyxy[0] and box.xyxy[3] > box.xyxy[1] else None

    def iou(self, b_N4: np.ndarray) -> np.ndarray:
        """(N,) mean IoU with the other boxes."""
        iou_NN = iou_matrix(b_N4, b_N4)
        return (iou_NN.sum(1) - np.diag(iou_NN)) / (len(b_N4) - 1)

    def votes(self, b_N4: np.ndarray) -> np.ndarray:
        """(N,) exact mean vote over each box, on the grid of all box edges."""
        xs, ys = np.unique(b_N4[:, [0, 2]]), np.unique(b_N4[:, [1, 3]])
        in_x = (b_N4[:, None, 0] <= xs[None, :-1]) & (b_N4[:, None, 2] >= xs[None, 1:])
        in_y = (b_N4[:, None, 1] <= ys[None, :-1]) & (b_N4[:, None, 3] >= ys[None, 1:])
        cover_NYX = (in_y[:, :, None] & in_x[:, None, :]).astype(float)
        votes_YX = cover_NYX.sum(0)
        cell_YX = np.diff(ys)[:, None] * np.diff(xs)[None, :]
        return (cover_NYX * votes_YX * cell_YX).sum((1, 2)) / areas(b_N4) / votes_YX.max()


@register("iou_hard")
@dataclass(frozen=True, kw_only=True)
class IouHard(Iou):
    """Difficulty-weighted IoU: r_i = w IoU_i with a weight w from the mean IoU m of the group, or from the
    size of the gold box.

        exp: w = e^(1 - m);  power: w = (1.05 - m)^k;  log: w = -ln(0.02 + m);  size: w = (1 - area of the
        gold box / area of the image)^k

    Paper: UniVG-R1, arXiv:2505.14231 (exp, power, log weights of the release); GUI-G1, arXiv:2505.15810
    (small boxes weigh more; our formula). Deviates: rewards/DEVIATIONS.md. Edge: log is clipped at 0 (m = 1).
    Range [0, e]. `correct_at` is compared with the weighted score.
    """

    by: Literal["exp", "power", "log", "size"] = "exp"
    k: float = 1.0

    def score_group(self, group: Group) -> list[float]:
        scores = [self(rollout) for rollout in group]
        mean = sum(scores) / max(1, len(scores))
        table = {
            "exp": math.exp(1 - mean),
            "power": max(0.0, 1.05 - mean) ** self.k,
            "log": max(0.0, -math.log(max(1e-9, 0.02 + mean))),
        }
        weight = self.by_size(group) if self.by == "size" else table[self.by]
        return [weight * value for value in scores]

    def by_size(self, group: Group) -> float:
        """(1 - area of the gold box / area of the image)^k. Raises ValueError if the size of the image is not
        known."""
        rollout = group.rollouts[0]
        picture = group.row.meta.get("picture", self.picture)
        size = rollout.spaces[picture].original if rollout.spaces else group.row.meta.get("size")
        if not size:
            raise ValueError(
                "by: 'size' needs the size of the image, in rollout.spaces or in row.meta['size'] as "
                "(width, height)"
            )
        x1, y1, x2, y2 = self.target(group.row.answer).xyxy
        return max(0.0, 1 - (x2 - x1) * (y2 - y1) / (size[0] * size[1])) ** self.k
