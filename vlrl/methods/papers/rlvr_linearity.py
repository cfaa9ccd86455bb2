"""RLVR linearity: logits of a later step, extrapolated from two checkpoints while decoding. (Weights: `vlrl
weights`.)

Paper: Not All Steps are Informative: On the Linearity of LLMs' RLVR Training, arXiv:2601.04537; release:
Miaow-Lab/RLVR-Linearity at c0d61c81, acceleration/logits_extrapolation.py:25-42 (calculate_alpha,
mix_logits)."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.papers.rast import ShiftedSampling
from vlrl.plugins.registry import register


def alpha(first: int, second: int, target: int) -> float:
    """How far `target` lies along the steps from `first` to `second`: 1 at `second`."""
    return (target - first) / (second - first)


@register("rlvr_linearity")
@dataclass(frozen=True)
class RlvrLinearity(ShiftedSampling):
    """Logit extrapolation: z = z_1 + alpha (z_2 - z_1), alpha = (target - first) / (second - first), with the
    policy as the second checkpoint and `early` as the first.

    In the release's own form; in this one, z_2 + (alpha - 1) (z_2 - z_1). Paper: arXiv:2601.04537. Deviates:
    top-p acts after the temperature, as in the release, on the engine's filters. Steps count optimizer steps
    of the run.

    Attributes:
        early: The checkpoint of step `first`; "start" takes the policy's weights at the start of the phase.
    """

    early: str = ""
    first: int = 0
    second: int = 100
    target: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.first < self.second < self.target:
            raise ValueError(
                f"first={self.first}, second={self.second}, target={self.target}: give 0 <= first "
                f"< second < target"
            )

    @property
    def factor(self) -> float:
        """What the difference is multiplied with: (alpha - 1) `strength`."""
        return (alpha(self.first, self.second, self.target) - 1) * self.strength

    def models(self) -> tuple[str, str]:
        return "", self.early
