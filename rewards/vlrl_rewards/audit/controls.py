"""Control rewards: random, inverted and noisy ones. A claim that a reward works needs a run with one of them
for comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Rollout
from vlrl_rewards.combine.nested import OverReward, note, number


def uniform(*address: object) -> float:
    """A pseudo-random number in [0, 1), a function of `address` only: the same in every process and after a
    restart."""
    digest = hashlib.blake2b("\x00".join(map(str, address)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value} is a probability: give a number from 0 to 1")


@register("random")
@dataclass(frozen=True, kw_only=True)
class Random(Reward):
    """Random reward, a control.

        r ~ Bernoulli(p), independent of the response

    Paper: random rewards as a control: Shao et al. 2025, arXiv:2506.10947; under clipping: arXiv:2512.16912.
    Edge: drawn from the group's id and the rollout's index in it: a restart draws the same, and equal
    responses may score differently. A rollout outside a group (held-out rows) is drawn from its row and text.
    p = 0 and p = 1 are constant: no signal.
    """

    p: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        _check_share("p", self.p)

    def __call__(self, rollout: Rollout) -> float:
        return float(uniform("random", self.seed, rollout.row.id, rollout.text) < self.p)

    def score_group(self, group: Group) -> list[float]:
        if not group.id:
            return [self(rollout) for rollout in group]
        return [
            float(uniform("random", self.seed, group.row.id, group.id, i) < self.p) for i in range(len(group))
        ]


@dataclass(frozen=True, kw_only=True)
class Control(OverReward):
    """Base of controls that change another reward, whose config is `of`."""

    decides: ClassVar[bool] = False
    of: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.of:
            raise ValueError("of: give the config of the reward to change, for instance {name: exact}")
        super().__post_init__()

    def true(self, rollout: Rollout) -> float:
        """The score of the inner reward, recorded in the rollout."""
        value = number(self.inner, rollout)
        note(rollout, "true", value)
        return value


@register("inverted")
@dataclass(frozen=True, kw_only=True)
class Inverted(Control):
    """Inverted reward, a control.

        r = low + high - r_of

    Paper: inverted reward as a control: arXiv:2507.10532; wrong labels: arXiv:2506.10947.
    Edge: a score outside [low, high] raises ValueError.
    """

    low: float = 0.0
    high: float = 1.0

    def __call__(self, rollout: Rollout) -> float:
        value = self.true(rollout)
        if not self.low <= value <= self.high:
            raise ValueError(
                f"inverted: the score {value} is not in [low, high] = [{self.low}, {self.high}]; set them "
                "to the range of the reward"
            )
        return self.low + self.high - value


@register("flipped")
@dataclass(frozen=True, kw_only=True)
class Flipped(Control):
    """Noisy reward, a control: inverted for a share p of the prompts.

        r = 1 - r_of   for a share p of the prompts (all rollouts of a prompt alike)
        r = r_of       else

    Paper: noisy verifiers: Lv et al. 2025, arXiv:2505.22653 (flips by question).
    Edge: a prompt is flipped always or never; p = 0.5 leaves no signal on average over prompts, p = 1 equals
    `inverted`. A score outside [0, 1] raises ValueError.
    """

    p: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_share("p", self.p)

    def __call__(self, rollout: Rollout) -> float:
        value = self.true(rollout)
        if not 0 <= value <= 1:
            raise ValueError(f"flipped: the score {value} is not in [0, 1]")
        return 1.0 - value if uniform("flipped", self.seed, rollout.row.id) < self.p else value


@register("noisy")
@dataclass(frozen=True, kw_only=True)
class NoisyReward(Control):
    """Noisy verdict, a control: a verifier with known error rates.

        P(r = 1 | wrong) = rho0,  P(r = 0 | correct) = rho1

    Paper: synthetic noise of Cai et al. 2025, arXiv:2510.00915 (false positives rho0, false negatives rho1,
    independent per rollout). Edge: what is correct is decided by the reward `of`. Drawn from the group's id
    and the rollout's index in it: a restart draws the same; a rollout outside a group is drawn from its row
    and text. Rates 0 are the reward `of` as 0 and 1.
    """

    rho0: float = 0.0
    rho1: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_share("rho0", self.rho0)
        _check_share("rho1", self.rho1)

    def __call__(self, rollout: Rollout) -> float:
        return self.verdict(rollout, uniform("noisy", self.seed, rollout.row.id, rollout.text))

    def score_group(self, group: Group) -> list[float]:
        if not group.id:
            return [self(rollout) for rollout in group]
        return [
            self.verdict(rollout, uniform("noisy", self.seed, group.row.id, group.id, i))
            for i, rollout in enumerate(group)
        ]

    def verdict(self, rollout: Rollout, u: float) -> float:
        """1 or 0, from a uniform draw."""
        return float(u >= self.rho1 if self.true(rollout) >= self.inner.correct_at - 1e-9 else u < self.rho0)
