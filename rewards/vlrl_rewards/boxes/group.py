"""Rewards that look at the whole group: agreement of boxes with each other, and overlap weighted by how hard the prompt is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vlrl.registry import register
from vlrl.stages import Reward
from vlrl.types import Group, Rollout
from vlrl_rewards.boxes.geometry import areas, as_boxes, iou_matrix
from vlrl_rewards.boxes.iou import Iou
from vlrl_rewards.boxes.reading import read_boxes, the_one
from vlrl_rewards.graded import final_answer


@register("box_agreement")
@dataclass(frozen=True, kw_only=True)
class BoxAgreement(Reward):
    """iou: r_i = mean over siblings j != i of IoU(b_i, b_j);  votes: r_i = mean over the area of b_i of v / max v, v(x, y) = boxes that cover (x, y).

    Paper: GUI-RC, arXiv:2508.05615 (votes: region consistency as a reward without labels); "iou" is vlrl original.
    Deviates: "votes" as we know it from the abstract and the release; it pays a tiny box inside the crowd in full, so "iou" is the default.
    Edge: no box or several: 0, and no vote; a lone box: 0. No gold answer is used: a group that agrees on a wrong box earns as much as on a right
    one, so watch the accuracy of held-out rows. Range [0, 1]. Units: original pixels.
    """

    mode: Literal["iou", "votes"] = "iou"
    picture: int = 0

    def __call__(self, rollout: Rollout) -> float:
        raise ValueError("box_agreement: needs the whole group; call score(group)")

    def score(self, group: Group) -> list[float]:
        boxes = [self.box_of(rollout) for rollout in group]
        places = [i for i, box in enumerate(boxes) if box is not None]
        scores = [0.0] * len(boxes)
        if len(places) < 2:
            return scores
        b_N4 = as_boxes([boxes[i] for i in places])  # type: ignore[misc]
        values = self.iou(b_N4) if self.mode == "iou" else self.votes(b_N4)
        for i, value in zip(places, values, strict=True):
            scores[i] = float(value)
        return scores

    def box_of(self, rollout: Rollout) -> tuple[float, ...] | None:
        """The box a rollout commits to, in original pixels, if it has an area."""
        answer = final_answer(rollout.text)
        boxes = None if answer.problem else read_boxes(answer.text, rollout.spaces, self.picture)
        box: Any = the_one(boxes, answer.text, answer.tagged) if boxes else None
        return box.xyxy if box and box.xyxy[2] > box.xyxy[0] and box.xyxy[3] > box.xyxy[1] else None

    def iou(self, b_N4: np.ndarray) -> np.ndarray:
        """Mean IoU with the others."""
        iou_NN = iou_matrix(b_N4, b_N4)
        return (iou_NN.sum(1) - np.diag(iou_NN)) / (len(b_N4) - 1)

    def votes(self, b_N4: np.ndarray) -> np.ndarray:
        """Mean vote over each box, exactly: on the grid that all edges make."""
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
    """r_i = w IoU_i, w of the group's mean IoU m:  exp: e^(1 - m);  power: (1.05 - m)^k;  log: -ln(0.02 + m);  size: (1 - area of the gold /
    picture)^k.

    Paper: UniVG-R1, arXiv:2505.14231 (exp, power, log weights of the release); GUI-G1, arXiv:2505.15810 (smaller boxes weigh more; our form).
    Deviates: UniVG-R1 weighs the loss, with m over the batch on a device; here the reward is weighed, with m of the prompt's own group: use it with
    an advantage that does not divide by the standard deviation, else the weight cancels. Edge: m = 1 with log gives 0, not below. Range [0, e].
    """

    by: Literal["exp", "power", "log", "size"] = "exp"
    k: float = 1.0

    def score(self, group: Group) -> list[float]:
        scores = [self(rollout) for rollout in group]
        mean = sum(scores) / max(1, len(scores))
        table = {"exp": math.exp(1 - mean), "power": max(0.0, 1.05 - mean) ** self.k, "log": max(0.0, -math.log(max(1e-9, 0.02 + mean)))}
        weight = self.by_size(group) if self.by == "size" else table[self.by]
        return [weight * value for value in scores]

    def by_size(self, group: Group) -> float:
        """(1 - share of the picture that the gold box takes)^k. Raises ValueError if the picture's size is not known."""
        rollout = group.rollouts[0]
        picture = group.row.meta.get("picture", self.picture)
        size = rollout.spaces[picture].original if rollout.spaces else group.row.meta.get("size")
        if not size:
            raise ValueError("by: 'size' needs the picture's size, from rollout.spaces or row.meta['size']")
        x1, y1, x2, y2 = self.target(group.row.answer, self.scene_of(rollout)).xyxy
        return max(0.0, 1 - (x2 - x1) * (y2 - y1) / (size[0] * size[1])) ** self.k
