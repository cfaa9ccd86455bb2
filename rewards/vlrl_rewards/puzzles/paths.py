"""Several valid ways to reason: the thought follows one of them, and siblings that follow different ones earn
more."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.registry import register
from vlrl.types import Group, Rollout
from vlrl_rewards.graded import Answer, Grade, Graded, Scene
from vlrl_rewards.puzzles.plans import alignment
from vlrl_rewards.text.mentions import words_of
from vlrl_rewards.text.process import sentences


@register("several_paths")
@dataclass(frozen=True, kw_only=True)
class SeveralPaths(Graded):
    """GRiP's multi-heuristic reward: the thought follows one of several valid reasoning paths; paths that
    fewer siblings follow earn more.

        q_i = max_k alignment(sentences of the thought, path k) min(1, slack m_k / n)
        r_i = q_i (1 - spread (c_i - 1) / (G - 1))

    n: sentences, m_k: steps of path k, c_i: rollouts of the group whose best path is that of rollout i and
    whose q is at least `follows`. Paper: GRiP, arXiv:2511.22172 (multi-heuristic reward: diverse yet
    logically valid reasoning pathways; only the abstract was found, and no code). The formula is ours: the
    alignment as in `process_order`, `spread` and `follows`.
    Edge: no closed thinking block: 0; a single rollout, or a path below `follows`, pays q. Range [0, 1].
    Paths: `row.meta[paths]`, a list of lists of texts. The answer is not read: combine with an accuracy
    reward.
    """

    paths: str = "paths"
    slack: float = 2.0
    spread: float = 0.3
    follows: float = 0.5
    correct_at: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.spread <= 1:
            raise ValueError(f"spread: {self.spread} must lie in [0, 1]")

    def target(self, gold: Any, scene: Scene) -> list[list[str]]:
        paths = [
            [" ".join(words_of(str(step))) for step in path]
            for path in scene.meta.get(self.paths, ())
            if isinstance(path, (list, tuple))
        ]
        if not paths or not all(path and all(path) for path in paths):
            raise ValueError(
                f"paths: row.meta[{self.paths!r}] must be a list of lists of texts, got "
                f"{scene.meta.get(self.paths)!r:.200}"
            )
        return paths

    def judge(
        self, gold: Any, response: str, scene: Scene | None = None, answer: Answer | None = None
    ) -> Grade:
        """Judge the thinking of a response (not its answer)."""
        scene = scene or Scene(response=response)
        return self.grade(self.target(gold, scene), Answer(response, False), scene)

    def grade(self, target: list[list[str]], answer: Answer, scene: Scene) -> Grade:
        steps = sentences(answer.text)
        if not steps:
            return self.refuse("no reasoning")
        scores = [alignment(steps, path) * min(1.0, self.slack * len(path) / len(steps)) for path in target]
        best = max(range(len(scores)), key=scores.__getitem__)
        return Grade(
            scores[best], scores[best] >= self.correct_at, f"path {best + 1} of {len(target)}", str(best)
        )

    def score_group(self, group: Group) -> list[float]:
        grades = [self.judge(rollout.answer, rollout.text, self.scene_of(rollout)) for rollout in group]
        followed = [grade.extracted if grade.score >= self.follows else "" for grade in grades]
        counts = Counter(path for path in followed if path)
        others = max(1, len(grades) - 1)
        return [
            float(grade.score * (1 - self.spread * (counts[path] - 1) / others))
            if path
            else float(grade.score)
            for grade, path in zip(grades, followed, strict=True)
        ]

    def __call__(self, rollout: Rollout) -> float:
        return float(self.judge(rollout.answer, rollout.text, self.scene_of(rollout)).score)
