"""Answers about graphs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from vlrl.registry import register
from vlrl_rewards.classification import normal_label
from vlrl_rewards.generated import read_integers
from vlrl_rewards.graded import Answer, Grade, Graded, Scene
from vlrl_rewards.graph_checks import GRAPH_CHECKS
from vlrl_rewards.labels import read_labels

_JOINED = re.compile(r"(?<=\d)-(?=\d)")  # an edge: 0-1


@register("graph")
@dataclass(frozen=True, kw_only=True)
class Graph(Graded):
    """r = 1[a structure that passes its check | the number | the word];  sets: Jaccard |P & G| / |P | G|.

    Paper: G1, arXiv:2505.18499, sec. 3 (exact match, Jaccard for sets, a program for what has several right answers).
    Reads `row.meta`: edges, nodes, and where several answers are right `check` (path, colouring, hamilton, clique, independent, cover, matching,
    tree) with what that needs (start, end, length; colours; size). Gold: an int, a word, a list of node names (set), or a list of ints with a
    `check`. Edge: another kind of answer: 0. Range [0, 1].
    """

    def target(self, gold: Any, scene: Scene) -> Any:
        check = scene.meta.get("check")
        if check is not None:
            if check not in GRAPH_CHECKS or "edges" not in scene.meta:
                raise ValueError(f"meta.check: {check!r} must be one of {', '.join(GRAPH_CHECKS)}, with meta.edges")
            return check
        if isinstance(gold, (list, tuple)):
            return {normal_label(str(item)) for item in gold}
        text = normal_label(str(gold))
        if not text:
            raise ValueError(f"answer: {gold!r} is empty")
        return text

    def grade(self, target: Any, answer: Answer, scene: Scene) -> Grade:
        if scene.meta.get("check") is not None:
            numbers = read_integers(_JOINED.sub(" ", answer.text))
            right = numbers is not None and GRAPH_CHECKS[target](numbers, scene.meta)
            return Grade(float(right), right, target, answer.text[:200])
        if isinstance(target, set):
            said = {label for label in read_labels(answer.text) if label != "none"}
            score = len(said & target) / len(said | target) if said | target else 1.0
            return Grade(score, score == 1.0, "set", ", ".join(sorted(said))[:200])
        said_text = normal_label(answer.text)
        return Grade(float(said_text == target), said_text == target, "the answer", said_text)
