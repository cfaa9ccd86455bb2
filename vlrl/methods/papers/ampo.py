"""Teachers are asked only where every own attempt fails, and the one that is best understood comes first."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.registry import ConfigError, register
from vlrl.stages import ReplayBuffer
from vlrl.types import Group, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("ampo")
@dataclass(frozen=True)
class Ampo(ReplayBuffer):
    """No own r > threshold: min(k, right demonstrations) of the wrong rollouts, drawn at random, make room for those with the highest r_p,

    r_p = mean_t pi(a_t | x, teacher's reasoning, a_<t) over the tokens of the gold answer a. Reasoning is a demonstration up to its last `marker`.
    The demonstrations are those that strategy `with_demonstrations` set aside with `trained: false`: rewarded like all others.
    Paper: Yuan et al. 2025 (AMPO), arXiv:2510.02227, sec. 3; checked against mix_dapo_trainer.py and reward_manager/prob.py of the release
    (mean of probabilities, 2 of 4 teachers; ranking only if there is a choice). Deviates: the random places depend on seed, step and row; the
    release's constant share for form is left out of r_p.
    Edge: a text without `marker` is ranked by the probabilities of all its tokens; ties keep the teachers' order. Each rank sees its own groups.
    """

    k: int = 2
    threshold: float = 0.5
    marker: str = "<answer>"
    state: dict[str, float] = field(init=False, default_factory=lambda: {"groups": 0.0, "guided": 0.0}, repr=False, compare=False)
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k={self.k} must be at least 1: demonstrations per failed group")

    def check(self, run: RunContext) -> None:
        if getattr(run.rollout, "trained", True):
            raise ConfigError("replay guidance_on_demand fetches demonstrations that were set aside; use "
                              "rollout: {name: with_demonstrations, replace: false, trained: false}")  # fmt: skip

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        out = []
        for group in groups:
            right = [rollout for rollout in group.untrained if rollout.source == "expert" and rollout.reward > self.threshold]
            failed = bool(right) and len(group) > 0 and max(group.rewards) <= self.threshold
            self.state["groups"] += 1
            self.state["guided"] += failed
            out.append(self.guided(group, self.ranked(right) if len(right) > self.k else right) if failed else group)
        return out

    def guided(self, group: Group, teachers: Sequence[Rollout]) -> Group:
        """The group with the first k teachers in the place of own rollouts; what was sampled is still counted as it was."""
        run, rollouts = self.run, list(group.rollouts)
        rng = random.Random(f"{run.seed if run else 0}/guidance/{run.step if run else 0}/{group.row.id}")
        count = min(self.k, len(teachers), len(group))
        for place, teacher in zip(rng.sample(range(len(group)), count), teachers):
            rollouts[place] = teacher
            teacher.trained = True
        untrained = [rollout for rollout in group.untrained if not rollout.trained]
        return Group(group.prompt, rollouts, group.id, dict(group.info), untrained)

    def ranked(self, teachers: Sequence[Rollout]) -> list[Rollout]:
        """By r_p, the highest first."""
        asked = [self.question(teacher) for teacher in teachers]
        scored = self.run.engine.score_all([(teacher.prompt, ids) for teacher, (ids, _) in zip(teachers, asked)])
        understood = [comprehension(logp[-n:]) for logp, (_, n) in zip(scored, asked)]
        return [teachers[i] for i in sorted(range(len(teachers)), key=lambda i: -understood[i])]

    def question(self, teacher: Rollout) -> tuple[list[int], int]:
        """(tokens to score, how many of the last ones count)."""
        text = teacher.text.removeprefix(teacher.prompt.prefix)
        if self.marker not in text:
            return teacher.ids, len(teacher.ids)
        encode = self.run.policy.tokenizer.encode
        reasoning = encode(text[: text.rindex(self.marker) + len(self.marker)], add_special_tokens=False)
        answer = encode(str(teacher.row.answer), add_special_tokens=False)
        return [*reasoning, *answer], max(len(answer), 1)

    def metrics(self) -> dict[str, tuple[float, float]]:
        """The share of groups that a teacher was fetched for."""
        share = (self.state["guided"], max(self.state["groups"], 1.0))
        self.state.update(groups=0.0, guided=0.0)
        return {"guidance/share": share}


def comprehension(logp: Sequence[float]) -> float:
    """The mean of the tokens' probabilities."""
    return math.fsum(math.exp(value) for value in logp) / len(logp)
