"""A bonus for answers that hold in the mirror too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.methods.shape.t_grpo import ReadsAccuracy
from vlrl.registry import ConfigError, register
from vlrl.stages import Shape
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("svqa_r1")
@dataclass(frozen=True)
class ViewBonus(ReadsAccuracy, Shape):
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

    def check(self, run: Run) -> None:
        if run.strategy.name != "svqa_r1":
            raise ConfigError(f"shape svqa_r1 needs two views, which strategy {run.strategy.name!r} does not make; use strategy: {{name: svqa_r1}}")
        self.check_slot(run)

    def __call__(self, group: Group) -> list[float]:
        views = {side: [self.accuracy(r) for r in group if bool(r.info.get("mirrored")) is side] for side in (False, True)}
        if not all(views.values()):
            return group.rewards
        mean = {side: sum(values) / len(values) for side, values in views.items()}
        group.info["svqa_r1"] = {"plain": mean[False], "mirrored": mean[True]}
        return [r.reward + self.bonus * (self.accuracy(r) > self.least and mean[not r.info.get("mirrored")] >= self.tau) for r in group]
