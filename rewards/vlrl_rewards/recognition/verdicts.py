"""Verdicts about answers and headlines: a preference that agrees with its own reasoning, and the false part of a headline."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from vlrl.registry import register
from vlrl_rewards.graded import Answer, Grade, Graded, Scene
from vlrl_rewards.recognition.classification import normal_label
from vlrl_rewards.text.mentions import asserts, words_of
from vlrl_rewards.text.process import thoughts

_BETTER = re.compile(
    r"\b(?:answer|response)\s+([12])\s+(?:is|seems|looks)\s+(?:the\s+)?(?:better|best|correct|right)\b|\bprefer\s+(?:answer|response)?\s*([12])\b"
)


def concluded(response: str) -> str:
    """The number of the answer that the last three lines of the thinking call better; "" if they name none, or both."""
    blocks = thoughts(response)
    lines = [line for line in blocks[-1].casefold().splitlines() if line.strip()][-3:] if blocks else []
    named = {first or second for line in lines for first, second in _BETTER.findall(line)}
    return named.pop() if len(named) == 1 else ""


@register("preference")
@dataclass(frozen=True, kw_only=True)
class Preference(Graded):
    """R1-Reward's verdict: which of two answers is better, weighted by whether the reasoning concludes the same.

        r = 1[answer = gold] (1 + consistency c),  c = 1 if the reasoning concludes the answer, -1 if it concludes the other one, 0 if neither

    Paper: R1-Reward, arXiv:2505.02835, sec. 3.3 (consistency 0.5). Released code: yfzhang114/r1_reward,
    openrlhf/models/remote_rm/math_verifier_mllm.py, commit 3693413 (r = 0.5 format + accuracy (1 + 0.5 c)).
    Deviates: the release asks a language model whether the last three lines before the answer agree with it; here phrases such as "answer 2 is
    better" in the last three lines of the thinking decide, and c is 0 without one (the release: a failed judge).
    Gold: "1" or "2". Edge: no answer: 0. Range [0, 1 + consistency]; a right answer is correct whatever its reasoning.
    """

    consistency: float = 0.5
    correct_at: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.consistency <= 0.5:
            raise ValueError(f"consistency: {self.consistency} must lie in [0, 0.5], so that a right answer scores at least correct_at=0.5")

    def target(self, gold: Any, scene: Scene) -> str:
        if str(gold).strip() not in ("1", "2"):
            raise ValueError(f"answer: the gold {gold!r} must be 1 or 2")
        return str(gold).strip()

    def grade(self, target: str, answer: Answer, scene: Scene) -> Grade:
        said = normal_label(answer.text).removeprefix("answer ").removeprefix("response ")
        if said != target:
            return self.refuse("the other answer, or none", said)
        concluding = concluded(scene.response)
        agrees = 0 if not concluding else 1 if concluding == said else -1
        return Grade(1 + self.consistency * agrees, True, f"right, consistency {agrees}", said)


@register("entity_named")
@dataclass(frozen=True, kw_only=True)
class EntityNamed(Graded):
    """Fact-R1's entity reward: the response names the false part of a fake headline.

        r = 1[the entity is mentioned in the thinking or the answer, and not denied], for a fake headline;  r = 1[nothing to name] for a right one

    Paper: Fact-R1, arXiv:2505.16836. Released code: zfr00/Fact-R1, verl/utils/reward_score/multitask.py, commit 7354074 (0.1 for the entity).
    Deviates: the release asks a language model whether the response describes the entity; here its words decide. A right headline has no entity and
    pays 1 where the answer is not empty, so that its weight shifts no advantage.
    Entity: `row.meta[entity]`, "" for a right headline. Edge: a response without an answer: 0. Range {0, 1}.
    """

    entity: str = "entity"

    def target(self, gold: Any, scene: Scene) -> tuple[str, ...]:
        if self.entity not in scene.meta:
            raise ValueError(f"meta: row.meta[{self.entity!r}] must hold the false part of the headline, or an empty text")
        return tuple(words_of(str(scene.meta[self.entity])))

    def grade(self, target: tuple[str, ...], answer: Answer, scene: Scene) -> Grade:
        named = not target or asserts(words_of(" ".join([*thoughts(scene.response), answer.text])), target)
        return Grade(float(named), named, "named" if named else "not named", " ".join(target))
