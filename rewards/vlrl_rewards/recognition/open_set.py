"""Labels outside a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.registry import register
from vlrl_rewards.graded import Answer, Grade, Graded, Scene, judged
from vlrl_rewards.recognition.classification import choice_of, gold_labels, normal_label, said_label


@judged("open_set")
@register("open_set")
@dataclass(frozen=True, kw_only=True)
class OpenSet(Graded):
    """r = 1[label = gold] for known classes; for an unknown one (gold `unknown`), r = `reject` if the answer says so, else 0; saying "unknown" of a
    known class earns `abstain`.

    Paper: vlrl original (selective classification). Edge: `abstain` below 1 and not below 0, else blank refusals would pay. Range [0, 1].
    Words for unknown: "unknown", "none of the above", "not in the list", "other".
    """

    unknown: str = "unknown"
    reject: float = 1.0
    abstain: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.abstain < 1 or not 0 <= self.reject <= 1:
            raise ValueError(f"abstain, reject: {self.abstain} and {self.reject} must lie in [0, 1), [0, 1]")

    def target(self, gold: Any, scene: Scene) -> list[str]:
        return gold_labels(gold)

    def grade(self, target: list[str], answer: Answer, scene: Scene) -> Grade:
        refusals: Sequence[str] = {normal_label(self.unknown), "unknown", "none of the above", "not in the list", "other"}  # type: ignore[assignment]
        said = choice_of(said_label(answer.text), scene.choices, set(target))
        if target[0] in refusals:
            return Grade(self.reject * (said in refusals), said in refusals, "unknown class", said)
        if said in refusals:
            return Grade(self.abstain, False, "abstained", said)
        return Grade(float(said in target), said in target, "known class", said)
