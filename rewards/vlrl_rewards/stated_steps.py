"""A reward for the steps of a sum that are stated on the way."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from vlrl.registry import register
from vlrl_rewards.graded import Answer, Grade, Graded, Scene
from vlrl_rewards.process import thoughts

_STATED = re.compile(r"([A-Za-z])(\d{1,12}(?:[-+*/]\d{1,12}){1,8})=(-?\d{1,12})(?!\d)")
_TERM = re.compile(r"[-+*/]\d+")


@register("stated_steps")
@dataclass(frozen=True, kw_only=True)
class StatedSteps(Graded):
    """r = share of the gold steps v that the thinking states as they are: same name, same terms (a sum's in any order), same value.

    Paper: PreMidRL-Interplay, arXiv:2512.07783 (ProcessAcc: a step counts if its node, its parents and its value are those of the gold graph).
    A step is text such as "a27+5=32". A step stated again counts as it was stated last. Edge: no closed thinking block, or no step: 0. Steps of other
    names are not looked at. Range [0, 1]; right only at 1. Gold: `row.meta[steps]`, a list of such texts with a name each; the answer is not looked
    at: add it, or gate it by this (their strict form: the outcome counts only if every step is right).
    """

    steps: str = "steps"

    def target(self, gold: Any, scene: Scene) -> dict[str, tuple[tuple[str, ...], str]]:
        texts = scene.meta.get(self.steps) or ()
        found = [_steps_of(text) if isinstance(text, str) else {} for text in texts]
        steps = {name: step for one in found for name, step in one.items()}
        if not steps or not len(texts) == len(steps) == sum(map(len, found)):
            raise ValueError(f"steps: row.meta[{self.steps!r}] must be a list of texts such as 'a27+5=32', each of another name, got {texts!r}")
        return steps

    def judge(self, gold: Any, response: str, scene: Scene | None = None, answer: Answer | None = None) -> Grade:
        """Judge the thinking of a response (not its answer)."""
        scene = scene or Scene(response=response)
        return self.grade(self.target(gold, scene), Answer(response, False), scene)

    def grade(self, target: dict[str, tuple[tuple[str, ...], str]], answer: Answer, scene: Scene) -> Grade:
        said = {name: step for block in thoughts(answer.text) for name, step in _steps_of(block).items()}
        hits = sum(said.get(name) == step for name, step in target.items())
        return Grade(hits / len(target), hits == len(target), f"{hits} of {len(target)} steps")


def _steps_of(text: str) -> dict[str, tuple[tuple[str, ...], str]]:
    """name: (terms, sorted; value), each as stated last."""
    return {name: (tuple(sorted(_TERM.findall(f"+{uses}"))), value) for name, uses, value in _STATED.findall(re.sub(r"[^\S\n]+", "", text))}
