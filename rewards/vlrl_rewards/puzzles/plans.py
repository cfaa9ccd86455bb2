"""Plan reward: the correct prefix of a list of steps; and the alignment of steps with a sequence of states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.registry import register
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged
from vlrl_rewards.literals import find_values
from vlrl_rewards.recognition.classification import normal_label
from vlrl_rewards.recognition.labels import read_labels


@judged("plan")
@register("plan")
@dataclass(frozen=True, kw_only=True)
class Plan(Graded):
    """Planning accuracy reward: length n of the correct prefix of the N gold steps, with later steps weighing more.

        r = max(0, n (n + 1) / (N (N + 1)) - extra 1[further steps after a complete plan])

    Paper: Reinforced Reasoning for Embodied Planning, arXiv:2505.22050 (the accuracy reward as released; `extra` 0.25 there for plans of one step
    only).
    Deviates: `extra` applies to plans of any length; the format terms of the release are separate rewards.
    Steps: texts, or objects with action_id / action_name, in a JSON list, in {"executable_plan": [...]}, or one per line.
    Edge: no list of steps, or an empty one: 0. Range [0, 1]; correct where the plans are equal.
    """

    extra: float = 0.25

    def steps(self, value: Any) -> list[str]:
        """The steps as normalised texts: the name of each, else its id."""
        if isinstance(value, Mapping):
            value = next((v for k in ("executable_plan", "plan", "steps", "actions") if isinstance(v := value.get(k), (list, tuple))), [])
        if not isinstance(value, (list, tuple)):
            return []
        texts = [next((s[k] for k in ("action_name", "name", "action", "action_id") if k in s), "") if isinstance(s, Mapping) else s for s in value]
        return [normal_label(str(t)) for t in texts]

    def target(self, gold: Any, scene: Scene) -> list[str]:
        steps = self.steps([line for line in gold.split("\n") if line.strip()] if isinstance(gold, str) else gold)
        if not steps or not all(steps):
            raise ValueError(f"answer: the gold plan {gold!r:.200} has no steps or an empty step; give a list of texts")
        return steps

    def grade(self, target: list[str], answer: Answer, scene: Scene) -> Grade:
        values = [f.value for f in find_values(answer.text)]
        steps = self.steps(values[0]) if len(values) == 1 and values[0] else read_labels(answer.text.replace(",", "\n")) if not values else []
        prefix = next((i for i, (a, b) in enumerate(zip(steps, target, strict=False)) if a != b), min(len(steps), len(target)))
        share = prefix * (prefix + 1) / (len(target) * (len(target) + 1))
        has_extra = prefix == len(target) < len(steps)
        return Grade(max(0.0, share - self.extra * has_extra), steps == target, f"{prefix} of {len(target)} steps correct")


def word_f1(a: str, b: str) -> float:
    """F1 of the words of two texts, counted with repetition, in [0, 1]."""
    words_a, words_b = Counter(a.split()), Counter(b.split())
    common = sum((words_a & words_b).values())
    return 2 * common / (sum(words_a.values()) + sum(words_b.values())) if common else 0.0


def alignment(steps: Sequence[str], states: Sequence[str]) -> float:
    """Mean similarity (word F1) of the best monotone alignment of the states with the steps, in [0, 1]; steps may be skipped or used twice."""
    best = [0.0] * len(steps)
    for state in states:
        reached, running = [], 0.0
        for i, step in enumerate(steps):
            running = max(running, best[i])
            reached.append(running + word_f1(step, state))
        best = reached
    return max(best, default=0.0) / len(states)
