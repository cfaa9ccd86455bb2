"""AMPO: guidance on demand; demonstrations of several teachers enter a group only where all own rollouts
fail, the best understood ones first.

    ampo              replay buffer for the demonstrations that the rollout strategy `luffy` sets aside with
    `trained: false`: they are scored like all others
    ampo.repetition   reward shaping: less for a text that repeats itself

Paper: Yuan et al. 2025 (AMPO), arXiv:2510.02227, sec. 3; checked against mix_dapo_trainer.py and
reward_manager/prob.py of the release (mean of probabilities, 2 of 4 teachers; ranking only if there is a
choice).
Deviates: the random places depend on seed, step and row; the release's share for form, the same for all
demonstrations that have the form, is left out of r_p, and so is the blank that it puts between a bare
`<answer>` and the gold answer; of two `<answer>` the last counts (there r_p is 0).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vlrl.methods.common.demonstrations import UNTRAINED_DEMONSTRATIONS
from vlrl.plugins.registry import register
from vlrl.plugins.stages import ReplayBuffer, RewardShaping, StepCounts
from vlrl.types import Group, Rollout


@register("ampo")
@dataclass(frozen=True)
class Ampo(ReplayBuffer):
    """AMPO: in a group without a correct rollout, min(k, correct demonstrations) rollouts are replaced by the
    demonstrations with the highest r_p.

        r_p = mean_t pi(a_t | x, teacher's reasoning, a_<t)  over the tokens of the gold answer a

    The teacher's reasoning is the demonstration up to its last `marker`. The replaced rollouts are drawn at
    random.
    Edge: r_p is 0 for a text without `marker`; ties keep the teachers' order. Each rank handles its own
    groups.
    """

    state_class = StepCounts
    k: int = 2
    marker: str = "<answer>"
    requires = (UNTRAINED_DEMONSTRATIONS,)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k={self.k} must be at least 1: demonstrations per failed group")

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        out = []
        for group in groups:
            teachers = [
                rollout for rollout in group.untrained if rollout.source == "expert" and rollout.correct
            ]
            failed = bool(teachers) and len(group) > 0 and not any(rollout.correct for rollout in group)
            self.state.add(groups=1, guided=failed)
            out.append(
                self.guided(group, self.ranked(teachers) if len(teachers) > self.k else teachers)
                if failed
                else group
            )
        return out

    def guided(self, group: Group, teachers: Sequence[Rollout]) -> Group:
        """The group with the first k teachers in place of own rollouts; counts of what was sampled stay."""
        run, rollouts = self.run, list(group.rollouts)
        rng = random.Random(f"{run.seed}/guidance/{run.step}/{group.row.id}")
        count = min(self.k, len(teachers), len(group))
        for place, teacher in zip(rng.sample(range(len(group)), count), teachers):
            rollouts[place] = teacher
            teacher.trained = True
        untrained = [rollout for rollout in group.untrained if not rollout.trained]
        return Group(group.prompt, rollouts, group.id, dict(group.info), untrained)

    def ranked(self, teachers: Sequence[Rollout]) -> list[Rollout]:
        """The teachers by falling r_p."""
        parts = [self.scored_tokens(teacher) for teacher in teachers]
        known = [i for i, (_, n) in enumerate(parts) if n]
        logps = self.run.engine.score_all([(teachers[i].prompt, parts[i][0]) for i in known])
        scores = dict.fromkeys(range(len(teachers)), 0.0)
        scores |= {i: comprehension(logp[-parts[i][1] :]) for i, logp in zip(known, logps, strict=True)}
        return [teachers[i] for i in sorted(range(len(teachers)), key=lambda i: -scores[i])]

    def scored_tokens(self, teacher: Rollout) -> tuple[list[int], int]:
        """(reasoning and gold answer as tokens, number of the answer's tokens); ([], 0) without `marker`."""
        text = teacher.text.removeprefix(teacher.prompt.prefix)
        if self.marker not in text:
            return [], 0
        encode = self.run.policy.encode_text
        said = text[text.rindex(self.marker) + len(self.marker) :]
        reasoning = encode(text[: len(text) - len(said.lstrip())])
        answer = encode(str(teacher.row.answer))
        return [*reasoning, *answer], max(len(answer), 1)

    def metrics(self) -> dict[str, tuple[float, float]]:
        """The share of groups that got demonstrations."""
        return {"ampo/guided": self.state.share("guided", "groups")}


def comprehension(logp: Sequence[float]) -> float:
    """r_p: the mean of the tokens' probabilities."""
    return math.fsum(math.exp(value) for value in logp) / len(logp)


@register("ampo.repetition")
@dataclass(frozen=True, kw_only=True)
class AmpoRepetition(RewardShaping):
    """AMPO's repetition penalty: r - `penalty` for a text in which any `window` words in a row occur `limit`
    times or more; a total of 0 stays 0.

    Words are parted by white space and underscores. Paper: Yuan et al. 2025 (AMPO), arXiv:2510.02227;
    released code: reward_score/repetition.py and mix_dapo_trainer.py (-1 on the entries of the reward that
    are not 0), window and limit 10.
    """

    window: int = 10
    limit: int = 10
    penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.window < 1 or self.limit < 2:
            raise ValueError(f"window={self.window} must be at least 1, limit={self.limit} at least 2")

    def __call__(self, group: Group) -> list[float]:
        return [
            rollout.reward - self.penalty * (rollout.reward != 0 and self.repeats(rollout.text))
            for rollout in group
        ]

    def repeats(self, text: str) -> bool:
        """Whether `window` words in a row occur `limit` times."""
        words = [part for word in text.split() for part in word.split("_")]
        counts = Counter(zip(*(words[i:] for i in range(self.window))))
        return max(counts.values(), default=0) >= self.limit
