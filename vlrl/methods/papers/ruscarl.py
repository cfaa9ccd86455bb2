"""RuscaRL: rubric-scaffolded RL; each attempt at a prompt is shown a different part of the checklist that it
is scored by, less and less over time.

`ruscarl` is a rollout strategy.

Paper: Zhou et al. 2025 (RuscaRL), arXiv:2508.16949; checked against _calculate_rubric_ratio (step_sigmoid,
linear in the group) and generate_sequences of vllm_rollout_spmd.py and the released script: start 0.20,
steepness 125, plain prompt trained, nothing added at 0. Deviates: the words are ours; the draw is a function
of the run's seed, the step and the row.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl.methods.common.prompts import with_system, within_limit
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import SamplingContext, StageContext
from vlrl.plugins.registry import register
from vlrl.types import Group, Prompt

SHOWN_CRITERIA: Annotation[int] = Annotation(
    "ruscarl.shown_criteria",
    int,
    hint="rollout: {name: ruscarl}",
    doc="number of criteria that the rollout's prompt contained",
)


@register("ruscarl")
@dataclass(frozen=True)
class Ruscarl(Independent):
    """RuscaRL's scaffolding: attempt i of n is shown round(s K) of the K criteria of `row.meta["rubrics"]`.

        s = (n - 1 - i) / (n - 1) / (1 + e^(steepness (x - start))),  x the share of the phase that is over, 0
        to 1

    The criteria are drawn uniformly and appended to the system message; attempts that are shown none have the
    plain prompt. All are trained on the plain prompt (`train_shown`: on the prompt with the criteria).
    SHOWN_CRITERIA is how many criteria a rollout was shown. Edge: n = 1 is shown all (times the decay); rows
    without criteria, and prompts that would become longer than `max_prompt_tokens`, show none. Old log-probs
    are those of the prompt trained on; before the plug-in is set up x is 0.
    """

    start: float = 0.2
    steepness: float = 125.0
    train_shown: bool = False
    head: str = "Keep to these criteria, and do not mention them:"
    provides = (SHOWN_CRITERIA,)

    def __post_init__(self) -> None:
        if not 0 <= self.start <= 1 or self.steepness <= 0:
            raise ValueError(f"start={self.start} must be in [0, 1] and steepness={self.steepness} above 0")

    def decay(self) -> float:
        """1 / (1 + e^(steepness (x - start))) now."""
        steps = self.run.settings.steps if self.is_set_up else 1
        x = min(self.run.phase_step / (steps - 1), 1.0) if steps > 1 else 0.0
        return 1 / (1 + math.exp(min(self.steepness * (x - self.start), 700.0)))

    def scaffolded(self, prompt: Prompt, attempt: int, n: int, run: StageContext) -> tuple[Prompt, int]:
        """The prompt of an attempt, and how many criteria it shows."""
        criteria = prompt.row.meta.get("rubrics", ())
        count = round(len(criteria) * ((n - 1 - attempt) / (n - 1) if n > 1 else 1.0) * self.decay())
        if not count:
            return prompt, 0
        drawn = random.Random(f"{run.seed}/rubric/{run.step}/{prompt.row.id}/{attempt}").sample(
            range(len(criteria)), count
        )
        scaffolded = with_system(prompt, wording([criteria[i] for i in sorted(drawn)], self.head))
        if not within_limit(scaffolded, run):
            return prompt, 0
        return (scaffolded if self.train_shown else replace(scaffolded, train=prompt.for_training)), count

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        scaffolds = [
            [self.scaffolded(prompt, attempt, n, run) for attempt in range(n)]
            for prompt, n in zip(prompts, counts, strict=True)
        ]
        drawn = iter(
            self.draw([(scaffolded, 1, ()) for attempts in scaffolds for scaffolded, _ in attempts], run)
        )
        groups = []
        for prompt, attempts in zip(prompts, scaffolds):
            rollouts = [next(drawn)[0] for _ in attempts]
            for rollout, (_, count) in zip(rollouts, attempts):
                SHOWN_CRITERIA.set(rollout, count)
            groups.append(Group(prompt, rollouts))
        return groups

    def metrics(self) -> dict[str, float]:
        return {"rubric/decay": self.decay()}


def wording(items: Sequence[Mapping[str, Any]], head: str) -> str:
    """The shown criteria as text: what is wanted and what is not, with points."""
    return "\n".join(
        [
            head,
            *(
                f"- {'do' if item['points'] > 0 else 'avoid'} ({abs(item['points'])}): {item['criterion']}"
                for item in items
            ),
        ]
    )
