"""Rewards for what is said on the way: the order of observed states, candidate boxes before thinking."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from vlrl.registry import register
from vlrl_rewards.boxes import Box, gold_boxes, read_boxes
from vlrl_rewards.geometry import matrix, overlap
from vlrl_rewards.graded import Answer, Grade, Graded, Scene
from vlrl_rewards.loose import fold
from vlrl_rewards.phrases import words_of
from vlrl_rewards.plans import alignment

_STEP = re.compile(r"\n|(?<=[.;!?])\s")
_THINK = re.compile(r"<think(?:ing)?>(.{0,40000}?)</think(?:ing)?>", re.DOTALL | re.IGNORECASE)


def thoughts(response: str) -> list[str]:
    """The insides of the closed thinking blocks of a response's first 100,000 characters."""
    return _THINK.findall(response[:100_000])


def section(response: str, tag: str) -> str:
    """The inside of the only `<tag>...</tag>` of a response, folded as by `fold`; "" if there is none, or more than one."""
    low = response.lower()
    if len(low) != len(response):  # lower case of a few letters is longer: then places would not agree
        response = low
    opening, closing = f"<{tag.lower()}>", f"</{tag.lower()}>"
    if low.count(opening) != 1 or low.count(closing) != 1:
        return ""
    start = low.index(opening) + len(opening)
    return fold(response[start : low.index(closing)]).strip() if low.index(closing) >= start else ""


@register("process_order")
@dataclass(frozen=True, kw_only=True)
class ProcessOrder(Graded):
    """r = (mean similarity of the gold states, taken in order, to the reasoning's sentences) x min(1, slack m / n), for n sentences and m states.

    Paper: MOSS-ChatV, arXiv:2509.21113 (process reward by subsequence DTW between reasoning and reference states).
    Deviates: similarity is the F1 of words (theirs is not known to us); the factor is ours: without it a trace that lists every state many times
    holds every order. Edge: no closed thinking block: 0. Range [0, 1]. Gold states: `row.meta[states]`, a list of texts; the answer is not looked at,
    so use it beside an accuracy reward (best gated by it).
    """

    states: str = "states"
    slack: float = 2.0

    def target(self, gold: Any, scene: Scene) -> list[str]:
        states = [" ".join(words_of(str(s))) for s in scene.meta.get(self.states, ())]
        if not states or not all(states):
            raise ValueError(f"states: row.meta[{self.states!r}] must be a list of texts, got {scene.meta.get(self.states)!r}")
        return states

    def judge(self, gold: Any, response: str, scene: Scene | None = None, answer: Answer | None = None) -> Grade:
        """Judge the thinking of a response (not its answer)."""
        scene = scene or Scene(response=response)
        return self.grade(self.target(gold, scene), Answer(response, False), scene)

    def grade(self, target: list[str], answer: Answer, scene: Scene) -> Grade:
        found = thoughts(answer.text)
        steps = [" ".join(words) for block in found for part in _STEP.split(block) if (words := words_of(part))][:1000]
        if not steps:
            return self.refuse("no reasoning")
        score = alignment(steps, target) * min(1.0, self.slack * len(target) / len(steps))
        return Grade(score, score >= 0.5, f"{len(steps)} steps against {len(target)} states")


@register("blink")
@dataclass(frozen=True, kw_only=True)
class Blink(Graded):
    """r = 1[the candidate boxes are at most `most`, overlap each other by at most 0.5, and one has IoU > 0.5 with the gold box].

    Paper: BTL-UI, arXiv:2509.15566 (blink reward: the list survives non-maximum suppression at 0.5 and one box hits).
    Deviates: the list may hold at most `most` boxes (the release has no limit, so a grid of boxes always hits); a row without gold boxes asks for
    none.
    Edge: no `<blink>` section, or two: 0. Range {0, 1}. Units: gold in original pixels.
    """

    most: int = 5
    iou_threshold: float = 0.5
    tag: str = "blink"
    picture: int = 0

    def target(self, gold: Any, scene: Scene) -> list[Box]:
        return gold_boxes(gold)

    def judge(self, gold: Any, response: str, scene: Scene | None = None, answer: Answer | None = None) -> Grade:
        """Judge the candidate section of a response (not its answer)."""
        scene = scene or Scene(response=response)
        target, text = self.target(gold, scene), section(response, self.tag)
        return self.grade(target, Answer(text, True), scene) if text else self.refuse(f"no <{self.tag}> section, or several")

    def grade(self, target: list[Box], answer: Answer, scene: Scene) -> Grade:
        boxes = read_boxes(answer.text, scene.spaces, scene.meta.get("picture", self.picture))
        if boxes is None:
            return self.refuse("no boxes")
        if not target or not boxes:
            return Grade(float(not target and not boxes), not target and not boxes, f"{len(boxes)} boxes for {len(target)}")
        if len(boxes) > self.most:
            return self.refuse(f"{len(boxes)} boxes, more than {self.most}")
        between = matrix([b.xyxy for b in boxes], [b.xyxy for b in boxes])
        apart = all(between[i, j] <= self.iou_threshold for i in range(len(boxes)) for j in range(i))
        hit = any(overlap(b.xyxy, g.xyxy) > self.iou_threshold for b in boxes for g in target)
        return Grade(float(apart and hit), apart and hit, "hit" if hit else "no hit")
