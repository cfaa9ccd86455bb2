"""Plan rewards: the correct prefix of a list of steps, and the form of the reply; and the alignment of steps
with a sequence of states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Verdict
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout, Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import verifier
from vlrl_rewards.literals import find_values
from vlrl_rewards.parsing import visible
from vlrl_rewards.recognition.classification import normal_label
from vlrl_rewards.recognition.labels import read_labels


@verifier("plan")
@register("plan")
@dataclass(frozen=True, kw_only=True)
class PlanSteps(Graded):
    """Planning accuracy reward: length n of the correct prefix of the N gold steps, with later steps weighing
    more.

        r = max(0, n (n + 1) / (N (N + 1)) - extra 1[further steps after a complete plan])
        `single`: r = n (n + 1) / (N (N + 1)) - extra 1[N = 1 and more than one step]

    Paper: Reinforced Reasoning for Embodied Planning, arXiv:2505.22050. Released code:
    mail-taii/Reinforced-Reasoning-for-Embodied-Planning, RFT
    training/examples/scripts/reward_func_embench_alfred_nonlinear.py, commit 4880281 (`single`, 0.25).
    Without `single` `extra` applies to complete plans of any length. The format terms of the release are the
    reward `plan_format`.
    Steps: texts, or objects with action_id / action_name, in a JSON list, in {"executable_plan": [...]}, or
    one per line. Edge: no list of steps, or an empty one: 0. Range [0, 1], with `single` from
    -extra; correct where the plans are equal.
    """

    extra: float = 0.25
    single: bool = False

    def steps(self, value: Any) -> list[str]:
        """The steps as normalised texts: the name of each, else its id."""
        if isinstance(value, Mapping):
            value = next(
                (
                    v
                    for k in ("executable_plan", "plan", "steps", "actions")
                    if isinstance(v := value.get(k), (list, tuple))
                ),
                [],
            )
        if not isinstance(value, (list, tuple)):
            return []
        texts = [
            next((s[k] for k in ("action_name", "name", "action", "action_id") if k in s), "")
            if isinstance(s, Mapping)
            else s
            for s in value
        ]
        return [normal_label(str(t)) for t in texts]

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        steps = self.steps(
            [line for line in gold.split("\n") if line.strip()] if isinstance(gold, str) else gold
        )
        if not steps or not all(steps):
            raise GoldError(
                f"answer: the gold plan {gold!r:.200} has no steps or an empty step; give a list of texts"
            )
        target = steps
        answer = self.committed(response)
        values = [f.value for f in find_values(answer.text)]
        steps = (
            self.steps(values[0])
            if len(values) == 1 and values[0]
            else read_labels(answer.text.replace(",", "\n"))
            if not values
            else []
        )
        prefix = next(
            (i for i, (a, b) in enumerate(zip(steps, target, strict=False)) if a != b),
            min(len(steps), len(target)),
        )
        share = prefix * (prefix + 1) / (len(target) * (len(target) + 1))
        reward = (
            share - self.extra * (len(target) == 1 < len(steps))
            if self.single
            else max(0.0, share - self.extra * (prefix == len(target) < len(steps)))
        )
        return self.scored(
            answer,
            reward,
            steps == target,
            f"{prefix} of {len(target)} steps correct",
        )


def word_f1(a: str, b: str) -> float:
    """F1 of the words of two texts, counted with repetition, in [0, 1]."""
    words_a, words_b = Counter(a.split()), Counter(b.split())
    common = sum((words_a & words_b).values())
    return 2 * common / (sum(words_a.values()) + sum(words_b.values())) if common else 0.0


def alignment(
    steps: Sequence[str], states: Sequence[str], similarity: Callable[[str, str], float] = word_f1
) -> float:
    """Mean similarity of the best monotone alignment of the states with the steps, in [0, 1]; steps may be
    skipped or used twice."""
    best = [0.0] * len(steps)
    for state in states:
        reached, running = [], 0.0
        for i, step in enumerate(steps):
            running = max(running, best[i])
            reached.append(running + similarity(step, state))
        best = reached
    return max(best, default=0.0) / len(states)


@register("plan_format")
@dataclass(frozen=True, kw_only=True)
class PlanFormat(Reward):
    """Format reward of Reinforced Reasoning: the keys of the reply, well-typed steps, and steps whose number
    and name belong together.

        r = 0.125 1[all keys] + 0.125 (well-typed steps / steps) + 0.25 (steps that name an action by its
        number / steps)

    The reply is one JSON object. A step is well-typed with an int `action_id` and a text `action_name`.
    Paper: Reinforced Reasoning for Embodied Planning, arXiv:2505.22050. Released code:
    mail-taii/Reinforced-Reasoning-for-Embodied-Planning, RFT
    training/examples/scripts/reward_func_embench_alfred_nonlinear.py, commit 4880281 (all three terms and
    weights). Deviates: text around the object is allowed (there the whole reply is read as JSON). Edge: no
    JSON object: 0; no steps: the last two terms are 0. Range [0, 0.5]. Needs `row.meta["actions"]`, the list
    of action names in the order of their numbers; raises ValueError without it.
    """

    reads_answer: ClassVar[bool] = False
    keys: tuple[str, ...] = (
        "reasoning_and_reflection",
        "visual_state_description",
        "language_plan",
        "executable_plan",
    )

    @property
    def form_marks(self) -> tuple[str, ...]:
        return self.keys

    def __call__(self, rollout: Rollout) -> float:
        actions = rollout.row.meta.get("actions")
        if not isinstance(actions, (list, tuple)) or not actions:
            raise ValueError(
                f"row {rollout.row.id!r}: meta.actions must list the actions in the order of their "
                f"numbers, got {actions!r}"
            )
        names = [str(action).casefold() for action in actions]
        objects = [
            found.value for found in find_values(visible(rollout.text)) if isinstance(found.value, dict)
        ]
        if len(objects) != 1:
            return 0.0
        reply = {str(key): value for key, value in objects[0].items()}
        plan = reply.get("executable_plan")
        steps = [step if isinstance(step, Mapping) else {} for step in plan] if isinstance(plan, list) else []
        typed = [
            s for s in steps if type(s.get("action_id")) is int and isinstance(s.get("action_name"), str)
        ]
        named = [
            s
            for s in typed
            if 0 <= s["action_id"] < len(names) and s["action_name"].casefold() == names[s["action_id"]]
        ]
        shares = (len(typed) / len(steps), len(named) / len(steps)) if steps else (0.0, 0.0)
        return 0.125 * all(key in reply for key in self.keys) + 0.125 * shares[0] + 0.25 * shares[1]
