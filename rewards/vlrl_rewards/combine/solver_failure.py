"""SSP's reward of a proposed question, by how often the solver fails on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout

SOLVED: Annotation[float] = Annotation(
    "ssp.solved",
    float,
    hint="rollout: {name: ssp}",
    doc="share of the solver's answers to the proposed question that are correct; -1 for no valid question",
)


@register("solver_failure")
@dataclass(frozen=True, kw_only=True)
class SolverFailure(Reward):
    """SSP's reward of a proposer: 1 - s, s the solver's share of correct answers to its question; `invalid`
    for a question that is not valid.

    With `pays` "intermediate" it is 4 s (1 - s) for 0 < s < 1, and 0 at the ends. Range: [0, 1], and
    `invalid`.
    Paper: Search Self-play (SSP), arXiv:2510.18821, sec. 3.2 and algorithm 1; release: Alibaba-Quark/SSP at
    b4797e1,
    quarl/trainer/ppo/ssp_ray_trainer.py (_compute_proposer_rewards: "1-acc", "intermediate_difficulty"),
    examples/train_ssp.sh (1-acc, format_penalty
    0). Raises KeyError without the rollout strategy `ssp`, which measures s.
    """

    requires = (SOLVED,)
    pays: Literal["failure", "intermediate"] = "failure"
    invalid: float = 0.0

    def __post_init__(self) -> None:
        if self.invalid > 0:
            raise ValueError(
                f"invalid={self.invalid} pays for questions that are not valid; it must not be positive"
            )

    def __call__(self, rollout: Rollout) -> float:
        solved = SOLVED[rollout]
        if solved < 0:
            return self.invalid
        return 1.0 - solved if self.pays == "failure" else 4.0 * solved * (1.0 - solved)
