"""What T-GRPO compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.registry import ConfigError, register
from vlrl.stages import Probe
from vlrl.types import Group

if TYPE_CHECKING:
    from vlrl.run import Run


@register("t_grpo")
@dataclass(frozen=True)
class Contrast(Probe):
    """Means over the step's groups of p (ordered), p~ (shuffled) and [p >= mu * p~] (earned), as shape `t_grpo` left them.

    Paper: Feng et al. 2025 (Video-R1), arXiv:2503.21776, eq. 1.  A p~ that rises along with p says that answers do not need the order of frames.
    Edge: groups without shuffled rollouts are left out; nothing where no group has any. Units: accuracy, 0..1.
    """

    def check(self, run: Run) -> None:
        if not any(shape.name == "t_grpo" for phase in run.phases for shape in phase.maps["shape"].values()):
            raise ConfigError("probes: t_grpo reads what shape t_grpo leaves, and there is none; add shape: {t_grpo: {name: t_grpo}}, or drop it")

    def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        found = [group.info["t_grpo"] for group in groups if "t_grpo" in group.info]
        return {name: sum(values[name] for values in found) / len(found) for name in found[0]} if found else {}
